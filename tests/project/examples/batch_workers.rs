//! The example `batch_workers`: its sales are exact with the lock and wrong without it, and a
//! signal stops it cleanly.

use super::{SOON, catches, children_of, only_error, processes_with, signal};
use distlock_tests::child::{Child, Example};
use distlock_tests::process::RedisServer;
use distlock_tests::queue;
use distlock_tests::time::{always, eventually};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// The bound on a run of some thousand jobs on a busy machine, because each job yields the
/// processor.
const A_RUN: Duration = Duration::from_secs(300);

fn start(arguments: &[&str]) -> Child {
    Example::new("batch_workers").args(arguments).spawn()
}

/// Runs the example to its end, and returns exit code and summary. Standard error must be empty: no
/// panic, and no progress bar without a terminal.
#[track_caller]
fn run(arguments: &[&str]) -> (i32, String) {
    let mut child = start(arguments);
    let code = child.wait_exit(A_RUN);
    let output = child.output();
    assert_eq!(child.errors(), "", "{output}");
    (code, output)
}

fn counter() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("counter");
    (directory, file)
}

fn number_in(file: &Path) -> u64 {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

#[test]
fn thirty_two_threads_in_memory_are_exact() {
    let (code, output) = run(&["--workers", "32", "--jobs", "3000"]);
    assert_eq!(code, 0, "{output}");
    for part in [
        "sold     3000 of 3000 jobs, 1 to 3000",
        "twice    none",
        "rose by 3000",
        "Exact",
    ] {
        assert!(output.contains(part), "{part}: {output}");
    }
    assert!(output.contains("tokens   grew with every sale"), "{output}");
}

/// Sales are exact with formats without owners, too, if no client holds the lock beyond the lease.
#[test]
fn every_format_is_exact_within_its_leases() {
    let server = RedisServer::start();
    for format in [
        "token",
        "token&tokens=off",
        "plain,poll=5ms",
        "plain,commands,poll=5ms",
        "timestamp,poll=5ms",
        "timestamp,takeover=delete,poll=5ms",
        "timestamp,float,poll=5ms",
        "timestamp,float,release=compare,poll=5ms",
        "counter,poll=5ms",
        "counter,multi,poll=5ms",
        "counter,lua,poll=5ms",
    ] {
        let url = format!("{}?format={format}&lease=60s", server.url());
        let (code, output) = run(&[
            "--url",
            &url,
            "--processes",
            "2",
            "--workers",
            "4",
            "--jobs",
            "400",
        ]);
        assert_eq!(code, 0, "{format}: {output}");
        for part in [
            "sold     400 of 400 jobs, 1 to 400",
            "twice    none",
            "rose by 400",
            "Exact",
        ] {
            assert!(output.contains(part), "{format}: {part}: {output}");
        }
        server.probe().command(&["FLUSHALL"]);
    }
}

#[test]
fn four_processes_of_eight_threads_are_exact_on_a_server() {
    let server = RedisServer::start();
    let (code, output) = run(&[
        "--url",
        &server.url(),
        "--processes",
        "4",
        "--workers",
        "8",
        "--jobs",
        "3000",
    ]);
    assert_eq!(code, 0, "{output}");
    for part in [
        "sold     3000 of 3000 jobs, 1 to 3000",
        "twice    none",
        "rose by 3000",
        "Exact",
    ] {
        assert!(output.contains(part), "{part}: {output}");
    }
    assert!(output.contains("tokens   grew with every sale"), "{output}");
    assert_eq!(
        server.probe().keys("*"),
        ["redisson_lock_token:{batch_workers}"]
    );
}

#[test]
fn run_without_lock_oversells() {
    for processes in ["1", "2"] {
        let (code, output) = run(&["--unsafe", "--processes", processes]);
        assert_eq!(code, 1, "{output}");
        assert!(
            output.contains("NOT EXACT:") && output.contains("was sold"),
            "{output}"
        );
    }
}

#[test]
fn several_runs_share_a_counter() {
    let server = RedisServer::start();
    let (_directory, file) = counter();
    let shared = [
        "--url",
        &server.url(),
        "--counter",
        file.to_str().unwrap(),
        "--name",
        "shared",
    ];
    let runs =
        [500, 700, 900].map(|jobs| start(&[&shared[..], &["--jobs", &jobs.to_string()]].concat()));
    for mut child in runs {
        let code = child.wait_exit(A_RUN);
        assert_eq!(code, 0, "{}{}", child.output(), child.errors());
    }
    assert_eq!(number_in(&file), 2_100);
    let (code, output) = run(&[&shared[..], &["--jobs", "10"]].concat());
    assert_eq!(code, 0, "{output}");
    assert!(output.contains("rose by 10, from 2100 to 2110"), "{output}");
}

#[test]
fn counter_set_back_by_another_program_is_detected() {
    let (_directory, file) = counter();
    let mut child = start(&["--jobs", "1000000", "--counter", file.to_str().unwrap()]);
    // Another program, without the lock, sets the counter back. A job that has read the counter
    // before may overwrite that, so the test repeats it until the jobs sell old numbers.
    let mut sold = 0;
    eventually("it sells old numbers", SOON, || {
        let number = number_in(&file);
        if (1..sold).contains(&number) {
            return true;
        }
        if number > 0 {
            sold = number;
            std::fs::write(&file, "0").unwrap();
        }
        false
    });
    child.interrupt();
    assert_eq!(child.wait_exit(SOON), 1);
    assert!(child.output().contains("NOT EXACT:"), "{}", child.output());
}

#[test]
fn sales_are_exact_after_ctrl_c() {
    let (_directory, file) = counter();
    let mut child = start(&[
        "--workers",
        "32",
        "--jobs",
        "1000000",
        "--counter",
        file.to_str().unwrap(),
    ]);
    eventually("it sells", SOON, || number_in(&file) > 100);
    child.interrupt();
    assert_eq!(child.wait_exit(SOON), 130);
    let output = child.output();
    assert!(output.contains("Stopped early, and exact"), "{output}");
    assert!(
        output.contains(&format!("sold     {} of 1000000", number_in(&file))),
        "{output}"
    );
}

/// Signals a run of several processes to stop.
type Stop = fn(&Child);

#[test]
fn interrupted_workers_leave_nothing() {
    let server = RedisServer::start();
    let ways: [(&str, Stop); 2] = [
        ("workers:ctrl-c", Child::interrupt),
        ("workers:terminated", Child::terminate),
    ];
    for (name, stop) in ways {
        let shared = ["--url", &server.url(), "--name", name];
        let mut holder = Example::distlock(&["hold", "--url", &server.url(), name]).spawn();
        holder.expect_event("held", SOON);
        let mut child = start(&[&shared[..], &["--processes", "3"]].concat());
        let mut probe = server.probe();
        eventually("all three wait for the release", SOON, || {
            queue::waiting(&mut probe, name) == 3
        });

        // Without the signal, the run would wait for as long as the holder has the lock.
        stop(&child);
        assert_eq!(child.wait_exit(SOON), 130, "{name}: {}", child.errors());
        let output = child.output();
        assert!(output.contains("sold     0 of 2000 jobs"), "{output}");
        assert!(output.contains("Stopped early, and exact"), "{output}");

        assert_eq!(processes_with(name), 1, "only the holder is left");
        holder.send("release");
        holder.expect_event("released", SOON);
        // The holder's label may be left, too, if its lease was renewed before the workers had
        // started.
        let label = format!("distlock_owner:{{{name}}}");
        eventually("only the counter is left", SOON, || {
            let mut keys = probe.keys(&format!("*{name}*"));
            keys.retain(|key| *key != label);
            keys == [format!("redisson_lock_token:{{{name}}}")]
        });
    }
}

#[test]
fn killed_parent_ends_its_children() {
    let server = RedisServer::start();
    let (_directory, file) = counter();
    let path = file.to_str().unwrap();
    let child = start(&[
        "--url",
        &server.url(),
        "--processes",
        "3",
        "--jobs",
        "1000000",
        "--counter",
        path,
    ]);
    eventually("it sells", SOON, || number_in(&file) > 100);
    eventually("all run", SOON, || processes_with(path) == 4);
    signal(child.id(), Signal::KILL);
    eventually("its children are gone", SOON, || processes_with(path) == 0);
    assert!(
        !server.probe().exists("batch_workers"),
        "they released before they went"
    );
    let sold = number_in(&file);
    always("no worker sells", Duration::from_millis(100), || {
        number_in(&file) == sold
    });
}

#[test]
fn interrupt_of_one_process_stops_all() {
    let server = RedisServer::start();
    let (_directory, file) = counter();
    let path = file.to_str().unwrap();
    let shared = [
        "--url",
        &server.url(),
        "--jobs",
        "1000000",
        "--counter",
        path,
    ];
    let mut child = start(&[&shared[..], &["--processes", "3"]].concat());
    eventually("it sells", SOON, || number_in(&file) > 100);
    // A child that has just been started has no signal handler yet: the signal would kill it.
    let second = eventually("the second child listens", SOON, || {
        children_of(child.id())
            .get(1)
            .copied()
            .filter(|child| catches(*child, Signal::INT))
    });
    signal(second, Signal::INT);
    assert_eq!(child.wait_exit(SOON), 130, "{}", child.errors());
    assert!(
        child.output().contains("Stopped early, and exact"),
        "{}",
        child.output()
    );
}

#[test]
fn killed_child_is_reported() {
    let server = RedisServer::start();
    let (_directory, file) = counter();
    let url = format!("{}?watchdog=3s", server.url());
    let path = file.to_str().unwrap();
    let mut child = start(&[
        "--url",
        &url,
        "--processes",
        "2",
        "--jobs",
        "100000",
        "--counter",
        path,
    ]);
    eventually("it sells", SOON, || number_in(&file) > 100);
    signal(children_of(child.id())[0], Signal::KILL);
    assert_eq!(child.wait_exit(A_RUN), 70, "{}", child.output());
    assert!(
        only_error(&child).contains("did not end well"),
        "{}",
        child.errors()
    );
    assert!(
        child.output().contains("jobs were not done"),
        "{}",
        child.output()
    );
}

#[test]
fn failure_is_one_line_with_exit_code() {
    let (_directory, file) = counter();
    let path = file.to_str().unwrap();
    std::fs::write(&file, "many\n").unwrap();
    let troubles: [(&[&str], i32, &str); 8] = [
        (
            &["--processes", "2"],
            78,
            "2 processes cannot share a lock in memory",
        ),
        (
            &["--url", "nosuch://"],
            78,
            "there is no scheme `nosuch://`",
        ),
        (
            &["--jobs", "many"],
            78,
            "invalid value 'many' for '--jobs <NUMBER>'",
        ),
        (&["--workers", "0"], 78, "0 is not in 1..="),
        (&["--name", "{}x"], 78, "hash tag"),
        (&["--counter", path], 78, "holds no number"),
        (
            &["--counter", "/nonexistent/counter"],
            70,
            "/nonexistent/counter",
        ),
        (&["--url", "redis://127.0.0.1:1"], 69, "Connection refused"),
    ];
    for (arguments, code, what) in troubles {
        let mut child = start(arguments);
        assert_eq!(
            child.wait_exit(SOON),
            code,
            "{arguments:?}: {}",
            child.errors()
        );
        let line = only_error(&child);
        assert!(
            line.starts_with("batch_workers: ") && line.contains(what),
            "{line}"
        );
        assert_eq!(child.output(), "");
    }
}

#[test]
fn lost_store_ends_run_with_sales_so_far() {
    let mut server = RedisServer::start();
    let (_directory, file) = counter();
    let url = format!("{}?outage_limit=300ms", server.url());
    let mut child = start(&[
        "--url",
        &url,
        "--jobs",
        "1000000",
        "--counter",
        file.to_str().unwrap(),
    ]);
    eventually("it sells", SOON, || number_in(&file) > 100);
    server.kill();
    assert_eq!(child.wait_exit(SOON), 69, "{}", child.errors());
    assert!(
        only_error(&child).contains("check that the store is up"),
        "{}",
        child.errors()
    );
    let output = child.output();
    assert!(
        output.contains(&format!("sold     {} of 1000000", number_in(&file))),
        "{output}"
    );
}
