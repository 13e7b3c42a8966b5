//! The suite of workloads: how their columns take turns, and where the results are written.

mod chart;
mod child;
mod faults;
mod figures;
mod goals;
mod notes;
mod page;
mod pairs;
mod ping;
mod summary;
mod visits;
mod works;

use crate::learn::count_sent;
use crate::server::{Counters, Priority, Server};
use child::Child;
use serde_json::{Map, Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) use pairs::{Comparison, pairs};
pub(crate) use works::{Scale, scripts, works};

/// A workload, whose results are one table: several columns do the same work in turns.
pub(crate) struct Work {
    /// A short name without spaces, for the command line and the figures.
    pub(crate) name: String,
    pub(crate) title: String,
    /// The columns. Ratios are to the first one.
    columns: Vec<Column>,
    /// The names of the columns that were left out on request.
    left_out: Vec<&'static str>,
    /// How long a turn is.
    turn: Duration,
    /// How many turns each column has.
    rounds: usize,
    /// True if only one column's workers exist at a time, and another client pings the server
    /// meanwhile.
    solo: bool,
    /// How the workers run before other processes, if [`Server::go_first`] was called.
    priority: Priority,
    /// The metrics in the table, each with its heading.
    metrics: &'static [(&'static str, &'static str)],
}

/// A row of the table: a program that does the work, and its processes.
struct Column {
    name: &'static str,
    /// `None` if the column was left out.
    program: Option<PathBuf>,
    arguments: Vec<String>,
    processes: usize,
    /// The port of the second half of the processes, if they connect through a slower route.
    far: Option<u16>,
}

/// The columns that lock by a plain `SET`.
const WITHOUT_SCRIPT: [&str; 7] = [
    "ours-bare",
    "ours-bare-drop",
    "rslock",
    "rlock",
    "rlock-sync",
    "redis-py",
    "redsync",
];

/// The workload name of the instruction counts among the figures. They are not measured in turns:
/// see `instructions.rs`.
const INSTRUCTIONS: &str = "instructions";

/// The metric for the commands that clients send per cycle, counted by MONITOR. It is measured only
/// for workloads that show it.
const SENT: &str = "sent_each";

/// The figures of one turn of one column, by metric.
type Sample = Map<String, Value>;

/// A workload and all its samples, in the order of its columns.
pub(crate) struct Measured {
    work: Work,
    samples: Vec<Vec<Sample>>,
}

impl Work {
    /// Lets the columns take turns, and writes the samples to `out` after each round.
    pub(crate) fn measure(self, server: &Server, out: &mut dyn Write) -> Measured {
        server.flush();
        server.prefer(self.priority);
        eprintln!("{}", self.title);
        let mut samples = vec![Vec::new(); self.columns.len()];
        let mut all: Vec<Vec<Child>> = if self.solo {
            Vec::new()
        } else {
            self.columns.iter().map(Column::start).collect()
        };
        // The first turn makes connections, loads scripts and warms caches; it is not counted.
        for children in &mut all {
            turn(server, children, self.turn / 2, self.solo);
        }
        // In a turn of its own: MONITOR slows the server down.
        let sent_each: Vec<f64> = match self.is_counted() {
            true => all
                .iter_mut()
                .map(|it| self.sent_each(server, it))
                .collect(),
            false => Vec::new(),
        };
        for round in 1..=self.rounds {
            let mut fresh = vec![Sample::new(); self.columns.len()];
            // Each round begins with another column, so that no column is always the first.
            for index in (0..self.columns.len()).map(|i| (i + round) % self.columns.len()) {
                fresh[index] = match all.get_mut(index) {
                    Some(children) => turn(server, children, self.turn, self.solo),
                    None => turn(
                        server,
                        &mut self.columns[index].start(),
                        self.turn,
                        self.solo,
                    ),
                };
                if self.solo {
                    server.flush();
                }
            }
            self.complete(&mut fresh);
            for (sample, sent) in fresh.iter_mut().zip(&sent_each) {
                sample.insert(SENT.to_owned(), json!(sent));
            }
            for ((column, samples), sample) in self.columns.iter().zip(&mut samples).zip(fresh) {
                self.record(out, column, round, &sample);
                samples.push(sample);
            }
        }
        Measured {
            work: self,
            samples,
        }
    }

