//! The command line: subcommands and options, with the lines that explain them.

use crate::{exit, help};
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Command, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use distlock::Config;
use distlock::admin::PermitId;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The options that name the store.
const OF_STORE: [&str; 2] = ["--url", "--config"];

/// The shortest interval of `watch`: with a shorter one, `watch` would load the store as `bench`
/// does.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(50);

/// Runs commands under a distributed lock, and shows who holds what.
#[derive(Debug, Parser)]
#[command(name = "distlock", version, after_long_help = help::STORE)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) task: Task,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Runs a command while holding the lock
    #[command(after_long_help = help::RUN)]
    Run(RunArguments),
    /// Says whether the lock is held
    #[command(after_long_help = help::CHECK)]
    Check(CheckArguments),
    /// Waits until the lock is free, without taking it
    #[command(after_long_help = help::WAIT)]
    Wait(WaitArguments),
    /// Shows who holds each lock, and for how long
    #[command(after_long_help = help::STATUS)]
    Status(StatusArguments),
    /// Shows the held locks of the store
    #[command(after_long_help = help::LIST)]
    List(ListArguments),
    /// Shows held locks, or the named locks, again and again
    #[command(after_long_help = help::WATCH)]
    Watch(WatchArguments),
    /// Serves a page, metrics and JSON about held locks, or the named locks, over HTTP
    #[command(after_long_help = help::SERVE)]
    Serve(ServeArguments),
    /// Measures the cost of locks on the store, and puts the store under load
    #[command(after_long_help = help::BENCH)]
    Bench(BenchArguments),
    /// Releases the lock of any holder
    #[command(after_long_help = help::BREAK)]
    Break(BreakArguments),
    /// Holds the lock until standard input, a signal or the end of the parent process releases it
    #[command(after_long_help = help::HOLD)]
    Hold(HoldArguments),
    /// Reports what endangers locks: settings and state of the store, rights, clocks, latency
    #[command(after_long_help = help::DOCTOR)]
    Doctor(DoctorArguments),
    /// Checks and shows the settings of a file, or of the environment
    Config {
        #[command(subcommand)]
        task: ConfigTask,
    },
    /// Sets up a quorum of servers (Redlock), or shows it
    #[command(after_long_help = help::QUORUM)]
    Quorum {
        #[command(subcommand)]
        task: QuorumTask,
    },
    /// Prepares a PostgreSQL database
    #[command(after_long_help = help::POSTGRES)]
    Postgres {
        #[command(subcommand)]
        task: PostgresTask,
    },
    /// Writes the completions for a shell to standard output
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Writes the man page of this program, or of a subcommand, to standard output
    Man {
        /// The subcommand, such as `run`
        subcommand: Option<String>,
    },
    /// Internal, started by `run`: holds the lock, and runs the command
    #[command(hide = true)]
    Supervise {
        /// The process that the user started
        front: i32,
        #[command(flatten)]
        run: RunArguments,
    },
    /// Internal, started by the supervisor: becomes the command
    #[command(hide = true)]
    Launch {
        /// The process that the user started
        front: i32,
        /// The parent process
        supervisor: i32,
        /// The command and its arguments
        #[arg(last = true)]
        command: Vec<OsString>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum QuorumTask {
    /// Makes the servers a quorum, or adds the missing ones to it
    #[command(after_long_help = help::INIT)]
    Init(QuorumInitArguments),
    /// Shows which servers vote
    #[command(after_long_help = help::QUORUM_STATUS)]
    Status(QuorumStatusArguments),
}

#[derive(Debug, Subcommand)]
pub(crate) enum PostgresTask {
    /// Makes the tables and functions that locks need
    #[command(after_long_help = help::POSTGRES_INIT)]
    Init(PostgresInitArguments),
}

#[derive(Args, Debug)]
pub(crate) struct PostgresInitArguments {
    #[command(flatten)]
    pub(crate) store: StoreArguments,
    /// Print the statements instead
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Args, Debug)]
pub(crate) struct QuorumInitArguments {
    /// The quorum, as in redlock://a,b,c, or the name of a backend of the file [default: the store
    /// of DISTLOCK_URL, or the default backend]
    #[arg(value_name = "URL|BACKEND")]
    pub(crate) store: Option<String>,
    #[command(flatten)]
    pub(crate) file: FileArguments,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}

