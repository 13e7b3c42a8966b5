//! `bench`: measures the cost of locks on the user's store.
//!
//! - `work`: the workloads
//! - `times`: durations of repeated operations
//! - `report`: the table, JSON and the chart

mod report;
mod times;
mod work;

use crate::arguments::BenchArguments;
use crate::exit::{self, Failure};
use crate::output;
use crate::signals::{self, Signals};
use crate::store;
use distlock::admin::Counters;
use distlock::backend::ClientId;
use distlock::config::TokenPolicy;
use distlock::time::{Clock, Moment, SystemClock};
use distlock::{Client, Config, Interrupt};
use report::Figure;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use times::Times;
use work::{Held, Pairs};

/// The share of `--seconds` that one workload gets. Two workloads get `CONTENDED` each. The
/// remaining 2 % are for connections and releases.
const ALONE: f64 = 0.12;
const SPREAD: f64 = 0.12;
const CONTENDED: f64 = 0.12;
const HAND_OFF: f64 = 0.2;
const HELD: f64 = 0.3;

/// Runs the benchmark, and shows the figures.
pub(crate) fn bench(arguments: &BenchArguments) -> Result<u8, Failure> {
    let stop = Interrupt::new();
    let heard = Signals::block_all()?.listen(&stop);
    // Created before the measurement, whose result would be lost if the file could not be created.
    let chart = arguments.svg.as_ref().map(|path| {
        let cannot = |error| unwritable(path, &error);
        File::create(path).map_err(cannot)
    });
    let chart = chart.transpose()?;
    let bench = Bench::new(arguments, &stop)?;
    let figures = bench.measure()?;
    // A signal ends the program only here, because all locks are released by now.
    if let Some(signal) = heard.try_iter().find(|signal| signals::ends(*signal)) {
        return Ok(exit::of_signal(signal));
    }
    if let (Some(mut file), Some(path)) = (chart, &arguments.svg) {
        let written = file.write_all(report::chart(&figures).as_bytes());
        written.map_err(|error| unwritable(path, &error))?;
    }
    output::line(&if arguments.json {
        report::json(&figures)
    } else {
        report::table(&figures)
    })
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::new(
        exit::USAGE,
        format_args!("{} cannot be written: {error}", path.display()),
    )
}

/// The clients, and the arguments of the benchmark.
struct Bench<'a> {
    arguments: &'a BenchArguments,
    stop: &'a Interrupt,
    /// The beginning of the locks' names.
    base: String,
    config: Config,
    clients: [Client; 2],
}

impl<'a> Bench<'a> {
    fn new(arguments: &'a BenchArguments, stop: &'a Interrupt) -> Result<Self, Failure> {
        let mut config = store::usable(arguments.store.settings()?.backend_config(None)?)?;
        // Not on a quorum, whose clients must all have the same retention.
        if !config.scheme().starts_with("redlock") {
            config = config.with_token_retention(Config::SHORTEST_TOKEN_RETENTION);
        }
        if config.tokens() == TokenPolicy::Keep {
            config = config.with_tokens(TokenPolicy::Expire);
        }
        let connect = || distlock::builder().config(config.clone()).connect();
        let clients = [connect()?, connect()?];
        let random: String = ClientId::random().to_string().chars().take(8).collect();
        let base = format!("distlock:bench:{random}");
        Ok(Self {
            arguments,
            stop,
            base,
            config,
            clients,
        })
    }

    /// Returns the end of a workload that begins now and has this share of the time.
    fn until(&self, part: f64) -> Moment {
        SystemClock.now() + self.arguments.seconds.mul_f64(part)
    }

    /// Runs all workloads. Then waits for the cleanup of requests with unknown outcome, even if a
    /// workload failed, because such a request may have acquired a lock.
    fn measure(&self) -> Result<Vec<Figure>, Failure> {
        let figures = self.workloads();
        let wait = self.config.command_timeout();
        let cleaned = self
            .clients
            .iter()
            .try_for_each(|client| client.wait_for_cleanup(wait));
        let figures = figures?;
        cleaned?;
        Ok(figures)
    }

