//! The suite: which works there are, and how their columns take turns.

mod chart;
mod child;
mod goals;
mod page;
mod ping;
mod summary;
mod visits;
mod works;

use crate::server::{Counters, Server};
use child::Child;
use serde_json::{Map, Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) use works::{Scale, scripts, works};

/// One table: the same work done by several columns in turns.
pub(crate) struct Work {
    /// Short and without spaces.
    pub(crate) name: String,
    pub(crate) title: String,
    /// The first one is what the others are divided by.
    columns: Vec<Column>,
    /// How long a turn is.
    turn: Duration,
    /// How many turns each column has.
    rounds: usize,
    /// Each turn has a server of its own kind of quiet: only one column's workers exist at a time, and another client
    /// pings meanwhile.
    solo: bool,
    /// What is shown of it, and how it is called.
    metrics: &'static [(&'static str, &'static str)],
}

/// Somebody who does the work.
struct Column {
    name: &'static str,
    program: PathBuf,
    arguments: Vec<String>,
    processes: usize,
}

/// What one turn of one column gave.
type Sample = Map<String, Value>;

/// All samples of one work, in the order of its columns.
pub(crate) struct Measured {
    work: Work,
    samples: Vec<Vec<Sample>>,
}

impl Work {
    /// Lets the columns take turns, and writes each sample to `out` as it comes.
    pub(crate) fn measure(self, server: &Server, out: &mut dyn Write) -> Measured {
        server.flush();
        eprintln!("{}", self.title);
        let mut samples = vec![Vec::new(); self.columns.len()];
        let start = |column: &Column| -> Vec<Child> {
            (0..column.processes)
                .map(|_| Child::start(&column.program, &column.arguments))
                .collect()
        };
        let mut all: Vec<_> =
            if self.solo { Vec::new() } else { self.columns.iter().map(start).collect() };
        // The first turn makes connections, loads scripts and warms caches; it is not counted.
        for round in 0..=self.rounds {
            // Each round begins with another column, so that none always follows the same.
            for index in (0..self.columns.len()).map(|i| (i + round) % self.columns.len()) {
                if self.solo && round == 0 {
                    continue;
                }
                let mut own = if self.solo { start(&self.columns[index]) } else { Vec::new() };
                let children = if self.solo { &mut own } else { &mut all[index] };
                let time = if round == 0 { self.turn / 2 } else { self.turn };
                let mut sample = turn(server, children, time, self.solo);
                // They lock without a script, and the scripts that they use here set nothing: so these are requests.
                if ["rslock", "rlock"].contains(&self.columns[index].name) {
                    add(&mut sample, "requests_each", "sets_each");
                }
                if self.solo {
                    drop(own);
                    server.flush();
                }
                if round > 0 {
                    let head = json!({ "work": self.name, "column": self.columns[index].name, "round": round });
                    let mut line = head.as_object().expect("it is one").clone();
                    line.extend(sample.clone());
                    writeln!(out, "{}", Value::Object(line))
                        .expect("there is room for the samples");
                    samples[index].push(sample);
                }
            }
        }
        Measured { work: self, samples }
    }
}

/// One turn of one column.
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
    let logs: Vec<_> = answers.iter().filter_map(|answer| answer["log"].as_str()).collect();
    if !logs.is_empty() {
        let cycles = sample["cycles"].as_f64().unwrap_or_default();
        visits::add(
            &mut sample,
            &logs.iter().map(|log| Path::new(*log)).collect::<Vec<_>>(),
            cycles,
        );
    }
    if let Some(pings) = pings {
        sample.extend(pings);
    }
    sample
}

/// What all the processes of a column did together, and what each cycle cost.
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
        "sets_each": (after.sets - before.sets) / cycles,
    });
    sample.extend(more.as_object().expect("it is one").clone());
    sample
}

/// All tables, as Markdown.
pub(crate) fn tables(measured: &[Measured], scale: Scale) -> String {
    page::tables(&measured.iter().map(summary::Summary::of).collect::<Vec<_>>(), scale)
}

fn add(sample: &mut Sample, to: &str, from: &str) {
    let figure = |key: &str| sample.get(key).and_then(Value::as_f64).unwrap_or_default();
    let sum = figure(to) + figure(from);
    sample.insert(to.to_owned(), json!(sum));
}

/// Writes the summaries, the chart and the page.
pub(crate) fn publish(measured: &[Measured], scale: Scale, docs: &Path) {
    let summaries: Vec<_> = measured.iter().map(summary::Summary::of).collect();
    let lines: String = summaries.iter().flat_map(|summary| summary.lines()).collect();
    let write = |name: &str, text: &str| {
        std::fs::write(docs.join(name), text).unwrap_or_else(|error| panic!("{name}: {error}"));
    };
    write("performance.jsonl", &lines);
    write("performance.svg", &chart::draw(&summaries));
    page::rewrite(&docs.join("PERFORMANCE.md"), &page::tables(&summaries, scale));
}