#[derive(Args, Debug)]
pub(crate) struct QuorumStatusArguments {
    /// The quorum, as in redlock://a,b,c, or the name of a backend of the file [default: the store
    /// of DISTLOCK_URL, or the default backend]
    #[arg(value_name = "URL|BACKEND")]
    pub(crate) store: Option<String>,
    #[command(flatten)]
    pub(crate) file: FileArguments,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct DoctorArguments {
    #[command(flatten)]
    pub(crate) store: StoreArguments,
    /// The IDs of findings that cannot be mended, as in persistence,clock: they are shown, but do
    /// not count as dangers
    #[arg(long, value_name = "ID,..", value_delimiter = ',')]
    pub(crate) accept: Vec<String>,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct StoreArguments {
    /// The store, as in redis://127.0.0.1:6379 [default: DISTLOCK_URL of the environment]
    #[arg(long, value_name = "URL", conflicts_with = "config")]
    pub(crate) url: Option<String>,
    #[command(flatten)]
    pub(crate) file: FileArguments,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct FileArguments {
    /// The file that names stores and locks [default: DISTLOCK_CONFIG of the environment]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigTask {
    /// Checks the settings, and shows each value and where it came from
    #[command(after_long_help = help::CONFIG_CHECK)]
    Check(ConfigCheckArguments),
}

#[derive(Args, Debug)]
pub(crate) struct ConfigCheckArguments {
    /// The file to check [default: the file of DISTLOCK_CONFIG, or else the store of DISTLOCK_URL]
    #[arg(conflicts_with_all = ["url", "config"])]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) store: StoreArguments,
    /// Show all settings of the lock of this name
    #[arg(long, value_name = "NAME")]
    pub(crate) lock: Option<String>,
    /// Print a JSON object for each setting, one a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct RunArguments {
    #[command(flatten)]
    pub(crate) store: StoreArguments,
    #[command(flatten)]
    pub(crate) conflict: Conflict,
    #[command(flatten)]
    pub(crate) patience: Patience,
    /// Say on standard error what happens
    #[arg(long, conflicts_with = "quiet")]
    pub(crate) verbose: bool,
    /// Say nothing if the lock is held by another client, nor about processes that the command
    /// leaves
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The lease that is renewed: how long a dead host blocks others [default: `watchdog` of the
    /// URL or file, 30 s]
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub(crate) lease: Option<Duration>,
    #[command(flatten)]
    pub(crate) take: TakeArguments,
    /// Keep the lock for at least so long, even if the command ends earlier: hosts that start the
    /// same job at the same time, by clocks that differ by less, then run it only once
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    #[arg(conflicts_with_all = ["slots", "shared"])]
    pub(crate) at_least: Option<Duration>,
    /// Stop the command after so long, with TERM and then KILL
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub(crate) max_hold: Option<Duration>,
    /// The time between TERM and KILL [default: 5 s, at most a sixth of the lease]
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub(crate) kill_after: Option<Duration>,
    /// What to do if the lock is being lost
    #[arg(long, value_name = "ACTION", default_value = "term")]
    pub(crate) on_lost: OnLost,
    /// Count the run in this file, for the textfile collector of the node exporter
    #[arg(long, value_name = "FILE", value_parser = OsStringValueParser::new().try_map(prom_file))]
    pub(crate) metrics_file: Option<PathBuf>,
    /// When to release the lock
    #[arg(long, value_name = "WHEN", default_value = "group")]
    pub(crate) release: ReleaseAt,
    /// Run this line with $SHELL, or with /bin/sh if that is not set
    #[arg(short = 'c', long = "command", value_name = "LINE")]
    #[arg(required_unless_present = "command", conflicts_with = "command")]
    pub(crate) line: Option<OsString>,
    /// The name of the lock
    pub(crate) name: String,
    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

// No doc comments on structs that are flattened into a subcommand, as the next four are: clap would
// show the comments as the help text of the subcommand.

#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Do not wait: fail if the lock is held
    #[arg(short, long)]
    nonblock: bool,
    /// Wait for at most so long; 0 is one attempt [default: for ever, if the store answers]
    #[arg(short, long, value_name = "SECS", value_parser = seconds, conflicts_with = "nonblock")]
    wait: Option<Duration>,
}

impl Patience {
    /// Returns the maximum wait for the lock; `None` if it has no limit.
    pub(crate) fn longest_wait(self) -> Option<Duration> {
        self.wait.or(self.nonblock.then_some(Duration::ZERO))
    }
}

#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct TakeArguments {
    /// Share NAME with others that use --shared, too: the read part of a read-write lock
    #[arg(short, long, conflicts_with_all = ["exclusive", "slots"])]
    pub(crate) shared: bool,
    /// Hold NAME alone, which excludes --shared: the write part of a read-write lock
    #[arg(short = 'x', visible_short_alias = 'e', long, conflicts_with = "slots")]
    pub(crate) exclusive: bool,
    /// Let up to N hold NAME at once: a semaphore with N permits. Its first user sets N in the
    /// store
    #[arg(long, value_name = "N")]
    pub(crate) slots: Option<u32>,
}

#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct AskArguments {
    /// NAME is that of `run --shared`: `held` means that no further client can share it now
    #[arg(short, long, conflicts_with_all = ["exclusive", "slots"])]
    pub(crate) shared: bool,
    /// NAME is that of `run --exclusive`: `held` means that a client holds it, shared or not
    #[arg(short = 'x', visible_short_alias = 'e', long, conflicts_with = "slots")]
    pub(crate) exclusive: bool,
    /// NAME is that of `run --slots`: `held` means that no slot is free
    #[arg(long)]
    pub(crate) slots: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Conflict {
    /// The exit status if the lock is held by another client
    #[arg(short = 'E', long = "conflict-exit-code", value_name = "STATUS")]
    #[arg(default_value_t = exit::CONFLICT)]
    pub(crate) status: u8,
}

/// The reaction when a command is about to lose its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// Send TERM, and KILL after --kill-after
    Term,
    /// Send KILL at once
    Kill,
    /// Print a line on standard error; the command continues without the lock
    Warn,
}

/// The time at which `run` releases the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReleaseAt {
    /// When the last process of the command's group ends
    Group,
    /// When the command ends
    Command,
}

#[derive(Args, Debug)]
pub(crate) struct CheckArguments {
    #[command(flatten)]
    pub(crate) store: StoreArguments,
    #[command(flatten)]
    pub(crate) conflict: Conflict,
    /// Print nothing
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) ask: AskArguments,
    /// The name of the lock
    pub(crate) name: String,
}

