//! Servers, proxies and users that do not allow tracking. The users need Redis 7.

use super::*;

/// Applies its fault to each `HELLO`: cuts the connection, or swallows the request.
struct AgainstHello(Fault, AtomicU64);

impl Plan for AgainstHello {
    fn fate(&self, request: &mut Request) -> Fault {
        if !request.is("HELLO") {
            return Fault::Pass;
        }
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0
    }
}

/// Without the right to tracking, or without `HELLO`, the waiter attempts every few seconds, and
/// the client warns once.
#[test]
fn lock_is_found_free_within_seconds_where_tracking_is_refused() {
    const USER: [&str; 9] = [
        "ACL", "SETUSER", "me", "reset", "on", "nopass", "~*", "&*", "+@all",
    ];
    for (rule, cause) in [
        ("-client|tracking", "`+client|tracking +client|caching`"),
        ("renamed", "HELLO"),
    ] {
        let server = match rule {
            "renamed" => RedisServer::start_with(&["--rename-command", "HELLO", ""]),
            _ => RedisServer::start(),
        };
        let mut probe = server.probe();
        probe.command(&[&USER[..], &[if rule == "renamed" { "+@all" } else { rule }]].concat());
        let (client, warned) = warned_client(&server.url_as("me"));
        let took = freed_after(&client, &mut probe, &[HASH], |probe| {
            probe.command(&["DEL", "x"]);
        });
        println!("{rule}: noticed after {took:?}");
        assert!(took < FALLBACK, "{rule}: {took:?}");
        eventually("it warns", LONG, || !warned.lock().is_empty());
        let messages = warned.lock().clone();
        assert_eq!(messages.len(), 1, "{messages:?}");
        assert!(messages[0].contains(cause), "{messages:?}");
    }
}

#[test]
fn nothing_is_tracked_where_it_is_switched_off() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let client = client(&server, "tracking=off");
    let took = freed_after(&client, &mut probe, &[HASH], |probe| {
        assert_eq!(probe.command_calls("hello"), 0);
        assert_eq!(
            probe.info_field("clients", "tracking_clients").unwrap(),
            "0"
        );
        probe.command(&["DEL", "x"]);
    });
    assert!(took > ms(1) && took < FALLBACK, "{took:?}");
    let url = format!("{}?tracking=maybe", server.url());
    let error = distlock::connect(&url).unwrap_err();
    assert!(error.is_configuration(), "{error}");
    assert!(
        error.to_string().contains("`tracking=maybe` is not one of"),
        "{error}"
    );
}

#[test]
fn proxy_that_ends_connections_over_resp3_is_got_along_with() {
    for fault in [Fault::Cut, Fault::SwallowRequest] {
        let server = RedisServer::start();
        let mut probe = server.probe();
        let plan = Arc::new(AgainstHello(fault, AtomicU64::new(0)));
        let proxy = Proxy::new(server.port(), Arc::clone(&plan) as _);
        let url = format!("{}?command_timeout=500ms", proxy.url());
        let (client, warned) = warned_client(&url);
        let took = freed_after(&client, &mut probe, &[HASH], |probe| {
            probe.command(&["DEL", "x"]);
        });
        assert!(took < FALLBACK, "{fault:?}: {took:?}");
        assert!(
            plan.1.load(Ordering::SeqCst) >= 2,
            "one may be lost for another reason"
        );
        eventually("it warns", LONG, || !warned.lock().is_empty());
        assert!(warned.lock()[0].contains("HELLO 3"), "{:?}", warned.lock());
    }
}

/// Without `CLIENT CACHING` held locks are not tracked. Waiters are woken by reports all the same.
#[test]
fn loss_is_known_at_the_next_renewal_where_the_report_is_not_allowed() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let rules = [
        "reset",
        "on",
        "nopass",
        "~*",
        "&*",
        "+@all",
        "-client|caching",
    ];
    probe.command(&[&["ACL", "SETUSER", "me"][..], &rules].concat());
    let (client, warned) = warned_client(&server.url_as("me"));
    let lock = client.mutex("x").unwrap();
    let guard = lock
        .lock_with(&LockOptions::new().watched(ms(6_000)))
        .unwrap();
    eventually("it warns", LONG, || !warned.lock().is_empty());
    assert!(
        warned.lock()[0].contains("`+client|tracking +client|caching`"),
        "{:?}",
        warned.lock()
    );
    assert_eq!(probe.stat("tracking_total_keys"), 0);
    probe.command(&["DEL", "x"]);
    let loss = guard
        .losses()
        .recv_timeout(LONG)
        .expect("it is told of the loss");
    assert_eq!(loss.cause(), LossCause::Gone);
    drop(guard);
    let took = freed_after(&client, &mut probe, &[HASH], |probe| {
        probe.command(&["DEL", "x"]);
    });
    assert!(took < LONG / 2, "{took:?}");
}
