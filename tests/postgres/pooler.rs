//! PgBouncer in front of the server.

use distlock_tests::lifeline::LifeLine;
use distlock_tests::postgres::PostgresServer;
use distlock_tests::time::{Stopwatch, eventually, let_pass, ms};
use std::fs;
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(20);

/// A pooler in front of a server.
struct Pooler {
    port: u16,
    line: Option<LifeLine>,
    process: Child,
    _files: TempDir,
}

impl Pooler {
    fn start(server: &PostgresServer, mode: &str) -> Self {
        let files = tempfile::tempdir().unwrap();
        let folder = files.path().display();
        let port = distlock_tests::process::free_port();
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr=127.0.0.1\n\
             listen_port={port}\nunix_socket_dir=\nauth_type=any\npool_mode={mode}\n\
             default_pool_size=20\nmax_client_conn=200\nlogfile={folder}/log\n",
            server.port()
        );
        fs::write(
            files.path().join("ini"),
            settings.replace("* =", "app = user=postgres"),
        )
        .unwrap();
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid",
            "postgres",
            "--regid",
            "postgres",
            "--clear-groups",
        ]);
        let chown = Command::new("chown")
            .args(["-R", "postgres"])
            .arg(files.path())
            .status();
        assert!(chown.unwrap().success());
        let process = command
            .arg("pgbouncer")
            .arg(files.path().join("ini"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("pgbouncer is installed");
        let line = Some(LifeLine::of(&process));
        eventually("the pooler listens", SOON, || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        Self {
            port,
            line,
            process,
            _files: files,
        }
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        self.line = None;
        let _gone = self.process.kill();
        let _reaped = self.process.wait();
    }
}

/// Behind a pooler in transaction mode no notification arrives: waiters poll, and all else works.
#[test]
#[ignore = "needs pgbouncer: tests/run.sh --all"]
fn waiters_behind_a_pooler_poll() {
    let server = PostgresServer::start();
    let pooler = Pooler::start(&server, "transaction");
    let clients = ["", ""].map(|_| distlock::connect(&server.url_at(pooler.port)).unwrap());
    for _ in 0..5 {
        let guard = clients[0].mutex("pooled").unwrap().lock().unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let lock = clients[1].mutex("pooled").unwrap();
                drop(lock.lock().unwrap());
            });
            let_pass(ms(2_500));
            assert!(!waiting.is_finished());
            let watch = Stopwatch::start();
            guard.unlock().unwrap();
            waiting.join().unwrap();
            assert!(watch.elapsed() < ms(1_000), "{:?}", watch.elapsed());
        });
    }
    let [one, two] = [&clients[0], &clients[1]].map(|it| it.semaphore("permits", 2).unwrap());
    let held = one.acquire().unwrap();
    let permits = two.inspect().unwrap().permits.expect("it is in use");
    assert_eq!((permits.free, permits.limit), (1, 2));
    drop(held);
}

#[test]
#[ignore = "needs pgbouncer: tests/run.sh --all"]
fn session_locks_are_refused_behind_a_pooler_in_transaction_mode() {
    let server = PostgresServer::start();
    let modes = [
        ("transaction", true),
        ("transaction\nserver_round_robin=1", true),
        ("session", false),
    ];
    for (mode, is_refused) in modes {
        let pooler = Pooler::start(&server, mode);
        let url = format!("{}?form=session", server.url_at(pooler.port));
        let client = distlock::connect(&url).unwrap();
        let outcome = client.mutex("pooled").unwrap().try_lock();
        match is_refused {
            true => {
                let error = outcome.unwrap_err();
                assert!(error.is_configuration(), "{error}");
                assert!(error.to_string().contains("pooler"), "{error}");
            }
            false => drop(outcome.unwrap().expect("it is free")),
        }
    }
}
