//! Servers that refuse to publish or to subscribe: waiters poll, and the client warns once.

use distlock::admin::WarningKind;
use distlock::{Client, Event};
use distlock_tests::process::RedisServer;
use distlock_tests::time::{eventually, within};
use parking_lot::Mutex;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
/// Far longer than [`LONG`]: a waiter that is not notified and does not poll is too late.
const LEASE: &str = "watchdog=10m&tracking=off";

/// The warnings of a client.
type Warned = Arc<Mutex<Vec<(WarningKind, String)>>>;

/// Connects a client to which the server reports no changes of keys, so that its waiters must poll.
/// Records its warnings.
fn client(url: &str) -> (Client, Warned) {
    let warned = Warned::default();
    let heard = Arc::clone(&warned);
    let handler = move |event: &Event| {
        if let Event::Warning { kind, message, .. } = event {
            heard.lock().push((*kind, message.clone()));
        }
    };
    let url = if url.contains('?') {
        url.to_owned()
    } else {
        format!("{url}?")
    };
    let client = distlock::builder().url(&format!("{url}{LEASE}")).unwrap();
    (client.events(Arc::new(handler)).connect().unwrap(), warned)
}

fn told(warned: &Warned, kind: WarningKind) -> Vec<String> {
    let warned = warned.lock();
    warned
        .iter()
        .filter(|(told, _)| *told == kind)
        .map(|(_, message)| message.clone())
        .collect()
}

/// Passes a lock to and fro between two clients.
fn pass(one: &Client, other: &Client, times: usize) {
    let clients = [one, other];
    for turn in 0..times {
        let [holder, waiter] = [clients[turn % 2], clients[(turn + 1) % 2]];
        let guard = within(LONG, || holder.mutex("x").unwrap().lock().unwrap());
        thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let lock = waiter.mutex("x").unwrap();
                within(LONG, || lock.lock().unwrap().unlock().unwrap());
            });
            eventually("it waits", LONG, || waiter.queue_length("x").unwrap() == 1);
            guard.unlock().unwrap();
            waits.join().unwrap();
        });
    }
    // A dropped guard frees the lock, too.
    drop(one.mutex("x").unwrap().lock().unwrap());
    within(LONG, || {
        other.mutex("x").unwrap().lock().unwrap().unlock().unwrap();
    });
}

const USER: [&str; 9] = [
    "ACL", "SETUSER", "me", "reset", "on", "nopass", "~*", "&*", "+@all",
];

#[test]
fn locks_are_freed_and_passed_on_without_publishing() {
    for rule in ["-publish", "renamed"] {
        let server = if rule == "renamed" {
            RedisServer::start_with(&["--rename-command", "PUBLISH", ""])
        } else {
            let server = RedisServer::start();
            server.probe().command(&[&USER[..], &[rule]].concat());
            server
        };
        let url = server.url_as("me");
        if rule == "renamed" {
            server.probe().command(&USER);
        }
        let [(one, warned), (other, _)] = [client(&url), client(&url)];
        pass(&one, &other, 4);
        eventually("it is told", LONG, || {
            !told(&warned, WarningKind::NotPublished).is_empty()
        });
        let messages = told(&warned, WarningKind::NotPublished);
        assert_eq!(messages.len(), 1, "{messages:?}");
        let cause = if rule == "renamed" {
            "renamed or disabled"
        } else {
            "+publish`"
        };
        assert!(messages[0].contains(cause), "{messages:?}");
        assert!(told(&warned, WarningKind::NotSubscribed).is_empty());
    }
}

#[test]
fn locks_are_passed_on_without_subscriptions() {
    for (rule, cause) in [
        ("-subscribe", "+subscribe`"),
        ("renamed", "renamed or disabled"),
    ] {
        let server = if rule == "renamed" {
            RedisServer::start_with(&["--rename-command", "SUBSCRIBE", ""])
        } else {
            RedisServer::start()
        };
        let rules = if rule == "renamed" { "+@all" } else { rule };
        server.probe().command(&[&USER[..], &[rules]].concat());
        let [(one, warned), (other, _)] = [(); 2].map(|()| client(&server.url_as("me")));
        let held = other.mutex("x").unwrap().lock().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| one.mutex("x").unwrap().lock().unwrap().unlock().unwrap());
            let is_told = || !told(&warned, WarningKind::NotSubscribed).is_empty();
            eventually("the waiter is told", LONG, is_told);
            held.unlock().unwrap();
        });
        pass(&one, &other, 4);
        let messages = told(&warned, WarningKind::NotSubscribed);
        assert_eq!(messages.len(), 1, "{messages:?}");
        assert!(messages[0].contains(cause), "{messages:?}");
    }
}