    fn workloads(&self) -> Result<Vec<Figure>, Failure> {
        let threads = self.arguments.threads;
        let [one, other] = &self.clients;
        let name = |number: usize| format!("{}:{number}", self.base);
        let progress = Progress::new();
        let mut figures = Vec::new();

        progress.show(1, "one thread, its own lock");
        // Warms up: makes the connections.
        let soon = SystemClock.now() + self.config.command_timeout();
        work::pairs(&[one.mutex(name(0))?], soon, 1, self.stop)?;
        let alone = self.pairs(&[one.mutex(name(0))?], ALONE)?;
        figures.push(alone.figure("uncontended", "lock and unlock, one thread"));
        figures.push(Figure::of("lock", "  lock", &alone.lock));
        figures.push(Figure::of("unlock", "  unlock", &alone.unlock));

        progress.show(2, "many threads, each its own lock");
        let locks = (0..threads).map(|number| one.mutex(name(number)));
        let spread = self.pairs(&locks.collect::<Result<Vec<_>, _>>()?, SPREAD)?;
        figures.push(spread.figure("threads", &format!("{threads} threads, each its own lock")));

        progress.show(3, "many threads, one lock");
        let locks = (0..threads).map(|_| one.mutex(name(0)));
        let contended = self.pairs(&locks.collect::<Result<Vec<_>, _>>()?, CONTENDED)?;
        let what = format!("{threads} threads of one client, one lock");
        figures.push(contended.figure("contended", &what));

        progress.show(4, "two clients, one lock");
        let locks = (0..threads.max(2)).map(|at| self.clients[at % 2].mutex(name(0)));
        let shared = self.pairs(&locks.collect::<Result<Vec<_>, _>>()?, CONTENDED)?;
        let what = format!("{} threads of two clients, one lock", threads.max(2));
        figures.push(shared.figure("two_clients", &what));

        progress.show(5, "from one client to the other");
        // Long enough for the other client to find the lock busy, to subscribe, and to check the
        // lock again.
        let pause = alone.cycle.quantile(0.5).unwrap_or_default() * 3 + Duration::from_millis(5);
        let locks = [one.mutex(name(0))?, other.mutex(name(0))?];
        let times = work::hand_off(&locks, pause, self.until(HAND_OFF), self.stop)?;
        figures.push(Figure::of(
            "hand_off",
            "release to the other client's grant",
            &times,
        ));

        if self.arguments.held > 0 && one.abilities().renewable {
            progress.show(6, "held locks");
            figures.push(self.held()?);
        }
        Ok(figures)
    }

    fn pairs(&self, locks: &[distlock::Mutex], part: f64) -> Result<Pairs, Failure> {
        Ok(work::pairs(locks, self.until(part), u64::MAX, self.stop)?)
    }

    /// Measures how often many held locks are renewed.
    fn held(&self) -> Result<Figure, Failure> {
        let counters = Arc::new(Counters::new());
        let config = self.config.clone().with_tokens(TokenPolicy::Off);
        let client = distlock::builder()
            .config(config)
            .events(counters.clone())
            .connect()?;
        let until = self.until(HELD);
        let names = (0..self.arguments.held).map(|number| format!("{}:held:{number}", self.base));
        let names: Vec<_> = names.collect();
        let threads = self.arguments.threads;
        let Held {
            count,
            renewed,
            lost,
            time,
        } = work::hold(&client, &names, threads, until, &counters, self.stop)?;
        client.wait_for_cleanup(self.config.command_timeout())?;
        let lost = if lost == 0 {
            String::new()
        } else {
            format!(", {lost} of them LOST")
        };
        let what = format!("renewals of {count} held locks{lost}");
        let figure = Figure::of("held", &what, &Times::default());
        Ok(match renewed {
            // The time was too short for a renewal.
            0 => figure,
            _ => figure.rate(renewed, time),
        })
    }
}

/// Shows on a terminal which workload is measured.
struct Progress {
    is_shown: bool,
}

impl Progress {
    fn new() -> Self {
        Self {
            is_shown: io::stderr().is_terminal(),
        }
    }

    fn show(&self, number: u8, what: &str) {
        if self.is_shown {
            let _closed = write!(io::stderr(), "\r\x1b[Kmeasuring {number} of 6: {what}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown {
            let _closed = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
