//! A virtual machine that is paused with its clocks: when it resumes, its time of day is set ahead,
//! but all its other clocks have missed the pause. Seen from the machine, the server's time has
//! jumped ahead.

use crate::SOON;
use distlock_tests::child::{Child, Example};
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::{Fault, Proxy, Sometimes, Turn};
use distlock_tests::resp::Kind;
use distlock_tests::time::{always, eventually, ms};
use distlock_tests::time_of_day::TimeOfDay;
use serde_json::Value as Json;
use std::sync::Arc;

/// The length of a pause in milliseconds: longer than the default lease.
const PAUSE: i64 = 40_000;

fn on(machine: &TimeOfDay, arguments: &[&str]) -> Example {
    let environment = machine.environment();
    let variables = environment
        .iter()
        .map(|(name, value)| (name, value.to_str().unwrap()));
    variables.fold(Example::distlock(arguments), |it, (name, value)| {
        it.env(name, value)
    })
}

/// Returns the answer to a check. The report of a loss may come before it.
#[track_caller]
fn is_valid(child: &mut Child) -> bool {
    child.expect("the check", SOON, |line: &Json| line["valid"].as_bool())
}

#[test]
fn lock_is_invalid_at_the_first_look_after_the_pause() {
    let (clock, machine) = (TimeOfDay::new(), TimeOfDay::of_client());
    let server = RedisServer::start_on(&clock);
    // Without tracking, by which the server would report the loss as well.
    let url = format!("{}?tracking=off", server.url());
    let mut paused = on(&machine, &["hold", "--url", &url, "it"]).spawn();
    let token = paused.expect_event("held", SOON)["token"].as_u64().unwrap();
    paused.send("check");
    assert!(is_valid(&mut paused));
    paused.pause();
    clock.set_for(&mut server.probe(), PAUSE);
    let next = distlock::connect(&server.url())
        .unwrap()
        .mutex("it")
        .unwrap();
    let next = distlock::DistLock::lock(&next).unwrap();
    assert!(next.fencing_token().unwrap().get() > token);
    machine.set(PAUSE);
    paused.send("check");
    paused.resume();
    assert!(!is_valid(&mut paused));
    paused.send("release");
    assert_eq!(paused.wait_exit(SOON), 75);
    next.unlock().unwrap();
}

#[test]
fn clock_that_is_set_ahead_costs_no_lock() {
    let (server, machine) = (RedisServer::start(), TimeOfDay::of_client());
    let url = server.url();
    let mut holder = on(&machine, &["hold", "--url", &url, "held"]).spawn();
    holder.expect_event("held", SOON);
    for step in 1..=3 {
        machine.set(PAUSE * step);
        eventually("the store has confirmed it", SOON, || {
            holder.send("check");
            is_valid(&mut holder)
        });
    }
    holder.send("release");
    holder.expect_event("released", SOON);
    assert_eq!(holder.wait_exit(SOON), 0);
}

#[test]
fn clock_that_is_set_ahead_stops_no_command() {
    let (server, machine) = (RedisServer::start(), TimeOfDay::of_client());
    // The replies are delayed, so that the clock is also set ahead while the reply to the attempt
    // is under way. The first attempt takes two replies, because the server does not have the
    // script yet.
    let late = Fault::DelayReply(ms(600));
    let proxy = Proxy::new(
        server.port(),
        Arc::new(Sometimes::new(Some(Kind::Acquire), Turn::Every(1), late)),
    );
    let mut job = on(
        &machine,
        &["run", "--url", &proxy.url(), "job", "--", "cat"],
    )
    .spawn();
    eventually("the lock is taken", SOON, || server.probe().exists("job"));
    for step in 1..=3 {
        machine.set(PAUSE * step);
        always("the command runs", ms(1_500), || job.is_running());
    }
    assert!(proxy.count(Kind::Acquire, late) > 0);
    job.close_input();
    assert_eq!(job.wait_exit(SOON), 0, "{}", job.errors());
}