    fn is_counted(&self) -> bool {
        !self.solo && self.metrics.iter().any(|(metric, _)| *metric == SENT)
    }

    /// Returns the number of commands that clients send per cycle.
    fn sent_each(&self, server: &Server, children: &mut [Child]) -> f64 {
        let work = || turn(server, children, self.turn / 2, false);
        let (sample, count) = count_sent(server.port, work);
        count as f64 / figure(&sample, "cycles")
    }

    fn record(&self, out: &mut dyn Write, column: &Column, round: usize, sample: &Sample) {
        let head = json!({ "work": self.name, "column": column.name, "round": round });
        let mut line = sample_of(head);
        line.extend(sample.clone());
        writeln!(out, "{}", Value::Object(line)).expect("there is room for the samples");
    }

    /// Adds the figures that are computed from the samples of all columns of a round.
    fn complete(&self, round: &mut [Sample]) {
        let quiet = self
            .columns
            .iter()
            .position(|column| column.name == "no-lock");
        let quiet = quiet.map(|index| figure(&round[index], "server_s_per_min"));
        for (column, sample) in self.columns.iter().zip(round) {
            // These columns lock by `SET`, and their scripts do not call it: so each `SET` is a
            // request.
            if WITHOUT_SCRIPT.contains(&column.name) {
                let sum = figure(sample, "requests_each") + figure(sample, "sets_each");
                sample.insert("requests_each".to_owned(), json!(sum));
                if sample.contains_key("changes") {
                    visits::per_change(sample);
                }
            }
            // Without the server's time for the pings, which is that of the column without locks.
            if let Some(quiet) = quiet {
                let net = (figure(sample, "server_s_per_min") - quiet).max(0.0);
                sample.insert("server_net_s_per_min".to_owned(), json!(net));
            }
        }
    }
}

impl Column {
    fn start(&self) -> Vec<Child> {
        let program = self
            .program
            .as_ref()
            .expect("a work has no columns without a program");
        let second = |index| index >= self.processes / 2;
        let arguments = |index| match self.far.filter(|_| second(index)) {
            Some(port) => with(&self.arguments, "--port", &port.to_string()),
            None => self.arguments.clone(),
        };
        (0..self.processes)
            .map(|index| Child::start(program, &arguments(index)))
            .collect()
    }
}

/// Returns the arguments with another value of this option.
fn with(arguments: &[String], option: &str, value: &str) -> Vec<String> {
    let mut arguments = arguments.to_vec();
    let at = place_of_value(&arguments, option);
    arguments[at] = value.to_owned();
    arguments
}

/// Returns the index of this option's value among the arguments.
fn place_of_value(arguments: &[String], option: &str) -> usize {
    let at = arguments.iter().position(|it| it == option);
    at.expect("it is given") + 1
}

/// Returns the object in a JSON value, such as the answer of a worker.
fn sample_of(object: Value) -> Sample {
    match object {
        Value::Object(sample) => sample,
        other => panic!("not an object: {other}"),
    }
}

fn figure(sample: &Sample, key: &str) -> f64 {
    sample.get(key).and_then(Value::as_f64).unwrap_or_default()
}

/// Runs one turn of one column.
fn turn(server: &Server, children: &mut [Child], time: Duration, solo: bool) -> Sample {
    let before = server.counters();
    children.iter_mut().for_each(|child| child.begin(time));
    let (answers, pings) = if solo {
        let pings = ping::Pings::start(server.port);
        let answers: Vec<_> = children.iter_mut().map(Child::end).collect();
        (answers, Some(pings.stop()))
    } else {
        (children.iter_mut().map(Child::end).collect(), None)
    };
    let mut sample = derived(&answers, before, server.counters());
    let logs: Vec<_> = answers
        .iter()
        .filter_map(|answer| answer["log"].as_str())
        .collect();
    if !logs.is_empty() {
        visits::add(&mut sample, &logs.iter().map(Path::new).collect::<Vec<_>>());
    }
    if let Some(pings) = pings {
        sample.extend(pings);
        // After the server's counters were read: this request sends commands to the server, too.
        children.iter_mut().for_each(Child::look);
        for found in children.iter_mut().map(Child::end) {
            sample.extend(sample_of(found));
        }
    }
    if server.goes_first {
        std::thread::sleep(time);
    }
    sample
}

