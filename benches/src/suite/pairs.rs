//! Compares two builds of this program, with an old and a new version of the library, in turns
//! against one server. Most workloads have a raw loop as a third column; for contended locks, its
//! release grants the lock to the next waiter.

use super::faults::{self, Faults};
use super::notes::short;
use super::summary::{Spread, Summary};
use super::{Column, Measured, Sample, Work, figure, sample_of};
use crate::instructions;
use crate::server::{Priority, Server};
use distance::Distance;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Duration;

// The proxy of the tests, which adds a round trip.
#[allow(dead_code, unreachable_pub, reason = "the tests use more of it")]
#[path = "../../../tests/src/distance.rs"]
mod distance;

/// How the figures are counted.
const EXPLANATION: &str = "\
A figure is the median of the turns. `of raw` and `new/old` are ratios of the first metric, or of \
the one that is named, within a round: median (least - most). `raw` is the direct grant, of this \
program; `any` and `fair` are the orders.
- requests: EVALSHA, EVAL, SUBSCRIBE, UNSUBSCRIBE and PING from clients (INFO commandstats, before \
and after a turn). commands: total_commands_processed, which includes those that scripts call and \
about ten of the measurement in each turn. sent/visit: all commands that clients send, for each \
visit, not only those with a change: counted by MONITOR in one more turn of half the length.
- client us: processor time of all processes of the column, server us: of the server.
- longest wait: from a release to the next entry of the same thread, or to the end of the turn. \
round: the time in which as many entries follow each other as there are threads.
- least/most: the smallest share of a process (or thread), divided by the largest.";

const CONTENDED: &[(&str, &str)] = &[
    ("process_changes_per_s", "changes/s"),
    ("requests_per_change", "requests/change"),
    (super::SENT, "sent/visit"),
    ("commands_per_change", "commands/change"),
    ("client_us_per_change", "client us/change"),
    ("server_us_per_change", "server us/change"),
    ("longest_wait_ms", "longest wait ms"),
    ("longest_of_median_round", "longest/median round"),
    ("process_least_of_most", "least/most"),
];
const HANDOFF: &[(&str, &str)] = &[
    ("handoff_p50_us", "p50 us"),
    ("handoff_p99_us", "p99 us"),
    ("requests_per_process_change", "requests/change"),
    (super::SENT, "sent/visit"),
    ("commands_per_change", "commands/change"),
    ("process_least_of_most", "least/most"),
];
const THREADS: &[(&str, &str)] = &[
    ("process_changes_per_s", "changes of process/s"),
    ("changes_per_s", "changes of thread/s"),
    ("requests_per_process_change", "requests/change of process"),
    ("longest_wait_ms", "longest wait ms"),
    ("process_least_of_most", "least/most process"),
    ("thread_least_of_most", "least/most thread"),
];
const FAR: &[(&str, &str)] = &[
    ("process_changes_per_s", "changes/s"),
    ("second_half_share", "share of the far half"),
    ("process_least_of_most", "least/most"),
    ("longest_wait_ms", "longest wait ms"),
    ("requests_per_change", "requests/change"),
];
const CYCLES: &[(&str, &str)] = &[
    ("rate", "cycles/s"),
    ("client_us", "client us/cycle"),
    ("server_us", "server us/cycle"),
    ("requests_each", "requests/cycle"),
    (super::SENT, "sent/cycle"),
    ("commands_each", "commands/cycle"),
];
const HELD: &[(&str, &str)] = &[
    ("client_s_per_min", "client s/min"),
    ("server_net_s_per_min", "server s/min"),
    ("ping_p99_us", "another's PING p99 us"),
    ("memory", "bytes/lock"),
    ("lost", "lost"),
];
const INSTRUCTIONS: &[(&str, &str)] = &[
    ("lone", "lone lock + unlock"),
    ("joined", "each of 16 joined locks"),
];
const WAITING: &[(&str, &str)] = &[
    ("waiting_requests", "requests"),
    ("waiting_commands", "commands"),
    ("requests_per_minute", "requests/client and minute"),
    ("sent_per_minute", "sent/client and minute"),
    ("waiting_cpu", "client s"),
    ("served_per_s", "then served/s"),
    ("failed", "failed"),
    ("lost", "holder's lock lost"),
];

