//! Jobs of ShedLock in Java, and ours, on one table.

use distlock::{Client, LockOptions};
use distlock_tests::child::{Child, Example};
use distlock_tests::postgres::PostgresServer;
use distlock_tests::time::{Stopwatch, let_pass, ms};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

/// Builds the program in Java. Returns its class path.
fn built() -> String {
    let here = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/postgres/shedlock"));
    let out = here.join("../../../target/shedlock-jdbc");
    fs::create_dir_all(&out).unwrap();
    let out = out.canonicalize().unwrap();
    let run = |command: &mut Command| {
        let ran = command.current_dir(&here).output().unwrap();
        let text = String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{command:?}: {text}");
    };
    let to = format!("-Dout={}", out.display());
    run(Command::new("mvn").args(["-q", "--batch-mode", &to, "compile"]));
    let libraries = format!("{}/lib/*", out.display());
    let mut compile = Command::new("javac");
    run(compile
        .args(["-cp", &libraries, "-d"])
        .arg(&out)
        .arg("Peer.java"));
    format!("{}:{libraries}", out.display())
}

struct Peer(Child);

impl Peer {
    fn start(classes: &str, server: &PostgresServer) -> Self {
        let url = format!("jdbc:postgresql://127.0.0.1:{}/app", server.port());
        let program = Example::program("java");
        Self(program.args(&["-cp", classes, "Peer", &url]).spawn())
    }

    fn ask(&mut self, line: &str) -> String {
        self.0.send(line);
        self.0
            .expect("an answer", SOON, |it| it.as_str().map(str::to_owned))
    }
}

fn client(server: &PostgresServer, options: &str) -> Client {
    distlock::connect(&format!("{}?form=shedlock&{options}", server.url())).unwrap()
}

#[test]
#[ignore = "needs Maven and Java: tests/run.sh --all"]
fn shedlock_jobs_and_ours_exclude_each_other() {
    let classes = built();
    let server = PostgresServer::start();
    let mut peer = Peer::start(&classes, &server);
    let client = client(&server, "watchdog=3s");
    let lock = client.mutex("job").unwrap();

    // Ours first.
    let guard = lock.try_lock().unwrap().expect("it is free");
    assert_eq!(peer.ask("try job 60000 0"), "busy");
    // Longer than the lease, which is renewed in the table.
    let_pass(ms(4_500));
    assert_eq!(peer.ask("try job 60000 0"), "busy");
    assert!(guard.is_valid());
    let token = guard.fencing_token();
    guard.unlock().unwrap();
    assert_eq!(peer.ask("try job 60000 0"), "held");

    // Theirs: it is shown, and waited for without a notification.
    assert!(lock.try_lock().unwrap().is_none());
    let info = lock.inspect().unwrap();
    assert!(info.holder.is_some(), "{info:?}");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| lock.lock().unwrap().fencing_token());
        let_pass(ms(500));
        assert!(!waiting.is_finished());
        let watch = Stopwatch::start();
        assert_eq!(peer.ask("unlock job"), "done");
        assert!(waiting.join().unwrap() > token, "the tokens of ours grow");
        assert!(watch.elapsed() < ms(1_000), "{:?}", watch.elapsed());
    });

    // A dead holder of theirs is over after its lease; a minimum hold of each side counts.
    assert_eq!(peer.ask("try job 1500 0"), "held");
    let watch = Stopwatch::start();
    let guard = lock.lock().unwrap();
    assert!(
        (ms(900)..ms(3_500)).contains(&watch.elapsed()),
        "{:?}",
        watch.elapsed()
    );
    guard.unlock().unwrap();
    let options = LockOptions::new().at_least(ms(1_500));
    drop(lock.try_lock_with(&options).unwrap().expect("it is free"));
    assert_eq!(peer.ask("try job 60000 0"), "busy");
    let_pass(ms(1_800));
    assert_eq!(peer.ask("try job 60000 2000"), "held");
    assert_eq!(peer.ask("unlock job"), "done");
    assert!(lock.try_lock().unwrap().is_none(), "lockAtLeastFor");
    drop(lock.lock().unwrap());

    // A forced release ends theirs, and their extension then fails.
    assert_eq!(peer.ask("try job 60000 0"), "held");
    assert!(lock.force_unlock().unwrap());
    let guard = lock.try_lock().unwrap().expect("it is free");
    assert_eq!(peer.ask("extend job 60000"), "gone");
    assert!(guard.is_valid());
}

#[test]
#[ignore = "needs Maven and Java: tests/run.sh --all"]
fn no_increment_is_lost_beside_shedlock() {
    const TIMES: usize = 150;
    let classes = built();
    let server = PostgresServer::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("number");
    fs::write(&file, "0").unwrap();
    let mut peers: Vec<_> = (0..2).map(|_| Peer::start(&classes, &server)).collect();
    for peer in &mut peers {
        peer.0.send(&format!("add sum {} {TIMES}", file.display()));
    }
    let clients: Vec<_> = (0..2).map(|_| client(&server, "")).collect();
    thread::scope(|scope| {
        for client in &clients {
            let file = &file;
            scope.spawn(move || {
                let lock = client.mutex("sum").unwrap();
                for _ in 0..TIMES {
                    let guard = lock.lock().unwrap();
                    let number: usize = fs::read_to_string(file).unwrap().parse().unwrap();
                    let_pass(ms(1));
                    fs::write(file, (number + 1).to_string()).unwrap();
                    guard.unlock().unwrap();
                }
            });
        }
    });
    for peer in &mut peers {
        peer.0
            .expect("the end", SOON, |it| (it == "done").then_some(()));
    }
    let sum: usize = fs::read_to_string(&file).unwrap().parse().unwrap();
    assert_eq!(sum, 4 * TIMES);
}
