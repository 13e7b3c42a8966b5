//! Proxies that refuse commands at the beginning of a connection that are not essential: the
//! client's name, and the query which server this is.

use distlock::admin::WarningKind;
use distlock::{Client, Event};
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::{Fault, Plan, Proxy};
use distlock_tests::resp::Request;
use distlock_tests::time::{Stopwatch, eventually, let_pass};
use parking_lot::Mutex;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// Refuses these commands with this error; without an error, cuts the connection.
struct Refusing {
    commands: &'static [&'static str],
    error: Option<&'static str>,
}

impl Plan for Refusing {
    fn fate(&self, request: &mut Request) -> Fault {
        if !self.commands.iter().any(|command| request.is(command)) {
            return Fault::Pass;
        }
        match self.error {
            Some(error) => {
                request.be_refused(error);
                Fault::Pass
            }
            None => Fault::Cut,
        }
    }
}

/// The errors of vendors and proxies, and a closed connection.
const ANSWERS: [Option<&str>; 6] = [
    Some("ERR unsupported command 'CLIENT'"),
    Some("unsupported command"),
    Some("ERR unknown command"),
    Some("ERR This instance does not support it, sorry"),
    Some("NOPERM this user has no permissions"),
    None,
];

fn client(url: &str, warnings: &Arc<Mutex<Vec<WarningKind>>>) -> Client {
    let warnings = Arc::clone(warnings);
    let handler = move |event: &Event| {
        if let Event::Warning { kind, .. } = event {
            warnings.lock().push(*kind);
        }
    };
    let builder = distlock::builder()
        .url(url)
        .unwrap()
        .events(Arc::new(handler));
    builder.connect().unwrap()
}

#[test]
fn refused_greeting_costs_no_lock() {
    thread::scope(|scope| {
        for commands in [&["CLIENT"][..], &["INFO"], &["CLIENT", "INFO", "HELLO"]] {
            for error in ANSWERS {
                scope.spawn(move || locks_live_behind(Refusing { commands, error }));
            }
        }
    });
}

/// Checks that, behind such a proxy, a client holds a lock that is renewed, and another client
/// waits for it and gets it.
fn locks_live_behind(refusing: Refusing) {
    let Refusing { commands, error } = refusing;
    let what = format!("{commands:?} {error:?}");
    let server = RedisServer::start();
    let before = server.probe().stat("total_connections_received");
    let proxy = Proxy::new(server.port(), Arc::new(refusing));
    let url = format!("{}?watchdog=3s", proxy.url());
    let warnings = Arc::default();
    let [one, other] = [(); 2].map(|()| client(&url, &warnings));
    let held = one.mutex("it").unwrap().lock().unwrap();
    assert!(
        other.mutex("it").unwrap().try_lock().unwrap().is_none(),
        "{what}"
    );
    let permit = one.semaphore("slots", 1).unwrap().try_acquire().unwrap();
    permit.expect("it is free").unlock().unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let guard = other.mutex("it").unwrap().try_lock_for(LONG).unwrap();
            guard.expect("it comes free").unlock().unwrap();
        });
        let_pass(Duration::from_secs(4));
        assert!(held.verify().unwrap() > Duration::ZERO, "{what}");
        held.unlock().unwrap();
        waits.join().unwrap();
    });
    // A diagnosis needs a user with all rights.
    let operator = distlock::connect(&format!("redis://127.0.0.1:{}", proxy.port())).unwrap();
    operator.diagnose(LONG).unwrap();
    let made = server.probe().stat("total_connections_received") - before;
    assert!(made < 80, "{what}: {made} connections");
    if commands.contains(&"INFO") {
        eventually("it is reported", LONG, || {
            warnings.lock().contains(&WarningKind::UnknownServer)
        });
    }
    let unknown = |kind: &&WarningKind| **kind == WarningKind::UnknownServer;
    let count = warnings.lock().iter().filter(unknown).count();
    assert!(
        count <= 2,
        "{what}: once for each client, and not {count} times"
    );
}

/// The login is essential, unlike the other commands at the beginning of a connection.
#[test]
fn refused_login_is_a_failure_of_the_connection() {
    let server = RedisServer::start();
    let proxy = Proxy::new(
        server.port(),
        Arc::new(Refusing {
            commands: &["AUTH"],
            error: Some("ERR unsupported command"),
        }),
    );
    let client = distlock::connect(&proxy.url()).unwrap();
    let error = client.mutex("it").unwrap().try_lock().unwrap_err();
    let all = format!("{error} {error:?}");
    assert!(
        error.is_unavailable() && all.contains("unsupported command"),
        "{all}"
    );
}

/// Refuses all scripts, as services do that look for literal commands and keys in the text of a
/// script.
struct ChecksScripts;

impl Plan for ChecksScripts {
    fn fate(&self, request: &mut Request) -> Fault {
        if request.is("EVAL") || request.is("EVALSHA") {
            request.be_refused(
                "ERR bad lua script for redis cluster, all the keys that the script uses should \
                 be passed using the KEYS array, and KEYS should not be in expression",
            );
        }
        Fault::Pass
    }
}

/// A lock that could not be released must not be granted.
#[test]
fn service_that_checks_scripts_is_named_and_grants_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::new(server.port(), Arc::new(ChecksScripts));
    for options in [
        "",
        "?format=token&tokens=off",
        "?format=token&tokens=off&joined=off",
        "?joined=off",
        "?tokens=off",
    ] {
        let client = distlock::connect(&format!("{}{options}", proxy.url())).unwrap();
        let errors = [
            client.mutex("it").unwrap().try_lock().err(),
            client.mutex("it").unwrap().lock().err(),
        ];
        for error in errors {
            let error = error.expect("it is refused");
            assert!(error.is_configuration(), "{options}: {error:?}");
            assert!(
                error.to_string().contains("script_check_enable"),
                "{options}: {error}"
            );
        }
        if !options.contains("token&") {
            let shared = client.rw_lock("it").unwrap().read().try_lock().unwrap_err();
            assert!(shared.is_configuration(), "{options}: {shared:?}");
        }
        assert!(!server.probe().exists("it"), "{options}");
    }
}

/// Delays the reply to the first request of a connection.
struct SlowToGreet;

impl Plan for SlowToGreet {
    fn fate(&self, request: &mut Request) -> Fault {
        match request.is("AUTH") {
            true => Fault::DelayReply(Duration::from_millis(2_500)),
            false => Fault::Pass,
        }
    }
}

#[test]
fn slow_greeting_connects_within_the_connect_timeout() {
    let server = RedisServer::start();
    let proxy = Proxy::new(server.port(), Arc::new(SlowToGreet));
    for settings in ["", "&command_timeout=500ms"] {
        let before = server.probe().stat("total_connections_received");
        let url = format!("{}?connect_timeout=10s{settings}", proxy.url());
        let client = distlock::connect(&url).unwrap();
        let watch = Stopwatch::start();
        let guard = client.mutex("it").unwrap().lock().unwrap();
        assert!(
            watch.elapsed() < Duration::from_secs(10),
            "{:?}",
            watch.elapsed()
        );
        guard.unlock().unwrap();
        let made = server.probe().stat("total_connections_received") - before;
        assert!(made < 12, "{settings}: {made} connections");
    }
}
