//! The benchmarks: `cargo run --release -p distlock-benches -- all`. See `benches/README.md`.

#![allow(
    clippy::disallowed_methods,
    reason = "a stopwatch needs no clock that can be set by hand"
)]

mod cluster;
mod instructions;
mod learn;
mod own_pool;
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
    /// Measures the named workloads, as in `run alone own-8`, and prints their tables.
    Run {
        /// The names of workloads; `held` stands for all whose names begin with `held-`.
        works: Vec<String>,
        #[command(flatten)]
        options: Options,
    },
    /// Checks that the raw socket sends what the library sends.
    Check,
    /// Measures other scripts: each directory has an `acquire.lua` and a `release.lua`.
    Scripts {
        directories: Vec<String>,
        #[command(flatten)]
        options: Options,
    },
    /// Compares three nodes of a cluster with one of them: 64 threads, each with its own lock.
    Cluster {
        /// How many turns the three nodes and the one node have each.
        #[arg(long, default_value_t = 20)]
        rounds: usize,
    },
    /// Compares locks over an application's own pool with our own connections and with a bare
    /// `SET NX PX` and script on the pool: 1, 8 and 32 threads, each with its own lock.
    OwnPool {
        /// How many turns each has.
        #[arg(long, default_value_t = 9)]
        rounds: usize,
    },
    /// Compares two builds of this program and prints tables.
    Pairs(suite::Comparison),
    /// Writes the tables of the page and the chart from the recorded figures. Measures nothing.
    Draw {
        #[command(flatten)]
        place: Place,
    },
    /// Counts instructions of the hot paths, with valgrind, and writes them to the notes and the
    /// figures.
    Instructions {
        /// Writes nothing, and fails if a count is more than 3 % above the recorded one.
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
    /// Takes about five minutes instead of an hour: fewer rounds, fewer locks.
    #[arg(long)]
    quick: bool,
    /// Leaves out the columns of other crates and other languages, which take a while to build.
    #[arg(long)]
    no_peers: bool,
    /// Leaves it to the system which processor the server and the clients run on.
    #[arg(long)]
    no_pin: bool,
    /// Gives the server and the clients priority over all other processes, for a machine that is
    /// not idle. A pause as long as the turn follows each turn. For root only.
    #[arg(long)]
    first: bool,
    /// Writes the results even if not all workloads are measured, and replaces only their tables.
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
        Task::OwnPool { rounds } => own_pool::measure(rounds),
        Task::All(options) => measure(&options, |_| true, &[]),
        Task::Run { works, options } => {
            // `held` means all held locks, but `held-1000` must not include `held-10000`.
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

/// Creates the file to which each sample is written, and returns its path and a writer.
fn samples() -> (PathBuf, BufWriter<File>) {
    let path = build_directory().join("samples.jsonl");
    let file = File::create(&path).expect("the build directory is ours");
    (path, BufWriter::new(file))
}

/// Returns the directory that contains this program.
fn build_directory() -> PathBuf {
    let own = std::env::current_exe().expect("this program is a file");
    own.parent().expect("in a directory").to_owned()
}