/// What is compared, and how.
#[derive(clap::Args)]
pub(crate) struct Comparison {
    /// The old build of this program.
    #[arg(long)]
    old: PathBuf,
    /// The new build. With the same program as the old one, the differences are noise.
    #[arg(long)]
    new: PathBuf,
    /// How many turns each column has; some workloads have fewer, and those with short turns more.
    #[arg(long, default_value_t = 4)]
    rounds: usize,
    /// How long the waiting clients wait, in seconds.
    #[arg(long, default_value_t = 60)]
    wait: u64,
    /// How many clients wait.
    #[arg(long, default_value_t = 1_000)]
    waiting: usize,
    /// The beginnings of the names of the workloads to measure: `contended-2` ... `contended-64`,
    /// `handoff-3` `handoff-130`, `threads`, `far-4` `far-50`, `own-1` ... `own-128`, `held-1000`
    /// `held-10000`, `instructions`, `waiting`, `faults-killed` `faults-stopped` `faults-both`. All
    /// by default.
    rows: Vec<String>,
}

struct Maker<'a> {
    port: u16,
    comparison: &'a Comparison,
}

/// Measures the wanted workloads, and prints the table of each as soon as it is measured.
pub(crate) fn pairs(comparison: &Comparison, server: &Server, samples: &mut dyn std::io::Write) {
    println!("{EXPLANATION}");
    let maker = Maker {
        port: server.port,
        comparison,
    };
    let is_wanted = |name: &str| {
        let rows = &comparison.rows;
        rows.is_empty() || rows.iter().any(|row| name.starts_with(row.as_str()))
    };
    let far = [4, 50].map(|millis| {
        let round_trip = Duration::from_millis(millis);
        (millis, Distance::new(server.port, round_trip))
    });
    let mut works: Vec<Work> = [2, 4, 8, 16, 64].map(|it| maker.contended(it)).into();
    works.extend([
        maker.handoff("handoff-3", [2_000, 4_000], 2),
        maker.handoff("handoff-130", [30_000, 230_000], 4),
        maker.threads(),
    ]);
    works.extend(far.iter().map(|(millis, way)| maker.far(*millis, way)));
    works.extend([1, 8, 32, 128].map(|threads| maker.own_locks(threads)));
    works.extend([1_000, 10_000].map(|locks| maker.held(locks)));
    for work in works.into_iter().filter(|work| is_wanted(&work.name)) {
        print(&work.measure(server, samples));
    }
    if is_wanted("instructions") {
        print(&maker.instructions().measure_by(samples, instructions_of));
    }
    if is_wanted("waiting") {
        let turn = |column: &Column| {
            server.flush();
            let mut sample = super::turn(server, &mut column.start(), maker.wait(), false);
            let clients = comparison.waiting as f64;
            for (metric, sum, seconds) in [
                ("requests_per_minute", "waiting_requests", "seconds"),
                ("sent_per_minute", "sent", "sent_seconds"),
            ] {
                let each = figure(&sample, sum) / clients / figure(&sample, seconds) * 60.0;
                sample.insert(metric.to_owned(), json!(each));
            }
            sample
        };
        print(&maker.waiting().measure_by(samples, turn));
    }
    for faults in Faults::ALL {
        let turn = |column: &Column| {
            let sample = faults.turn(server, column);
            server.flush();
            sample
        };
        if is_wanted(faults.name) {
            print(&maker.faults(&faults).measure_by(samples, turn));
        }
    }
}

impl Work {
    /// Lets the columns take turns, each of which is a call of `turn`.
    fn measure_by(
        self,
        out: &mut dyn std::io::Write,
        mut turn: impl FnMut(&Column) -> Sample,
    ) -> Measured {
        eprintln!("{}", self.title);
        let mut samples = vec![Vec::new(); self.columns.len()];
        for round in 1..=self.rounds {
            for (column, samples) in self.columns.iter().zip(&mut samples) {
                let sample = turn(column);
                self.record(out, column, round, &sample);
                samples.push(sample);
            }
        }
        Measured {
            work: self,
            samples,
        }
    }
}

