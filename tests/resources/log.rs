//! Secrets are in no log, not even at the finest level: neither in records and spans, nor in
//! reports of panics. The test needs a process of its own, because a log's subscriber is the
//! process's.

use distlock_tests::log::Log;
use distlock_tests::own_process::alone;
use distlock_tests::process::{RedisServer, free_port};
use distlock_tests::time::eventually;
use parking_lot::Mutex;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(20);
const SECRET: &str = "pl4nted-s3cret";

#[test]
fn planted_password_is_in_no_log_and_no_panic() {
    alone("log::planted_password_is_in_no_log_and_no_panic", || {
        let log = Log::default();
        let writer = log.clone();
        tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
            .with_ansi(false)
            .with_span_events(tracing_subscriber::fmt::format::FmtSpan::FULL)
            .with_writer(move || writer.clone())
            .init();
        let mut server = RedisServer::start();
        server.probe().command(&[
            "ACL",
            "SETUSER",
            "me",
            "on",
            &format!(">{SECRET}"),
            "~*",
            "&*",
            "+@all",
        ]);
        let options = "command_timeout=500ms&watchdog=2s&outage_limit=500ms";
        let client = |user: &str, port: u16| {
            distlock::connect(&format!(
                "redis://{user}:{SECRET}@127.0.0.1:{port}?{options}"
            ))
            .unwrap()
        };
        let told = |record: &str| eventually(record, LONG, || log.text().contains(record));

        // Normal use, then an outage: a loss, a failed renewal and a failed release.
        let good = client("me", server.port());
        let lock = good.mutex("x").unwrap();
        lock.lock().unwrap().unlock().unwrap();
        let (held, lost) = (
            good.owned_mutex("y").unwrap().lock().unwrap(),
            lock.lock().unwrap(),
        );
        told("renewed");
        server.kill();
        told("a renewal failed");
        assert!(held.unlock().is_err());
        told("a release failed");
        told("lost");
        drop(lost);

        // Refused connections, and the panics of a program that unwraps the errors.
        server.restart();
        let hook = take_hook();
        let panics = Mutex::new(log.clone());
        set_hook(Box::new(move |panic| {
            writeln!(panics.lock(), "{panic}").unwrap();
        }));
        let old = RedisServer::start_with(&["--rename-command", "AUTH", ""]);
        let refused = [
            ("nobody", server.port()),
            ("me", old.port()),
            ("me", free_port()),
        ];
        for (user, port) in refused {
            let client = client(user, port);
            let lock = client.mutex("z").unwrap();
            let careless = AssertUnwindSafe(|| drop(lock.try_lock().unwrap()));
            assert!(catch_unwind(careless).is_err());
        }
        set_hook(hook);
        told("panicked");
        let text = log.text();
        let line = text.lines().find(|line| line.contains(SECRET));
        assert!(line.is_none(), "{line:?}");
        println!("{} lines, and it is in none", text.lines().count());
    });
}
