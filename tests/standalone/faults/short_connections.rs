//! Connections that are closed again and again as soon as they seem to work.

use distlock::Event;
use distlock::admin::WarningKind;
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::{Fault, Plan, Proxy};
use distlock_tests::redis::client;
use distlock_tests::resp::{Kind, Request};
use distlock_tests::time::{eventually, let_pass};
use parking_lot::Mutex;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// Closes each connection after the reply to this command.
struct CloseBehind(&'static str);

impl Plan for CloseBehind {
    fn fate(&self, request: &mut Request) -> Fault {
        if request.is(self.0) {
            Fault::CloseAfter
        } else {
            Fault::Pass
        }
    }
}

#[test]
fn subscriptions_cut_once_confirmed_cost_few_connections_and_a_warning() {
    let server = RedisServer::start();
    let proxy = Proxy::new(server.port(), Arc::new(CloseBehind("SUBSCRIBE")));
    let warnings = Arc::<Mutex<Vec<String>>>::default();
    let told = Arc::clone(&warnings);
    let handler = move |event: &Event| {
        if let Event::Warning {
            kind: WarningKind::ShortConnections,
            message,
            ..
        } = event
        {
            told.lock().push(message.clone());
        }
    };
    let waiting = distlock::builder()
        .url(&proxy.url())
        .unwrap()
        .events(Arc::new(handler));
    let waiting = waiting.connect().unwrap().mutex("a").unwrap();
    let held = client(&server, "").mutex("a").unwrap().lock().unwrap();
    let cut = || proxy.count(Kind::Other, Fault::CloseAfter);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| waiting.lock().unwrap().unlock());
        eventually("there is a warning", LONG, || !warnings.lock().is_empty());
        let before = cut();
        let_pass(Duration::from_secs(2));
        let later = cut() - before;
        println!("{before} connections before the warning, {later} in 2 s after it");
        // The client pauses for 160 ms at least, and doubles the pause up to a second.
        assert!(
            before < 10 && later < 10,
            "{before} connections, and {later} later"
        );
        held.unlock().unwrap();
        waiter.join().unwrap().unwrap();
    });
    let warnings = warnings.lock();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let server = format!("127.0.0.1:{}", proxy.port());
    assert!(
        warnings[0].contains(&server) && warnings[0].contains("firewall"),
        "{warnings:?}"
    );
}