/// The lock is freed without a message, and the warning names the rule for the channel of the
/// format.
#[test]
fn missing_channel_is_named_as_in_the_format() {
    let server = RedisServer::start();
    server
        .probe()
        .command(&[&USER[..], &["resetchannels"]].concat());
    for (options, channel) in [
        ("format=token", "&distlock_lock__channel:*`"),
        ("format=redisson", "&redisson_lock__channel:*`"),
        (
            "format=token,wakes=spring-integration&prefix=registry:",
            "&registry-channel:*`",
        ),
    ] {
        let (client, warned) = client(&format!("{}?{options}&", server.url_as("me")));
        client.mutex("x").unwrap().lock().unwrap().unlock().unwrap();
        assert!(server.probe().keys("*x").is_empty(), "{options}");
        eventually("it is told", LONG, || {
            !told(&warned, WarningKind::NotPublished).is_empty()
        });
        let messages = told(&warned, WarningKind::NotPublished);
        assert!(messages[0].contains(channel), "{options}: {messages:?}");
    }
}

#[test]
fn restored_publish_right_is_used_and_its_loss_warned_anew() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let tell = |rule| server.probe().command(&[&USER[..], &[rule]].concat());
    tell("-publish");
    let (client, warned) = client(&server.url_as("me"));
    let lock = client.mutex("x").unwrap();
    for times in 1..=2 {
        tell("-publish");
        lock.lock().unwrap().unlock().unwrap();
        lock.lock().unwrap().unlock().unwrap();
        eventually("it is told", LONG, || {
            told(&warned, WarningKind::NotPublished).len() == times
        });
        tell("+publish");
        let published = probe.command_calls("publish");
        lock.lock().unwrap().unlock().unwrap();
        assert_eq!(probe.command_calls("publish"), published + 1);
    }
}

/// An ACL rule may allow one channel only: that releases are published there must not end the
/// warnings about other channels.
#[test]
fn each_cause_of_refused_publishing_is_warned_of_once() {
    let server = RedisServer::start();
    let (one, warned) = client(&server.url_as("me"));
    let only_a = ["resetchannels", "&*{a}*"];
    let rules = [
        (&only_a[..], "&redisson_lock__channel:*`"),
        (&["-publish"], "+publish`"),
    ];
    for (rule, _) in rules {
        server.probe().command(&[&USER[..], rule].concat());
        for name in ["a", "b", "c"].repeat(3) {
            one.mutex(name).unwrap().lock().unwrap().unlock().unwrap();
        }
    }
    let is_told = || told(&warned, WarningKind::NotPublished);
    let (_, last) = rules[1];
    eventually("it is told", LONG, || {
        is_told().iter().any(|message| message.contains(last))
    });
    let messages = is_told();
    assert_eq!(messages.len(), rules.len(), "{messages:?}");
    for ((_, cause), message) in rules.iter().zip(&messages) {
        assert!(message.contains(cause), "{messages:?}");
    }
}

#[test]
fn waiter_is_woken_although_only_another_channel_is_published() {
    let server = RedisServer::start();
    let rules = ["-publish", "(+publish &*{a}*)"];
    server.probe().command(&[&USER[..], &rules].concat());
    let [(one, _), (other, warned)] = [(); 2].map(|()| client(&server.url_as("me")));
    let guard = one.mutex("b").unwrap().lock().unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let lock = other.mutex("b").unwrap();
            let guard = within(LONG / 2, || lock.try_lock_for(LONG).unwrap());
            guard.expect("it asks again and again").unlock().unwrap();
        });
        eventually("it is told", LONG, || {
            !told(&warned, WarningKind::NotPublished).is_empty()
        });
        other.mutex("a").unwrap().lock().unwrap().unlock().unwrap();
        guard.unlock().unwrap();
        waits.join().unwrap();
    });
}
