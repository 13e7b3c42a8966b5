//! The command line: subcommands, options, and the texts of `--help` and of the man pages.

use crate::exit;
use clap::{Args, Command, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// What `watch` may ask for: below, the rounds would load the store as `bench` does.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(50);

const ABOUT_STORE: &str = "\
The store is a URL, by --url or in the environment variable DISTLOCK_URL:

  redis://127.0.0.1:6379            one Redis server; rediss:// with TLS
  redis+sentinel://s1,s2,s3/master  the master that Sentinel names
  redis+cluster://n1:7000,n2:7001   Redis Cluster
  redlock://a,b,c                   a quorum of independent servers

There is no default. memory:// is refused: no other process sees a lock in this
process's memory. Settings follow as in redis://host?watchdog=10s or, if the URL
is in DISTLOCK_URL, stand in variables such as DISTLOCK_WATCHDOG=10s. Other
users of a machine can read command lines: put a URL with a password into
DISTLOCK_URL.

Or the stores and the settings of locks stand in a TOML file, by --config or in
DISTLOCK_CONFIG; no other file is read. The environment wins over it:

  default = \"main\"
  [backends.main]
  url = \"redis://127.0.0.1:6379\"
  [backends.ledger]
  url = \"redlock://a,b,c\"
  [locks.nightly]
  backend = \"ledger\"

Exit status: 64 an argument is wrong, 65 the key of the lock holds something
else, 69 the store cannot be reached, 70 any other failure, 78 the URL or a
setting is wrong, or the store refuses the client; others are listed with each
subcommand.";

const ABOUT_RUN: &str = "\
Environment of the command:
  DISTLOCK_NAME      the name of the lock
  DISTLOCK_TOKEN     its fencing token, a number that grows with every grant;
                     with --shared that of the last --exclusive; not set if the
                     store has none
  DISTLOCK_DEADLINE  when --max-hold ends, in seconds since 1970. Not set
                     without --max-hold: the lock is renewed for as long as the
                     command runs, so it has no end that could be known before.

With --shared and --exclusive NAME is a read-write lock, as a file of flock is.
Without either it is a mutex, which excludes both and is excluded by them. While
an exclusive run waits, no new shared one begins.

The command runs in a process group of its own. HUP, INT, QUIT, TERM, USR1 and
USR2 are passed to the whole group, unless they were ignored when distlock
started. On a terminal the group is in the foreground. Ctrl-Z stops it and
distlock; the lock is renewed meanwhile, and fg or bg continues both. The lock
is released when the last process of the group has ended: a daemon must leave
the group (setsid) if it is to run without the lock.

If the lock is not renewed, because the store cannot be reached, the command and
all its descendants get TERM early enough for the grace of --kill-after, and
KILL before the lease can have ended. If the lock is gone at once, because it
was broken or the store lost it, TERM is sent when that is known, and KILL after
the grace. They also get TERM and KILL if distlock itself is killed, by SIGKILL
too. It runs as two processes that watch each other; only if both are killed at
the same moment do descendants of the command go on, without the lock.

Times are seconds, as in 0.5, or have a unit, as in 500ms or 2h.

Exit status:
  that of the command; 128+n if signal n ended it
  1    the lock is held by another client (another number by -E)
  64   an argument is wrong
  65   the key of the lock holds something else
  69   the store cannot be reached
  70   any other failure
  75   the lock was lost or --max-hold was over, and the command was stopped; or
       the lock was lost before the command ended (not with --on-lost=warn)
  78   the URL or a setting is wrong, or the store refuses the client
  126  the command cannot be executed
  127  there is no such command";

const ABOUT_CHECK: &str = "\
Prints `held` or `free`. Exit status: 0 free, 1 held (another number by -E), or
one of `distlock --help`.";

const ABOUT_WAIT: &str = "\
Asks the store a few times a second and does not take the lock, so another
client may have taken it when this returns. Exit status: 0 free, 1 still held at
the end of -w (another number by -E), 128+n after signal n, or one of `distlock
--help`.";

const ABOUT_STATUS: &str = "\
What the store does not know, or does not tell, is `unknown`, and null with
--json. The holder is the beginning of its identity in the store: the whole of
it would be enough to release the lock. `largest_token` in JSON is the largest
that was granted or reserved so far: stores do not keep the holder's own. WAITERS
are the clients that listen for the release; clients that poll are not among
them. Of a read-write lock each reader has a line, and the state says whether a
writer waits. Exit status: 0, or one of `distlock --help`.";

const ABOUT_LIST: &str = "\
Goes through the keys of the store by SCAN, a thousand at a time, on every
master of a cluster and every server of a quorum; the columns are those of
`status`. PATTERN is a glob as in `SCAN .. MATCH`, without the prefix of the
URL: quote it, as in 'orders:*'. Listed is what is certainly a lock of the
client's format=: with `redisson` a hash of owners, also a read-write lock, with
the reader whose lease ends last. With `token` any text may be a lock, so those
are listed that look like an owner and expire: a UUID, or that and a number, 16
to 64 hexadecimal digits, 22 to 64 digits of base 64, or what ShedLock writes.
Formats without owners cannot be listed, nor are semaphores. Locks that are
taken or released meanwhile may be missing or too many. Of a file, all backends
are gone through, and sections of locks that have a format or a prefix of their
own.

With --json each lock is an object on a line of its own. Exit status: 0, also if
none is held, or one of `distlock --help`; what was found before a failure is
shown.";

const ABOUT_WATCH: &str = "\
Shows what `list` or `status` shows, again and again: the locks of a PATTERN if
one word has *, ? or [ in it, all held locks without a word, and otherwise the
locks of these names, also free ones. On a terminal the table is redrawn in
place; q or Ctrl-C ends it. Elsewhere, and with --json, each round is printed:
a table, or an object with its number as `round` and the `locks`. A round that
fails is reported and the next one comes; if the first fails, it ends. Exit
status: 0 after q or --count rounds, 128+n after signal n, the failure of the
last round, or one of `distlock --help`.";

const ABOUT_BENCH: &str = "\
THIS LOADS THE SERVER as fast as it answers, for about the time of --seconds:
other clients wait longer meanwhile. It uses locks `distlock:bench:..` of its
own, which are free at the end, also after Ctrl-C; the counters of their tokens
expire after three minutes (on a quorum after its token_retention).

Measured are lock and unlock of one thread; of many threads with a lock each, and
with one lock for all, of one client and of two; the time from a release to the
grant of another client that waits; and the renewals of held locks, which have a
lease of 3 s here. Times of locks include the wait for them. Of a file, the
default backend is measured.

Exit status: 0, 128+n after signal n, or one of `distlock --help`.";

const ABOUT_BREAK: &str = "\
This breaks mutual exclusion: the holder learns of it within a third of its
lease, and another one may enter at once. Asks for confirmation on a terminal;
elsewhere --yes is needed. Exit status: 0 the lock was broken, 1 it was free or
the answer was no, or one of `distlock --help`.";

const ABOUT_HOLD: &str = "\
For scripts that cannot run their work as a command. Answers are JSON lines on
standard output, commands are lines on standard input:

  check    {\"event\":\"check\",\"valid\":true,\"remaining_ms\":29871}, by the local
           clock alone
  verify   the same with \"event\":\"verify\", from the store (null: no end)
  release  {\"event\":\"released\"}; so does the end of the input

It begins with {\"event\":\"held\",\"token\":N}, or with {\"event\":\"busy\"}. When the
lock is lost it says {\"event\":\"lost\",\"cause\":\"..\"} at once, answers for another
second what was asked before that was read, and exits with 75. HUP, INT and TERM
end the wait (status 128+n) or release. Exit status: 0 released, 1 busy (another
number by -E), 75 lost, or one of `distlock --help`.";

const ABOUT_DOCTOR: &str = "\
Connects with the settings that the other subcommands use, changes nothing, and
says of each finding what was seen, why it matters and how to mend it: danger
(two holders are possible, or no lock can be taken), warning, unknown (the
server does not let this user look), ok. Exit status: 0 no danger, 1 a danger,
or one of `distlock --help`.";

const ABOUT_CONFIG_CHECK: &str = "\
Shows each backend with all its settings, and of each section of a lock what
differs; with --lock the settings of that lock, as `run` uses them. A value
comes from a line of the file, from the environment, which wins over the file,
or is a default. Users and passwords are not shown. No store is asked. Exit
status: 0 the settings are right, or one of `distlock --help`, 78 with the file,
the line and what is accepted.";

const ABOUT_QUORUM: &str = "\
For a URL as in redlock://a,b,c. Other stores need no set-up.";

const ABOUT_INIT: &str = "\
Declares that no lock was held on these servers within the last max_lease, and
makes them a quorum that votes at once. If some of them vote already, the others
join them and vote after max_lease. Asks for confirmation on a terminal;
elsewhere --yes is needed. Exit status: 0 all are members, 1 the answer was no,
or one of `distlock --help`.";

const ABOUT_QUORUM_STATUS: &str = "\
Shows of each server whether it is a member, since when it votes or when it
will, and by how much its clock is ahead of this machine's. Exit status: 0 a
majority votes, 1 none does, or one of `distlock --help`.";

/// Runs commands under a distributed lock, and shows who holds what.
#[derive(Debug, Parser)]
#[command(name = "distlock", version, after_long_help = ABOUT_STORE)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) task: Task,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Runs a command while it holds the lock
    #[command(after_long_help = ABOUT_RUN)]
    Run(RunArguments),
    /// Says whether the lock is held
    #[command(after_long_help = ABOUT_CHECK)]
    Check(CheckArguments),
    /// Waits until the lock is free, without taking it
    #[command(after_long_help = ABOUT_WAIT)]
    Wait(WaitArguments),
    /// Shows who holds each lock, and for how long
    #[command(after_long_help = ABOUT_STATUS)]
    Status(StatusArguments),
    /// Shows the held locks of the store
    #[command(after_long_help = ABOUT_LIST)]
    List(ListArguments),
    /// Shows held locks, or locks by name, again and again
    #[command(after_long_help = ABOUT_WATCH)]
    Watch(WatchArguments),
    /// Measures what locks cost on the store, which it loads
    #[command(after_long_help = ABOUT_BENCH)]
    Bench(BenchArguments),
    /// Releases the lock of any holder
    #[command(after_long_help = ABOUT_BREAK)]
    Break(BreakArguments),
    /// Holds the lock until it is told to release it
    #[command(after_long_help = ABOUT_HOLD)]
    Hold(HoldArguments),
    /// Reports what endangers locks: settings and state of the store, rights, clocks, latency
    #[command(after_long_help = ABOUT_DOCTOR)]
    Doctor(DoctorArguments),
    /// Checks and shows the settings of a file, or of the environment
    Config {
        #[command(subcommand)]
        task: ConfigTask,
    },
    /// Sets up a quorum of servers (Redlock), or shows it
    #[command(after_long_help = ABOUT_QUORUM)]
    Quorum {
        #[command(subcommand)]
        task: QuorumTask,
    },
    /// Writes the completions for a shell to standard output
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Writes the man page of this program, or of a subcommand, to standard output
    Man {
        /// The subcommand, as in `run`
        subcommand: Option<String>,
    },
    /// What `run` starts: holds the lock, and runs the command
    #[command(hide = true)]
    Supervise {
        /// The process that the user started
        front: i32,
        #[command(flatten)]
        run: RunArguments,
    },
    /// What the supervisor starts: becomes the command
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
    /// Makes the servers a quorum, or completes it
    #[command(after_long_help = ABOUT_INIT)]
    Init(QuorumInitArguments),
    /// Shows which servers vote
    #[command(after_long_help = ABOUT_QUORUM_STATUS)]
    Status(QuorumStatusArguments),
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
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
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
    #[command(after_long_help = ABOUT_CONFIG_CHECK)]
    Check(ConfigCheckArguments),
}

#[derive(Args, Debug)]
pub(crate) struct ConfigCheckArguments {
    /// The file [default: DISTLOCK_CONFIG of the environment, or the store of DISTLOCK_URL]
    pub(crate) file: Option<PathBuf>,
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
    /// Do not wait: fail if the lock is held
    #[arg(short, long)]
    pub(crate) nonblock: bool,
    /// Wait for at most so long; 0 is one attempt [default: for ever, if the store answers]
    #[arg(short, long, value_name = "SECS", value_parser = seconds, conflicts_with = "nonblock")]
    pub(crate) wait: Option<Duration>,
    /// Say on standard error what happens
    #[arg(long)]
    pub(crate) verbose: bool,
    /// The lease that is renewed: how long a dead host blocks others [default: `watchdog` of the
    /// URL or file, 30 s]
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub(crate) lease: Option<Duration>,
    #[command(flatten)]
    pub(crate) take: TakeArguments,
    /// Keep the lock for at least so long, also when the command has ended before: hosts whose
    /// clocks differ by less run it once
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
    /// Run this line with $SHELL, or /bin/sh
    #[arg(short = 'c', long = "command", value_name = "LINE")]
    #[arg(required_unless_present = "command", conflicts_with = "command")]
    pub(crate) line: Option<OsString>,
    /// The name of the lock
    pub(crate) name: String,
    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

// No doc comments on these two: clap would take them for the text of the command.

#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct TakeArguments {
    /// Share NAME with others that do: the read part of a read-write lock
    #[arg(short, long, conflicts_with_all = ["exclusive", "slots"])]
    pub(crate) shared: bool,
    /// Hold NAME alone, without those that share it: the write part
    #[arg(short = 'x', visible_short_alias = 'e', long, conflicts_with = "slots")]
    pub(crate) exclusive: bool,
    /// Up to so many hold NAME at once: a semaphore with N permits. The first user of it sets N in
    /// the store
    #[arg(long, value_name = "N")]
    pub(crate) slots: Option<u32>,
}

#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct AskArguments {
    /// NAME is that of `run --shared`: held means that no other can share it now
    #[arg(short, long, conflicts_with_all = ["exclusive", "slots"])]
    pub(crate) shared: bool,
    /// NAME is that of `run --exclusive`: held means that another holds it, shared or not
    #[arg(short = 'x', visible_short_alias = 'e', long, conflicts_with = "slots")]
    pub(crate) exclusive: bool,
    /// NAME is that of `run --slots`: held means that no slot is free
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

/// What happens to a command whose lock is being lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// TERM, and KILL after the grace
    Term,
    /// KILL at once
    Kill,
    /// A line on standard error; the command goes on without the lock
    Warn,
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
    /// The names, as in 'orders:*'
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
pub(crate) struct BenchArguments {
    #[command(flatten)]
    pub(crate) store: StoreArguments,
    /// For how long to measure in all
    #[arg(long, value_name = "SECS", value_parser = seconds, default_value = "10")]
    pub(crate) seconds: Duration,
    /// How many threads
    #[arg(long, value_name = "NUMBER", default_value_t = 8)]
    #[arg(value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1000))]
    pub(crate) threads: usize,
    /// How many locks to hold while they are renewed; 0 leaves that out
    #[arg(long, value_name = "NUMBER", default_value_t = 1000)]
    #[arg(value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(..=100_000))]
    pub(crate) held: usize,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Draw the figures into this file, too
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
    /// The name of the lock
    pub(crate) name: String,
}

#[derive(Args, Debug)]
pub(crate) struct HoldArguments {
    #[command(flatten)]
    pub(crate) store: StoreArguments,
    #[command(flatten)]
    pub(crate) conflict: Conflict,
    /// Do not wait: fail if the lock is held
    #[arg(short, long)]
    pub(crate) nonblock: bool,
    /// Wait for at most so long; 0 is one attempt [default: for ever, if the store answers]
    #[arg(short, long, value_name = "SECS", value_parser = seconds, conflicts_with = "nonblock")]
    pub(crate) wait: Option<Duration>,
    #[command(flatten)]
    pub(crate) take: TakeArguments,
    /// The lease that is renewed [default: `watchdog` of the URL or file, 30 s]
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub(crate) lease: Option<Duration>,
    /// Hold the lock for so long at most: a lease of that time, which is not renewed
    #[arg(long, value_name = "SECS", value_parser = seconds, conflicts_with = "lease")]
    pub(crate) max_hold: Option<Duration>,
    /// The name of the lock
    pub(crate) name: String,
}

/// The command line that users know, for completions and man pages: without what `run` starts.
pub(crate) fn shown() -> Command {
    let all = Arguments::command();
    let subcommands = all.get_subcommands().filter(|it| !it.is_hide_set()).cloned();
    Command::new("distlock")
        .version(env!("CARGO_PKG_VERSION"))
        .about(all.get_about().cloned().unwrap_or_default())
        .after_long_help(ABOUT_STORE)
        .subcommands(subcommands)
}

/// Reads a time: seconds, as `flock` does, or a number with its unit.
fn seconds(text: &str) -> Result<Duration, String> {
    let duration = match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => humantime::parse_duration(text).ok(),
    };
    duration.ok_or_else(|| "say seconds, as in 0.5, or a number with its unit, as in 2h".to_owned())
}

/// Seconds between two rounds.
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
    fn times_are_seconds_or_have_a_unit() {
        let time = |text| seconds(text).map(|time| time.as_millis());
        assert_eq!([time("0.5"), time("2"), time("0")], [Ok(500), Ok(2_000), Ok(0)]);
        assert_eq!([time("500ms"), time("1m 2s")], [Ok(500), Ok(62_000)]);
        for wrong in ["", "-1", "NaN", "inf", "1e300", "soon", "1 fortnight"] {
            assert!(seconds(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(interval("50ms"), Ok(SHORTEST_INTERVAL));
        assert!(interval("0.049").is_err() && interval("0").is_err());
    }
}