impl Maker<'_> {
    fn wait(&self) -> Duration {
        Duration::from_secs(self.comparison.wait)
    }

    /// Returns a column for each order and version of the library.
    fn versions(
        &self,
        work: &str,
        orders: &[(&str, &str)],
        options: &[(&str, usize)],
    ) -> Vec<Column> {
        let versions = [("old", &self.comparison.old), ("new", &self.comparison.new)];
        let orders = orders
            .iter()
            .flat_map(|order| versions.map(|version| (order, version)));
        let column = |((order, who), (version, program)): (&(&str, &str), (&str, &PathBuf))| {
            let name = format!("{order}{version}").leak();
            self.column(name, program, &[work, who], options)
        };
        orders.map(column).collect()
    }

    fn column(
        &self,
        name: &'static str,
        program: &Path,
        work: &[&str],
        options: &[(&str, usize)],
    ) -> Column {
        let mut arguments: Vec<String> = ["worker"]
            .iter()
            .chain(work)
            .map(|it| (*it).to_owned())
            .collect();
        for (option, value) in [("port", usize::from(self.port))].iter().chain(options) {
            arguments.extend([format!("--{option}"), value.to_string()]);
        }
        // Each column has its own lock, and so its own channel: columns that wait for their turn
        // stay subscribed.
        arguments.extend(["--lock".to_owned(), format!("lock-{name}")]);
        Column {
            name,
            program: Some(program.to_owned()),
            arguments,
            processes: 1,
            far: None,
        }
    }

    /// Returns a column for the raw loop of this program, then those for each order and version.
    fn beside_raw(
        &self,
        raw: [&str; 2],
        orders: &[(&str, &str)],
        options: &[(&str, usize)],
    ) -> Vec<Column> {
        let own = std::env::current_exe().expect("this program is a file");
        let mut columns = vec![self.column("raw", &own, &raw, options)];
        columns.extend(self.versions(raw[0], orders, options));
        columns
    }

    fn work(
        &self,
        name: &str,
        title: String,
        columns: Vec<Column>,
        metrics: &'static [(&str, &str)],
    ) -> Work {
        Work {
            name: name.to_owned(),
            title,
            columns,
            left_out: Vec::new(),
            turn: Duration::from_secs(2),
            rounds: self.comparison.rounds,
            solo: false,
            priority: Priority::Nice,
            metrics,
        }
    }

    /// Returns the columns of a workload in which this many processes want one lock.
    fn contending(&self, processes: usize, options: &[(&str, usize)]) -> Vec<Column> {
        let mut columns = self.beside_raw(["contend", "direct-grant"], &ORDERS, options);
        columns
            .iter_mut()
            .for_each(|column| column.processes = processes);
        columns
    }

    fn contended(&self, processes: usize) -> Work {
        let name = format!("contended-{processes}");
        let title = format!("One lock, {processes} processes of one thread");
        let work = self.work(&name, title, self.contending(processes, &[]), CONTENDED);
        // With more processes, a round of visits takes about a second, too long for such a turn.
        if processes > 16 {
            return work;
        }
        Work {
            turn: Duration::from_secs(1),
            rounds: 2 * work.rounds,
            ..work
        }
    }

    fn handoff(&self, name: &str, [least, most]: [usize; 2], seconds: u64) -> Work {
        let options = [("hold", least), ("hold-most", most)];
        let [least, most] = [least, most].map(|micros| micros / 1_000);
        let title =
            format!("From a release to the next entry, 8 processes, holds of {least} to {most} ms");
        let turn = Duration::from_secs(seconds);
        let work = self.work(name, title, self.contending(8, &options), HANDOFF);
        Work { turn, ..work }
    }

    fn threads(&self) -> Work {
        let title = "One lock, 4 processes of 8 threads".to_owned();
        let columns = self.contending(4, &[("threads", 8)]);
        self.work("threads", title, columns, THREADS)
    }

    fn far(&self, millis: u64, way: &Distance) -> Work {
        let title =
            format!("One lock, 8 processes, four of them with {millis} ms more of a round trip");
        let mut columns = self.contending(8, &[]);
        columns
            .iter_mut()
            .for_each(|column| column.far = Some(way.port()));
        let work = self.work(&format!("far-{millis}"), title, columns, FAR);
        Work {
            turn: Duration::from_secs(4),
            ..work
        }
    }

    fn own_locks(&self, threads: usize) -> Work {
        let columns = self.beside_raw(["cycles", "raw"], &[("", "ours")], &[("threads", threads)]);
        let title = format!("Lock and unlock, {threads} threads, each with its own lock");
        let work = self.work(&format!("own-{threads}"), title, columns, CYCLES);
        Work {
            turn: Duration::from_millis(500),
            rounds: 3 * self.comparison.rounds,
            priority: Priority::RealTime,
            ..work
        }
    }

    fn held(&self, locks: usize) -> Work {
        let options = [("locks", locks), ("lease", 6_000)];
        let mut columns = self.beside_raw(["hold", "no-lock"], &[("", "ours")], &options);
        columns[0].name = "no-lock";
        let title = format!("{locks} held locks, lease 6 s");
        let work = self.work(&format!("held-{locks}"), title, columns, HELD);
        Work {
            turn: Duration::from_secs(6),
            rounds: self.comparison.rounds.div_ceil(2),
            solo: true,
            priority: Priority::RealTime,
            ..work
        }
    }

    fn instructions(&self) -> Work {
        let title = "Instructions of the server, counted by valgrind".to_owned();
        // Only the programs of the columns are used: `instructions_of` passes its own arguments.
        let columns = self.versions("", &[("", "")], &[]);
        let work = self.work("instructions", title, columns, INSTRUCTIONS);
        Work { rounds: 1, ..work }
    }

    fn waiting(&self) -> Work {
        let Comparison { waiting, wait, .. } = self.comparison;
        let columns = self.versions("waiting", &ORDERS, &[("threads", *waiting)]);
        let title = format!("{waiting} clients that wait for one held lock for {wait} s");
        let work = self.work("waiting", title, columns, WAITING);
        Work { rounds: 1, ..work }
    }

    fn faults(&self, faults: &Faults) -> Work {
        let options = [("hold", 2_000), ("lease", faults::LEASE_MILLIS)];
        let mut columns = self.versions("faults", &ORDERS, &options);
        for column in &mut columns {
            column.processes = faults::PROCESSES;
        }
        let work = self.work(faults.name, faults.title(), columns, faults::METRICS);
        Work {
            rounds: self.comparison.rounds.div_ceil(2),
            ..work
        }
    }
}