/// Returns the sums over all processes of a column, and the costs of each cycle.
fn derived(answers: &[Value], before: Counters, after: Counters) -> Sample {
    let mut sample = Map::new();
    for answer in answers.iter().filter_map(Value::as_object) {
        for (key, value) in answer.iter().filter(|(_, value)| value.is_number()) {
            let sum = sample.get(key).and_then(Value::as_f64).unwrap_or_default();
            sample.insert(key.clone(), json!(sum + value.as_f64().unwrap_or_default()));
        }
    }
    let sum = |key: &str| sample.get(key).and_then(Value::as_f64);
    let seconds = sum("seconds").unwrap_or_default() / answers.len() as f64;
    let cycles = sum("cycles").unwrap_or_default().max(1.0);
    let (cpu, server) = (sum("cpu").unwrap_or_default(), after.cpu - before.cpu);
    let more = json!({
        "seconds": seconds,
        "rate": cycles / seconds,
        "client_us": cpu * 1e6 / cycles,
        "server_us": sum("server_us").unwrap_or(server * 1e6 / cycles),
        "client_s_per_min": cpu * 60.0 / seconds,
        "server_s_per_min": server * 60.0 / seconds,
        "requests_each": (after.requests - before.requests) / cycles,
        "commands_each": (after.commands - before.commands) / cycles,
        "sets_each": (after.sets - before.sets) / cycles,
    });
    sample.extend(sample_of(more));
    sample
}

/// Returns all tables, as Markdown.
pub(crate) fn tables(measured: &[Measured], scale: Scale) -> String {
    notes::tables(
        &measured
            .iter()
            .map(summary::Summary::of)
            .collect::<Vec<_>>(),
        scale,
    )
}

/// Where the results are written.
#[derive(clap::Args)]
pub(crate) struct Place {
    /// The directory of the page, the chart and the figures. Each sample goes to `samples.jsonl` in
    /// the build directory.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs"))]
    docs: PathBuf,
    /// The file for the tables of all workloads.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/NOTES.md"))]
    notes: PathBuf,
}

/// Writes the figures, the notes, the page and the chart. Workloads that were not measured keep
/// their figures, unless the run `is_whole`.
pub(crate) fn publish(measured: &[Measured], is_whole: bool, scale: Scale, place: &Place) {
    let summaries: Vec<_> = measured.iter().map(summary::Summary::of).collect();
    let lines: String = summaries
        .iter()
        .flat_map(|summary| summary.lines())
        .collect();
    let is_ours = |work: &str| {
        work != INSTRUCTIONS && (is_whole || summaries.iter().any(|it| it.work.name == work))
    };
    figures::rewrite(&place.docs, is_ours, &lines);
    if is_whole {
        let tables = notes::tables(&summaries, scale);
        notes::rewrite(&place.notes, notes::MEASURED, &tables);
    } else {
        notes::update(&place.notes, &summaries);
    }
    draw(place);
}

/// Writes the tables of the page and the chart from the recorded figures.
pub(crate) fn draw(place: &Place) {
    let figures = figures::read(&place.docs);
    for (marks, table) in page::TABLES {
        notes::rewrite(&place.docs.join(page::FILE), marks, &table(&figures));
    }
    std::fs::write(place.docs.join("performance.svg"), chart::draw(&figures))
        .unwrap_or_else(|error| panic!("performance.svg: {error}"));
}

/// Writes the instruction counts to the figures and, as a table, to the notes.
pub(crate) fn publish_instructions(counted: &[(&str, u64)], table: &str, place: &Place) {
    let line = |(path, count): &(&str, u64)| {
        let line =
            json!({ "work": INSTRUCTIONS, "column": path, "metric": INSTRUCTIONS, "count": count });
        format!("{line}\n")
    };
    let lines: String = counted.iter().map(line).collect();
    figures::rewrite(&place.docs, |work| work == INSTRUCTIONS, &lines);
    notes::rewrite(&place.notes, notes::COUNTED, table);
}

/// Returns the recorded instruction count of this path.
pub(crate) fn written_instructions(path: &str, place: &Place) -> Option<u64> {
    let lines = figures::read(&place.docs);
    let line = lines
        .iter()
        .find(|l| l["work"] == INSTRUCTIONS && l["column"] == path)?;
    line["count"].as_u64()
}
