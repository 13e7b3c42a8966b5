//! The benchmarks: `cargo run --release -p distlock-benches -- all`. See the README beside this.

#![allow(
    clippy::disallowed_methods,
    reason = "a stopwatch needs no clock that can be set by hand"
)]

mod cluster;
mod instructions;
mod learn;
mod peers;
mod raw;
mod server;
mod suite;
mod worker;

use clap::{Parser, Subcommand};
use peers::Peers;
use server::Server;
use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use suite::{Place, Scale, Work};

#[derive(Parser)]
#[command(about = "What distlock costs, beside a raw socket and its peers")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Measures everything and writes the notes, the page, the chart and the figures.
    All(Options),
    /// Measures what is named, as in `run alone own-8`, and prints it.
    Run {
        /// The beginnings of the names of what is measured.
        works: Vec<String>,
        #[command(flatten)]
        options: Options,
    },
    /// Checks that the raw socket sends what the library sends.
    Check,
    /// Measures scripts on trial: directories with an `acquire.lua` and a `release.lua`.
    Scripts {
        directories: Vec<String>,
        #[command(flatten)]
        options: Options,
    },
    /// Three nodes of a cluster beside one of them: 64 threads, each with its own lock.
    Cluster {
        /// How many turns each has.
        #[arg(long, default_value_t = 20)]
        rounds: usize,
    },
    /// Measures two builds of this program beside each other and prints tables.
    Pairs(suite::Comparison),
    /// Writes the tables of the page and the chart from the recorded figures. Measures nothing.
    Draw {
        #[command(flatten)]
        place: Place,
    },
    /// Counts instructions of the hot paths, with valgrind, and writes them to the notes and the
    /// figures.
    Instructions {
        /// Writes nothing, and fails if a path takes more than 3 % above what is written down.
        #[arg(long)]
        check: bool,
        #[command(flatten)]
        place: Place,
    },
    #[command(hide = true)]
    Worker(worker::Task),
}

#[derive(clap::Args)]
struct Options {
    /// About five minutes instead of an hour.
    #[arg(long)]
    quick: bool,
    /// Without the columns of other crates, which take a while to build.
    #[arg(long)]
    no_peers: bool,
    /// Leaves it to the system which processor the server and the clients run on.
    #[arg(long)]
    no_pin: bool,
    /// Runs the server and the clients before everything else, with a pause as long as each turn
    /// after it: for a machine that is not idle. For root only.
    #[arg(long)]
    first: bool,
    /// Writes also what is not everything: only the tables that were measured are replaced.
    #[arg(long, conflicts_with = "quick")]
    write: bool,
    #[command(flatten)]
    place: Place,
}

fn main() {
    match Arguments::parse().task {
        Task::Worker(task) => worker::run(&task),
        Task::Check => {
            let server = Server::start();
            let (words, most) = learn::check_all(server.port);
            println!("{words}\nand renewals, of {most} locks at a time");
        }
        Task::Instructions { check: true, place } => instructions::check(&place),
        Task::Instructions {
            check: false,
            place,
        } => instructions::write(&place),
        Task::Pairs(comparison) => {
            let server = Server::start();
            server.pin();
            suite::pairs(&comparison, &server, &mut samples().1);
        }
        Task::Draw { place } => suite::draw(&place),
        Task::Cluster { rounds } => cluster::measure(rounds),
        Task::All(options) => measure(&options, |_| true, &[]),
        Task::Run { works, options } => {
            // `held` is all of them, and `held-1000` not that of 10,000.
            let is_called = |work: &Work, name: &str| {
                let rest = work.name.strip_prefix(name);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
            };
            let wanted = |work: &Work| works.iter().any(|name| is_called(work, name));
            measure(&options, wanted, &[]);
        }
        Task::Scripts {
            directories,
            options,
        } => {
            measure(&options, |work| work.name == "scripts", &directories);
        }
    }
}

fn measure(options: &Options, wanted: impl Fn(&Work) -> bool, trials: &[String]) {
    let scale = if options.quick {
        Scale::Quick
    } else {
        Scale::Full
    };
    let no_peers = options.no_peers || !trials.is_empty();
    let peers = if no_peers {
        Peers::NONE
    } else {
        Peers::build()
    };
    let mut server = Server::start();
    if !options.no_pin {
        server.pin();
    }
    if options.first {
        server.go_first();
    }
    learn::check_all(server.port);
    let (path, mut samples) = samples();
    let works = if trials.is_empty() {
        suite::works(server.port, &peers, scale)
    } else {
        vec![suite::scripts(server.port, &peers, trials, scale)]
    };
    let all = works.len();
    let chosen: Vec<_> = works.into_iter().filter(wanted).collect();
    let is_whole = chosen.len() == all && trials.is_empty();
    let measured: Vec<_> = chosen
        .into_iter()
        .map(|work| work.measure(&server, &mut samples))
        .collect();
    println!("{}", suite::tables(&measured, scale));
    if is_whole || options.write {
        suite::publish(&measured, is_whole, scale, &options.place);
    }
    eprintln!("samples: {}", path.display());
}

/// The file to which each sample is written.
fn samples() -> (PathBuf, BufWriter<File>) {
    let path = build_directory().join("samples.jsonl");
    let file = File::create(&path).expect("the build directory is ours");
    (path, BufWriter::new(file))
}

/// Where this program was built.
fn build_directory() -> PathBuf {
    let own = std::env::current_exe().expect("this program is a file");
    own.parent().expect("in a directory").to_owned()
}