#[derive(Args, Debug)]
pub(crate) struct WaitArguments {
    #[command(flatten)]
    pub(crate) store: StoreArguments,
    #[command(flatten)]
    pub(crate) conflict: Conflict,
    /// Wait for at most so long [default: for ever, if the store answers]
    #[arg(short, long, value_name = "SECS", value_parser = seconds)]
    pub(crate) wait: Option<Duration>,
    #[command(flatten)]
    pub(crate) ask: AskArguments,
    /// The name of the lock
    pub(crate) name: String,
}

#[derive(Args, Debug)]
pub(crate) struct StatusArguments {
    #[command(flatten)]
    pub(crate) store: StoreArguments,
    /// Print a JSON object for each lock, one a line
    #[arg(long)]
    pub(crate) json: bool,
    /// The names are those of `run --slots`: how many slots are free
    #[arg(long)]
    pub(crate) slots: bool,
    /// The names of the locks
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct ListArguments {
    #[command(flatten)]
    pub(crate) store: StoreArguments,
    #[command(flatten)]
    pub(crate) limit: Limit,
    /// Print a JSON object for each lock, one a line
    #[arg(long)]
    pub(crate) json: bool,
    /// The pattern of the names, as in 'orders:*'
    #[arg(default_value = "*")]
    pub(crate) pattern: String,
}

#[derive(Args, Debug)]
pub(crate) struct Limit {
    /// Show at most so many locks, the first that are found
    #[arg(long = "limit", value_name = "NUMBER", default_value_t = 1000)]
    pub(crate) locks: usize,
}

#[derive(Args, Debug)]
pub(crate) struct WatchArguments {
    #[command(flatten)]
    pub(crate) store: StoreArguments,
    #[command(flatten)]
    pub(crate) limit: Limit,
    /// The time from one round to the next, at least 0.05
    #[arg(short = 'i', long, value_name = "SECS", value_parser = interval, default_value = "2")]
    pub(crate) interval: Duration,
    /// End after so many rounds [default: never]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) count: Option<u64>,
    /// Print a JSON object for each round, one a line
    #[arg(long)]
    pub(crate) json: bool,
    /// The names are those of `run --slots`: how many slots are free
    #[arg(long)]
    pub(crate) slots: bool,
    /// The names of the locks, or one pattern
    #[arg(value_name = "PATTERN|NAME")]
    pub(crate) words: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct ServeArguments {
    #[command(flatten)]
    pub(crate) store: StoreArguments,
    #[command(flatten)]
    pub(crate) limit: Limit,
    /// The address and port; port 0 is any free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9474")]
    pub(crate) listen: SocketAddr,
    /// The time from one sample of the store to the next, at least 0.05
    #[arg(short = 'i', long, value_name = "SECS", value_parser = interval, default_value = "5")]
    pub(crate) interval: Duration,
    /// The names of the locks, or one pattern
    #[arg(value_name = "PATTERN|NAME")]
    pub(crate) words: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct BenchArguments {
    #[command(flatten)]
    pub(crate) store: StoreArguments,
    /// How long to measure in total
    #[arg(long, value_name = "SECS", value_parser = seconds, default_value = "10")]
    pub(crate) seconds: Duration,
    /// How many threads
    #[arg(long, value_name = "NUMBER", default_value_t = 8)]
    #[arg(value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1000))]
    pub(crate) threads: usize,
    /// How many locks to hold while they are renewed; 0 skips this measurement
    #[arg(long, value_name = "NUMBER", default_value_t = 1000)]
    #[arg(value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(..=100_000))]
    pub(crate) held: usize,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Also draw the figures into this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct BreakArguments {
    #[command(flatten)]
    pub(crate) store: StoreArguments,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// NAME is that of `run --slots`: take all slots from their holders
    #[arg(long)]
    pub(crate) slots: bool,
    /// Take only the slot with this permit ID, which has 32 hexadecimal digits
    #[arg(long, value_name = "ID", requires = "slots")]
    pub(crate) permit: Option<PermitId>,
    /// The name of the lock
    pub(crate) name: String,
}

#[derive(Args, Debug)]
pub(crate) struct HoldArguments {
    #[command(flatten)]
    pub(crate) store: StoreArguments,
    #[command(flatten)]
    pub(crate) conflict: Conflict,
    #[command(flatten)]
    pub(crate) patience: Patience,
    #[command(flatten)]
    pub(crate) take: TakeArguments,
    /// The lease, which is renewed [default: `lease` of the URL or file, which is not renewed, or
    /// else `watchdog`, 30 s]
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub(crate) lease: Option<Duration>,
    /// Release the lock when the process with this ID ends [default: the parent process]
    #[arg(long, value_name = "PID")]
    pub(crate) with_pid: Option<i32>,
    /// Hold the lock for so long at most: a lease of that time, which is not renewed
    #[arg(long, value_name = "SECS", value_parser = seconds, conflicts_with = "lease")]
    pub(crate) max_hold: Option<Duration>,
    /// The name of the lock
    pub(crate) name: String,
}

/// Moves the options of the store from before the subcommand to the end of its options, because
/// clap accepts them only after the subcommand: `distlock --url U run x -- job` becomes
/// `distlock run x --url U -- job`.
pub(crate) fn in_order(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let names_store = |word: &OsString| {
        let word = word.as_encoded_bytes();
        let option = word.split(|byte| *byte == b'=').next().unwrap_or(word);
        OF_STORE.iter().any(|name| name.as_bytes() == option)
    };
    let mut words = words.peekable();
    let mut ordered: Vec<_> = words.next().into_iter().collect();
    let mut of_store = Vec::new();
    while let Some(option) = words.next_if(names_store) {
        let has_value = option.as_encoded_bytes().contains(&b'=');
        of_store.push(option);
        if !has_value {
            of_store.extend(words.next());
        }
    }
    while let Some(word) = words.next_if(|word| word != "--") {
        ordered.push(word);
    }
    // Without a subcommand, the options are dropped, so that clap reports the missing subcommand.
    if ordered.len() > 1 {
        ordered.append(&mut of_store);
    }
    ordered.extend(words);
    ordered
}

/// Returns the public command line, for completions and man pages: without the hidden subcommands,
/// which only this program itself starts.
pub(crate) fn shown() -> Command {
    let all = Arguments::command();
    let subcommands = all
        .get_subcommands()
        .filter(|it| !it.is_hide_set())
        .cloned();
    Command::new("distlock")
        .version(env!("CARGO_PKG_VERSION"))
        .about(all.get_about().cloned().unwrap_or_default())
        .after_long_help(help::STORE)
        .subcommands(subcommands)
}

/// Parses the path of a file of metrics.
fn prom_file(path: OsString) -> Result<PathBuf, &'static str> {
    let path = PathBuf::from(path);
    match path.extension().is_some_and(|it| it == "prom") {
        true => Ok(path),
        false => Err("the name must end in .prom: the collector reads no other file"),
    }
}

/// Parses a time: seconds, as in `flock`, or a number with its unit.
fn seconds(text: &str) -> Result<Duration, String> {
    let duration = match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => Config::parse_duration(text).ok(),
    };
    duration.ok_or_else(|| "say seconds, as in 0.5, or a number with its unit, as in 2h".to_owned())
}

/// Parses the time from one round of `watch` to the next.
fn interval(text: &str) -> Result<Duration, String> {
    let interval = seconds(text)?;
    if interval < SHORTEST_INTERVAL {
        return Err("say at least 0.05".to_owned());
    }
    Ok(interval)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn options_of_the_store_may_stand_before_the_subcommand() {
        let in_order = |line: &str| {
            let words = in_order(line.split(' ').map(OsString::from));
            words.join(OsString::from(" ").as_os_str())
        };
        for (given, expected) in [
            (
                "d --url U run x -- j --url V",
                "d run x --url U -- j --url V",
            ),
            ("d --config=F run -n x -- j", "d run -n x --config=F -- j"),
            ("d --config F quorum init", "d quorum init --config F"),
            ("d --url=U --help", "d --help --url=U"),
            ("d run --url U x -- j", "d run --url U x -- j"),
            ("d --url U", "d"),
            ("d --url", "d"),
            ("d", "d"),
        ] {
            assert_eq!(in_order(given), expected, "{given}");
        }
    }

    #[test]
    fn times_are_seconds_or_have_a_unit() {
        let time = |text| seconds(text).map(|time| time.as_millis());
        assert_eq!(
            [time("0.5"), time("2"), time("0")],
            [Ok(500), Ok(2_000), Ok(0)]
        );
        assert_eq!([time("500ms"), time("1m 2s")], [Ok(500), Ok(62_000)]);
        for wrong in ["", "-1", "NaN", "inf", "1e300", "soon", "1 fortnight"] {
            assert!(seconds(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(interval("50ms"), Ok(SHORTEST_INTERVAL));
        assert!(interval("0.049").is_err() && interval("0").is_err());
    }
}
