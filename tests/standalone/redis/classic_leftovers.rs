//! Leftovers of classic formats: keys of attempts that fail half way, and what the errors say about
//! them.

use distlock::{Client, Error};
use distlock_tests::probe::Probe;
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::{Fault, Plan, Proxy, Sometimes, Turn};
use distlock_tests::redis::client;
use distlock_tests::resp::Request;
use distlock_tests::time::ms;
use std::sync::Arc;
use std::thread;

/// Connects with this format as a user that lacks one right.
fn without(server: &RedisServer, right: &str, format: &str) -> Client {
    let mut probe = server.probe();
    let reset = [
        "ACL", "SETUSER", "less", "reset", "on", ">pw", "~*", "&*", "+@all",
    ];
    probe.command(&[&reset[..], &[right]].concat());
    let url = server.url_as("less:pw");
    distlock::connect(&format!("{url}?format={format}&lease=60s")).unwrap()
}

fn fails_to_lock(client: &Client) -> Error {
    client.mutex("x").unwrap().try_lock().unwrap_err()
}

#[test]
fn lock_taken_without_expiry_is_told_and_can_be_freed() {
    let server = RedisServer::start();
    for format in ["plain,commands", "counter", "counter,lua"] {
        let client = without(&server, "-expire", format);
        let error = fails_to_lock(&client);
        let said = error.to_string();
        assert!(
            error.is_configuration() && said.contains("+expire"),
            "{format}: {said}"
        );
        let mut probe = server.probe();
        let is_taken = |probe: &mut Probe| probe.exists("x") && probe.pttl("x").is_none();
        assert!(is_taken(&mut probe), "{format}");
        if format != "counter,lua" {
            assert!(said.contains("may have taken the lock") && said.contains("force_unlock"));
        }
        let lock = client.mutex("x").unwrap();
        assert_eq!(
            lock.inspect().unwrap().holder.unwrap().remaining,
            None,
            "{format}"
        );
        assert!(lock.force_unlock().unwrap(), "{format}");
    }
}

/// Cuts the connection instead of delivering the reply to this command.
struct Unheard(&'static str);

impl Plan for Unheard {
    fn fate(&self, request: &mut Request) -> Fault {
        if request.is(self.0) {
            Fault::CutReply
        } else {
            Fault::Pass
        }
    }
}

/// A format that sets the expiry by a separate command does not send it after a lost reply, and the
/// lock never expires. In other formats the lease ends such a lock.
#[test]
fn lost_answer_between_two_commands_leaves_no_expiry() {
    let server = RedisServer::start();
    for (format, command, is_endless) in [
        ("plain,commands", "SETNX", true),
        ("counter", "INCR", true),
        ("plain", "SET", false),
        ("counter,multi", "EXEC", false),
    ] {
        let proxy = Proxy::new(server.port(), Arc::new(Unheard(command)));
        let options = format!("format={format}&lease=60s");
        let client = distlock::connect(&format!("{}?{options}", proxy.url())).unwrap();
        let error = fails_to_lock(&client);
        assert!(error.is_unavailable(), "{format}: {error}");
        let mut probe = server.probe();
        assert!(probe.exists("x"), "{format}");
        assert_eq!(probe.pttl("x").is_none(), is_endless, "{format}");
        assert!(
            client.mutex("x").unwrap().force_unlock().unwrap(),
            "{format}"
        );
    }
}

/// Without `MULTI` the commands would run one by one, and leave a lock that no client holds.
#[test]
fn user_without_right_to_multi_takes_nothing() {
    let server = RedisServer::start();
    let client = without(&server, "-multi", "counter,multi");
    for _ in 0..2 {
        let error = fails_to_lock(&client);
        assert!(
            error.is_configuration() && error.to_string().contains("+multi"),
            "{error}"
        );
        assert!(!server.probe().exists("x"));
    }
}

#[test]
fn late_grant_is_left_to_its_lease() {
    let server = RedisServer::start();
    let late = Sometimes::new(None, Turn::Every(1), Fault::DelayReply(ms(700)));
    let proxy = Proxy::new(server.port(), Arc::new(late));
    thread::scope(|scope| {
        for (prefix, format) in ["plain", "counter,lua", "timestamp"]
            .into_iter()
            .enumerate()
        {
            let url = format!("{}?format={format},poll=10ms&prefix={prefix}:", proxy.url());
            scope.spawn(move || {
                let url = format!("{url}&lease=600ms&command_timeout=60s&connect_timeout=60s");
                let said = fails_to_lock(&distlock::connect(&url).unwrap()).to_string();
                let is_right = said.contains("left to its lease") && !said.contains("given back");
                assert!(is_right, "{format}: {said}");
            });
        }
    });
}

/// Dropping the client releases its detached lock, although the format has no owners: during the
/// lease the lock cannot be another client's.
#[test]
fn detached_classic_lock_ends_with_its_client() {
    let server = RedisServer::start();
    for format in ["plain", "counter,multi", "timestamp"] {
        let client = client(&server, &format!("format={format}&lease=60s"));
        client.mutex("x").unwrap().lock().unwrap().detach();
        assert!(server.probe().exists("x"), "{format}");
        drop(client);
        assert!(!server.probe().exists("x"), "{format}");
    }
}