/// The orders: the prefix of a column's name, and the name of its worker.
const ORDERS: [(&str, &str); 2] = [("any-", "ours"), ("fair-", "ours-fair")];

fn instructions_of(column: &Column) -> Sample {
    let program = column.program.as_deref().expect("it is there");
    let lone = instructions::of_server(program, &["cycles", "ours"]);
    let joined = instructions::of_server(program, &["scripts", "ours-joined-16"]) / 16;
    sample_of(json!({ "lone": lone, "joined": joined }))
}

fn print(measured: &Measured) {
    let summary = Summary::of(measured);
    let work = summary.work;
    let metrics = work.metrics;
    println!(
        "\n## {}: {}\n\n{} rounds.\n",
        work.name, work.title, work.rounds
    );
    let first = metrics[0].0;
    let has_raw = work.columns[0].name == "raw";
    let heads = metrics.iter().map(|(_, head)| (*head).to_owned());
    print_row("", heads, "of raw");
    print_row("---", metrics.iter().map(|_| "---".to_owned()), "---");
    for column in summary.columns() {
        let figure = |(metric, _): &(&str, &str)| {
            let spread = summary.figure(column, metric);
            spread.map_or("-".to_owned(), |spread| short(spread.median))
        };
        let of_raw = summary.ratio(column, "raw", first).filter(|_| has_raw);
        let figures = metrics.iter().map(figure);
        print_row(column, figures, &ratio(of_raw));
    }
    for new in summary.columns() {
        let Some(order) = new.strip_suffix("new") else {
            continue;
        };
        let old = format!("{order}old");
        let ratios = metrics
            .iter()
            .map(|(metric, _)| ratio(summary.ratio(new, &old, metric)));
        print_row(&format!("{order}new/old"), ratios, "");
    }
}

/// Prints a row of a Markdown table: its name, a cell for each metric, and the last cell.
fn print_row(name: &str, cells: impl Iterator<Item = String>, last: &str) {
    let cells: Vec<_> = cells.collect();
    println!("| {name} | {} | {last} |", cells.join(" | "));
}

fn ratio(spread: Option<Spread>) -> String {
    spread.map_or("-".to_owned(), |it| {
        let [median, least, most] = [it.median, it.least, it.most].map(short);
        format!("{median} ({least} - {most})")
    })
}
