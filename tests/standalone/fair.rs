//! Fair locks on a real server: the order over all clients, the key of the queue, and the requests
//! that pass the lock on.

use crate::bench::{Bench, LONG, lease, name, soon};
use distlock::backend::{LockKind, OwnerId};
use distlock::time::SystemClock;
use distlock::{Client, DistLock, Mutex};
use distlock_tests::child::{Child, Example};
use distlock_tests::contenders::Contenders;
use distlock_tests::probe::Probe;
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::{Fault, Proxy, Sometimes, Turn};
use distlock_tests::queue::{self, Line};
use distlock_tests::redis::{client, counted};
use distlock_tests::resp::Kind;
use distlock_tests::time::{Stopwatch, eventually, with_tolerance};
use lock_core::Clock;
use lock_core::backend::{
    AcquisitionId, Answer, Attempt, DirectGrant, NextOwner, Receipt, Release, ReleaseOptions,
    WAITER_ATTEMPTS, WAITER_PRESENCE, Wake,
};
use parking_lot::Mutex as Shared;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const QUEUE: &str = "distlock_queue:2:{x}";
const COUNTER: &str = "redisson_lock_token:{x}";

fn waiting(probe: &mut Probe) -> i64 {
    queue::waiting(probe, "x")
}

fn fair(client: &Client) -> Mutex {
    client.fair_mutex("x").unwrap()
}

#[test]
fn fair_lock_serves_all_clients_in_the_order_of_arrival() {
    for format in ["format=redisson", "format=token"] {
        let server = RedisServer::start();
        let clients: Vec<_> = (0..4).map(|_| client(&server, format)).collect();
        let mut probe = server.probe();
        let held = fair(&clients[0]).lock().unwrap();
        let mut line = Line::default();
        (0..16).for_each(|n| line.enter(&mut probe, fair(&clients[n * 7 % 4])));
        let newcomer = fair(&clients[3]);
        assert!(newcomer.try_lock().unwrap().is_none());
        held.unlock().unwrap();
        assert_eq!(line.end(), (0..16).collect::<Vec<_>>(), "{format}");
        eventually("no position is left", LONG, || !probe.exists(QUEUE));
    }
}

#[test]
fn fair_lock_stands_as_a_mutex_and_excludes_it() {
    let server = RedisServer::start();
    let (ours, others) = (client(&server, "order=fair"), client(&server, ""));
    let mut probe = server.probe();
    let guard = ours.mutex("x").unwrap().lock().unwrap();
    let stored = probe.hgetall("x");
    assert_eq!(stored.values().collect::<Vec<_>>(), ["1"], "{stored:?}");
    assert!(others.mutex("x").unwrap().try_lock().unwrap().is_none());
    assert!(others.owned_mutex("x").unwrap().is_locked().unwrap());
    guard.unlock().unwrap();
    let held = others.mutex("x").unwrap().lock().unwrap();
    assert!(ours.owned_mutex("x").unwrap().try_lock().unwrap().is_none());
    assert_eq!(ours.mutex("x").unwrap().name().kind(), LockKind::Fair);
    held.unlock().unwrap();
    assert!(ours.owned_mutex("x").unwrap().try_lock().unwrap().is_some());
}

/// A user without access to the queue's key is refused once, and not at each query: the server logs
/// every refusal.
#[test]
fn waiters_in_the_queue_are_counted_where_they_may_be_seen() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let ours = client(&server, "");
    let held = fair(&ours).lock().unwrap();
    let mut line = Line::default();
    (0..3).for_each(|_| line.enter(&mut probe, fair(&ours)));
    let waiters = |client: &Client| client.inspect_all(&[name("x")]).remove(0).unwrap().waiters;
    assert_eq!(waiters(&ours), Some(3));
    let rule = "ACL SETUSER me reset on nopass ~x ~redisson_lock_token:* &* +@all";
    probe.command(&rule.split_whitespace().collect::<Vec<_>>());
    let other = distlock::connect(&server.url_as("me:x")).unwrap();
    for _ in 0..3 {
        assert_eq!(waiters(&other), Some(0));
    }
    let log = format!("{:?}", probe.command(&["ACL", "LOG"]));
    assert_eq!(log.matches(QUEUE).count(), 1, "{log}");
    held.unlock().unwrap();
    line.end();
}

#[test]
fn release_of_a_mutex_reaches_a_fair_waiter_within_a_second() {
    let server = RedisServer::start();
    let (ours, others) = (client(&server, ""), client(&server, ""));
    let mut probe = server.probe();
    let held = others.mutex("x").unwrap().lock().unwrap();
    let mut line = Line::default();
    line.enter(&mut probe, fair(&ours));
    held.unlock().unwrap();
    let (waited, tolerance) = with_tolerance(|| {
        let watch = Stopwatch::start();
        line.end();
        watch.elapsed()
    });
    let overdue = waited.saturating_sub(WAITER_ATTEMPTS);
    tolerance.must_cover(overdue, LONG, "a fair waiter asks each second");
}

#[test]
fn fair_waiter_that_gives_up_lets_the_next_one_in() {
    let server = RedisServer::start();
    let (a, b) = (client(&server, ""), client(&server, ""));
    let mut probe = server.probe();
    let held = fair(&a).lock().unwrap();
    let first = fair(&b);
    let patience = Duration::from_millis(500);
    let gives_up = thread::spawn(move || first.try_lock_for(patience).unwrap().is_none());
    eventually("it has a position", LONG, || waiting(&mut probe) == 1);
    let mut line = Line::default();
    line.enter(&mut probe, fair(&b));
    assert!(gives_up.join().unwrap());
    eventually("its position is gone", LONG, || waiting(&mut probe) == 1);
    held.unlock().unwrap();
    line.end();
}

/// Starts a client in another process that acquires the lock again and again with this presence;
/// returns when it waits.
fn contender(server: &RedisServer, probe: &mut Probe, presence: Duration) -> Contenders {
    let url = format!(
        "{}?order=fair&fair_presence={}ms",
        server.url(),
        presence.as_millis()
    );
    let contender = Contenders::start(&url, "x", 1, 1);
    eventually("it has a position", LONG, || waiting(probe) == 1);
    contender
}

/// Changes the process at the head of the queue by `after`, and checks that after a release the
/// next waiter gets the lock in time. Returns the changed process.
fn wait_behind(
    server: &RedisServer,
    presence: Duration,
    after: impl FnOnce(&mut Child),
) -> Contenders {
    let mut probe = server.probe();
    let ours = client(server, "");
    let held = fair(&ours).lock().unwrap();
    let mut head = contender(server, &mut probe, presence);
    let mut line = Line::default();
    line.enter(&mut probe, fair(&ours));
    after(head.child(0));
    let (waited, tolerance) = with_tolerance(|| {
        let watch = Stopwatch::start();
        held.unlock().unwrap();
        line.end();
        watch.elapsed()
    });
    println!("behind a head that does not answer: {waited:?}");
    let bound = presence + WAITER_ATTEMPTS;
    tolerance.must_cover(
        waited.saturating_sub(bound),
        LONG,
        "a dead head is passed over",
    );
    head
}

#[test]
fn killed_head_of_the_queue_delays_others_by_its_presence() {
    for presence in [WAITER_PRESENCE, Duration::from_secs(1)] {
        drop(wait_behind(&RedisServer::start(), presence, Child::kill));
    }
}

#[test]
fn paused_head_of_the_queue_loses_its_position_only() {
    let server = RedisServer::start();
    let mut head = wait_behind(&server, WAITER_PRESENCE, |head| head.pause());
    head.child(0).resume();
    eventually("it gets the lock after all", LONG, || {
        !head.claims().is_empty()
    });
    head.stop();
}

#[test]
fn holder_that_dies_leaves_the_lock_to_the_head() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let url = format!("{}?order=fair&watchdog=2s", server.url());
    let mut holder = Example::distlock(&["hold", "--url", &url, "x"]).spawn();
    holder.expect_event("held", LONG);
    let ours = client(&server, "");
    let mut line = Line::default();
    (0..3).for_each(|_| line.enter(&mut probe, fair(&ours)));
    holder.kill();
    assert_eq!(line.end(), [0, 1, 2]);
}

/// Returns the number of scripts that pass the lock on, per waiter, with this many waiting clients.
/// The attempt that each waiter makes every second is not counted.
fn requests_per_hand_over(waiters: usize) -> f64 {
    let server = RedisServer::start();
    // Connections that may join requests begin with scripts of their own, which would be counted.
    let of_server = || client(&server, "joined=off");
    let clients: Vec<_> = (0..waiters).map(|_| of_server()).collect();
    let owner = of_server();
    let mut probe = server.probe();
    let held = fair(&owner).lock().unwrap();
    let mut line = Line::default();
    clients
        .iter()
        .for_each(|client| line.enter(&mut probe, fair(client)));
    // The holder makes one attempt, and each waiter two: before and after it subscribes.
    let attempts = 1 + 2 * waiters as u64;
    eventually("all have asked again", LONG, || {
        counted(&mut probe).scripts >= attempts
    });
    probe.reset_stats();
    let (took, tolerance) = with_tolerance(|| {
        let watch = Stopwatch::start();
        held.unlock().unwrap();
        line.end();
        watch.elapsed()
    });
    // With nothing but the attempts of each second, each waiter would take half a second.
    let (bound, what) = (WAITER_ATTEMPTS * 2, "the next waiter asks at once");
    tolerance.must_cover(took.saturating_sub(bound), WAITER_ATTEMPTS * 5, what);
    let counted = counted(&mut probe);
    let seconds = took.as_secs_f64() / WAITER_ATTEMPTS.as_secs_f64();
    // Each waiter makes one attempt a second at most; this bound ignores that the waiters become
    // fewer.
    let by_time = seconds.ceil() * waiters as f64;
    #[allow(clippy::cast_precision_loss, reason = "some hundred")]
    let (scripts, reads) = (counted.scripts as f64, probe.command_calls("pttl") as f64);
    println!(
        "{waiters} waiting clients: {scripts} requests, {reads} PTTL, {:.2} per hand-over, in {took:?}",
        scripts / waiters as f64
    );
    (scripts - by_time) / waiters as f64
}

#[test]
fn hand_over_costs_one_request_whatever_number_waits() {
    for waiters in [2, 8, 32] {
        let requests = requests_per_hand_over(waiters);
        // The release of the first holder is one more.
        let bound = 1.1 + 1.0 / waiters as f64;
        assert!(requests <= bound, "{requests} with {waiters} clients");
    }
}

fn fair_attempt(bench: &Bench, owner: OwnerId) -> Answer {
    let name = name("x").of_kind(LockKind::Fair);
    bench
        .backend
        .acquire(&Attempt::new(&name, owner, lease(30_000)), soon())
        .unwrap()
}

fn fair_release(bench: &Bench, owner: OwnerId, options: ReleaseOptions) -> Release {
    let name = name("x").of_kind(LockKind::Fair);
    let id = AcquisitionId::new(name, owner, lease(30_000), Receipt::default());
    bench.backend.release(&id, options, soon()).unwrap()
}

/// Records the owners that messages name as next, and the grant in the last message.
#[derive(Default)]
struct Named(Shared<Vec<String>>, Shared<Option<DirectGrant>>);

impl Wake for Named {
    fn wake(&self) {
        self.0.lock().push("any".to_owned());
    }

    fn wake_next(&self, next: &NextOwner) {
        self.1.lock().clone_from(&next.granted);
        self.0.lock().push(next.owner.as_str().to_owned());
    }
}

#[test]
fn next_waiter_is_named_by_release_and_by_leaving_a_free_lock() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let named = Arc::new(Named::default());
    let fair = name("x").of_kind(LockKind::Fair);
    let watch = bench
        .backend
        .watch(&fair, Arc::clone(&named) as Arc<dyn Wake>, soon())
        .unwrap();
    let [holder, first, second, third] = [(); 4].map(|()| bench.owner());
    for owner in [holder, first, second, third] {
        let _answer = fair_attempt(&bench, owner);
    }
    let released = ReleaseOptions::WITHOUT_TOMBSTONE;
    let told = |owners: &[OwnerId]| {
        let owners: Vec<_> = owners.iter().map(OwnerId::to_string).collect();
        eventually("they are named", LONG, || *named.0.lock() == owners);
    };
    fair_release(&bench, second, released);
    fair_release(&bench, holder, released);
    told(&[first]);
    fair_release(&bench, first, released);
    told(&[first, third]);
    drop(watch);
}

/// Returns two owners: the first holds the lock, and the second waits and lets a release grant the
/// lock to its attempt number 7.
fn holder_and_direct_waiter(bench: &Bench) -> [OwnerId; 2] {
    let name = name("x").of_kind(LockKind::Fair);
    let [holder, next] = [(); 2].map(|()| bench.owner());
    assert!(matches!(fair_attempt(bench, holder), Answer::Granted(_)));
    let attempt = Attempt::new(&name, next, lease(30_000)).direct(NonZeroU64::new(7));
    assert!(bench.backend.acquire(&attempt, soon()).unwrap().is_busy());
    [holder, next]
}

/// Releases the lock of `holder`, checks that a message names `next`, and returns the grant in that
/// message.
fn told_by_release(bench: &Bench, [holder, next]: [OwnerId; 2]) -> Option<DirectGrant> {
    let named = Arc::new(Named::default());
    let fair = name("x").of_kind(LockKind::Fair);
    let watch = bench
        .backend
        .watch(&fair, Arc::clone(&named) as Arc<dyn Wake>, soon())
        .unwrap();
    assert!(matches!(
        fair_release(bench, holder, ReleaseOptions::WITHOUT_TOMBSTONE),
        Release::Freed
    ));
    eventually("it is told", LONG, || !named.0.lock().is_empty());
    drop(watch);
    assert_eq!(*named.0.lock(), [next.to_string()]);
    named.1.lock().take()
}

#[test]
fn release_grants_the_lock_to_the_next_owner_for_its_presence() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let mut probe = server.probe();
    let begun = SystemClock.now();
    let [holder, next] = holder_and_direct_waiter(&bench);
    let before = probe.get(COUNTER).unwrap();
    let granted = told_by_release(&bench, [holder, next]).expect("it was granted");
    let left = probe.pttl("x").expect("it has an end");
    let passed = SystemClock.now().since(begun) + Duration::from_millis(10);
    assert!(
        left <= WAITER_PRESENCE && left + passed >= WAITER_PRESENCE,
        "{left:?}"
    );
    assert_eq!(
        probe.hgetall("x").into_keys().collect::<Vec<_>>(),
        [next.to_string()]
    );
    assert!(!probe.exists(QUEUE), "it waits no longer");
    assert_eq!(granted.attempt.get(), 7);
    let token = granted.grant.tokens.expect("it has one").first();
    assert_eq!(probe.get(COUNTER), Some(token.to_string()));
    assert!(token.get() > before.parse().unwrap());
    // A waiter that missed the message gets the lock by its next attempt, with the same token and
    // its whole lease.
    let Answer::Granted(grant) = fair_attempt(&bench, next) else {
        panic!("it is its own")
    };
    assert_eq!(grant.tokens.unwrap().first(), token);
    assert!(probe.pttl("x").unwrap() > WAITER_PRESENCE);
    // A late copy of the release frees nothing.
    let released = ReleaseOptions::WITHOUT_TOMBSTONE;
    assert_eq!(fair_release(&bench, holder, released), Release::Gone);
    assert!(matches!(
        fair_release(&bench, next, released),
        Release::Freed
    ));
    assert!(!probe.exists("x"));
}

fn attempt_with(bench: &Bench, owner: OwnerId, presence: Duration) -> Answer {
    let name = name("x").of_kind(LockKind::Fair);
    let attempt = Attempt::new(&name, owner, lease(30_000));
    let attempt = attempt.presence(presence).direct_lease(presence);
    bench
        .backend
        .acquire(&attempt.direct(NonZeroU64::new(7)), soon())
        .unwrap()
}

/// Dates this owner's last attempt back by this many milliseconds in the queue.
fn shorten(probe: &mut Probe, owner: OwnerId, millis: i64) {
    let found = probe
        .command(&["ZRANGE", QUEUE, "0", "-1", "WITHSCORES"])
        .texts();
    let begins = format!("{owner} ");
    let at = found
        .iter()
        .position(|it| it.starts_with(&begins))
        .expect("it waits");
    let (before, attempted) = found[at].rsplit_once(' ').expect("it has fields");
    let after = format!(
        "{before} {}",
        attempted.parse::<i64>().unwrap() - millis * 1_000
    );
    probe.command(&["ZADD", QUEUE, &found[at + 1], &after]);
    probe.command(&["ZREM", QUEUE, &found[at]]);
}

#[test]
fn long_presence_is_kept_beside_shorter_ones() {
    let server = RedisServer::start();
    let (bench, mut probe) = (Bench::on(&server), server.probe());
    let [holder, patient, usual] = [(); 3].map(|()| bench.owner());
    assert!(matches!(fair_attempt(&bench, holder), Answer::Granted(_)));
    assert!(attempt_with(&bench, patient, LONG).is_busy());
    assert!(fair_attempt(&bench, usual).is_busy());
    // As if its last attempt were five seconds old.
    shorten(&mut probe, patient, 5_000);
    let granted = told_by_release(&bench, [holder, patient]).expect("it was granted");
    assert_eq!(granted.attempt.get(), 7);
    let left = probe.pttl("x").unwrap();
    assert!(
        left > WAITER_PRESENCE && left <= LONG,
        "for its own presence: {left:?}"
    );
    assert!(fair_attempt(&bench, usual).is_busy());
}

/// The last attempt lies in the future, as after a server's clock was set back. Otherwise a dead
/// waiter would block the queue for longer than its presence.
#[test]
fn presence_is_over_if_more_is_left_than_its_own() {
    let server = RedisServer::start();
    let (bench, mut probe) = (Bench::on(&server), server.probe());
    let [holder, dead, usual] = [(); 3].map(|()| bench.owner());
    assert!(matches!(fair_attempt(&bench, holder), Answer::Granted(_)));
    assert!(attempt_with(&bench, dead, Duration::from_secs(1)).is_busy());
    assert!(fair_attempt(&bench, usual).is_busy());
    shorten(&mut probe, dead, -1_900);
    fair_release(&bench, holder, ReleaseOptions::WITHOUT_TOMBSTONE);
    assert!(matches!(fair_attempt(&bench, usual), Answer::Granted(_)));
}

#[test]
fn release_that_others_listen_for_is_granted_to_none() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let owners = holder_and_direct_waiter(&bench);
    let mut listener = server.probe();
    listener.command(&["SUBSCRIBE", "redisson_lock__channel:{x}"]);
    assert!(told_by_release(&bench, owners).is_none());
    assert!(!server.probe().exists("x"), "the first request gets it");
    drop(listener);
}

#[test]
fn direct_grant_keeps_the_counter_as_long_as_a_grant_does() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let mut probe = server.probe();
    let owners = holder_and_direct_waiter(&bench);
    let time = Duration::from_secs(600);
    let whole = probe.pttl(COUNTER).expect("it has an end");
    // As the counter was ten minutes ago.
    let old = probe.get(COUNTER).unwrap().parse::<u64>().unwrap() - 600_000_000;
    let left = (whole - time).as_millis().to_string();
    probe.command(&["SET", COUNTER, &old.to_string(), "PX", &left]);
    let granted = told_by_release(&bench, owners).expect("it was granted");
    assert!(granted.grant.tokens.unwrap().first().get() > old + 600_000_000);
    let now = probe.pttl(COUNTER).expect("it still has an end");
    assert!(now.abs_diff(whole) < LONG, "{now:?} of {whole:?}");
    // A counter without an expiry stays without one.
    let [_, holder] = owners;
    let next = bench.owner();
    let name = name("x").of_kind(LockKind::Fair);
    let attempt = Attempt::new(&name, next, lease(30_000)).direct(NonZeroU64::new(7));
    assert!(bench.backend.acquire(&attempt, soon()).unwrap().is_busy());
    probe.command(&["SET", COUNTER, &old.to_string()]);
    assert!(told_by_release(&bench, [holder, next]).is_some());
    assert_eq!(probe.pttl(COUNTER), None);
}

#[test]
fn release_without_a_usable_counter_grants_nothing() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let mut probe = server.probe();
    let owners = holder_and_direct_waiter(&bench);
    probe.command(&["SET", COUNTER, "no number"]);
    assert!(told_by_release(&bench, owners).is_none());
    assert!(!probe.exists("x"), "the release is not undone");
    assert_eq!(probe.get(COUNTER).as_deref(), Some("no number"));
    assert_eq!(waiting(&mut probe), 1);
}

#[test]
fn closed_owner_enters_no_queue_and_is_granted_nothing() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let mut probe = server.probe();
    let (holder, late) = (bench.owner(), bench.owner());
    assert!(matches!(fair_attempt(&bench, holder), Answer::Granted(_)));
    assert!(matches!(fair_attempt(&bench, late), Answer::Busy(Some(_))));
    assert_eq!(
        fair_release(&bench, late, ReleaseOptions::WITH_TOMBSTONE),
        Release::Gone
    );
    assert!(matches!(fair_attempt(&bench, late), Answer::Busy(None)));
    assert!(!probe.exists(QUEUE));
    fair_release(&bench, holder, ReleaseOptions::WITHOUT_TOMBSTONE);
    assert!(matches!(fair_attempt(&bench, late), Answer::Busy(None)));
    assert!(!probe.exists("x"));
}

#[test]
fn repeated_fair_attempt_keeps_position_grant_and_token() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let _watch = bench.listens(&name("x").of_kind(LockKind::Fair));
    let [holder, first, second] = [(); 3].map(|()| bench.owner());
    let tokens = |answer| match answer {
        Answer::Granted(grant) => grant.tokens,
        other => panic!("{other:?}"),
    };
    let granted = tokens(fair_attempt(&bench, holder));
    server.probe().command(&["SCRIPT", "FLUSH"]);
    assert_eq!(tokens(fair_attempt(&bench, holder)), granted);
    for owner in [first, second, first] {
        assert!(fair_attempt(&bench, owner).is_busy());
    }
    let released = ReleaseOptions::WITHOUT_TOMBSTONE;
    assert!(matches!(
        fair_release(&bench, holder, released),
        Release::Freed
    ));
    assert_eq!(fair_release(&bench, holder, released), Release::Gone);
    assert!(
        fair_attempt(&bench, second).is_busy(),
        "the first came before"
    );
    let again = tokens(fair_attempt(&bench, first));
    assert_eq!(waiting(&mut server.probe()), 1, "a holder waits no longer");
    assert!(again.unwrap().first() > granted.unwrap().last());
}

#[test]
fn queue_of_dead_waiters_goes_by_itself() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let mut probe = server.probe();
    fair_attempt(&bench, bench.owner());
    for _ in 0..3 {
        assert!(fair_attempt(&bench, bench.owner()).is_busy());
    }
    let left = probe.pttl(QUEUE).expect("it has an end");
    assert!(left <= Duration::from_secs(120), "{left:?}");
}

#[test]
fn many_dead_waiters_are_removed_a_part_at_a_time() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let mut probe = server.probe();
    const DEAD: i64 = 6_000;
    for number in 0..DEAD {
        let (number, dead) = (format!("{}", number + 1), format!("dead:{number}"));
        let fields = format!("{dead} {dead} 7 3000 3000 0 0 {number} 1");
        probe.command(&["ZADD", QUEUE, &number, &dead, &number, &fields]);
    }
    let owner = bench.owner();
    let mut left = DEAD;
    while fair_attempt(&bench, owner).is_busy() {
        let removed = left - waiting(&mut probe);
        // One attempt searches for the first waiter up to three times, and each search removes a
        // part.
        assert!((500..=3_000).contains(&removed), "{removed} of {left}");
        left -= removed;
    }
    assert!(left <= 3_000, "{left} in the last attempt");
    assert!(!probe.exists(QUEUE));
}

/// Otherwise an operator could not remove a head of the queue that makes no attempts.
#[test]
fn forced_release_of_a_free_lock_removes_the_head_of_the_queue() {
    let server = RedisServer::start();
    let (lock, mut probe) = (fair(&client(&server, "")), server.probe());
    let time = probe.command(&["TIME"]).texts();
    let now = time[0].parse::<u64>().unwrap() * 1_000_000;
    for (position, owner) in [("1", "a:1"), ("2", "a:2")] {
        let fields = format!("{owner} {owner} 7 3000 3000 0 0 {position} {now}");
        probe.command(&["ZADD", QUEUE, position, owner, position, &fields]);
    }
    assert!(!lock.force_unlock().unwrap(), "it is free");
    let left = probe.command(&["ZRANGE", QUEUE, "0", "-1"]).texts();
    assert!(
        left.first().is_none_or(|it| it == "a:2"),
        "{left:?}, where both may be over"
    );
    assert!(!lock.force_unlock().unwrap());
    assert!(!probe.exists(QUEUE));
    assert!(lock.try_lock().unwrap().is_some());
}

#[test]
fn other_data_under_the_queues_key_makes_no_release_fail() {
    let server = RedisServer::start();
    let (lock, mut probe) = (fair(&client(&server, "")), server.probe());
    for forced in [false, true] {
        let guard = lock.lock().unwrap();
        probe.command(&["SET", QUEUE, "a text"]);
        if forced {
            assert!(lock.force_unlock().unwrap());
            assert!(guard.unlock().unwrap_err().is_lost());
        } else {
            guard.unlock().unwrap();
        }
        assert!(!probe.exists("x"));
        assert_eq!(probe.get(QUEUE).as_deref(), Some("a text"));
        assert!(lock.try_lock().unwrap_err().is_foreign_format());
        probe.command(&["DEL", QUEUE]);
    }
}

#[test]
fn lost_replies_leave_no_position_and_no_second_holder() {
    let server = RedisServer::start();
    let faults = [
        (Kind::Acquire, Fault::CutReply),
        (Kind::Acquire, Fault::Late(Duration::from_millis(300))),
        (Kind::Release, Fault::CutReply),
        (Kind::Release, Fault::Cut),
        // A close follows a release that gets no reply.
        (Kind::Close, Fault::CutReply),
        (Kind::Close, Fault::Cut),
    ];
    for (kind, fault) in faults {
        let each = |kind, turn| Sometimes::new(Some(kind), turn, fault);
        let plan = match kind {
            Kind::Close => vec![
                each(Kind::Release, Turn::Every(3)),
                each(kind, Turn::Only(1)),
            ],
            _ => vec![each(kind, Turn::Every(3))],
        };
        let proxy = Proxy::new(server.port(), Arc::new(plan));
        let url = format!("{}?command_timeout=500ms", proxy.url());
        let inside = Arc::new(Shared::new(()));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (client, inside) = (distlock::connect(&url).unwrap(), Arc::clone(&inside));
                thread::spawn(move || {
                    for _ in 0..5 {
                        let guard = fair(&client).lock().unwrap();
                        let alone = inside.try_lock().expect("no other holder");
                        assert!(guard.is_valid());
                        drop(alone);
                        drop(guard);
                    }
                    client.wait_for_cleanup(LONG).unwrap();
                })
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        assert!(proxy.count(kind, fault) > 0, "{kind:?} {fault:?}");
        let mut probe = server.probe();
        eventually("nothing is left", LONG, || {
            !probe.exists(QUEUE) && !probe.exists("x")
        });
    }
}

#[test]
fn fair_lock_is_refused_where_there_are_mutexes_only() {
    let server = RedisServer::start();
    for options in [
        "prefix=lock:&format=token,wakes=python-redis-lock",
        "format=plain",
        "format=timestamp&server_clock=yes",
    ] {
        let url = format!("{}?{options}", server.url());
        let Ok(client) = distlock::connect(&url) else {
            continue;
        };
        let refused = client.fair_mutex("x").unwrap_err();
        assert!(refused.is_unsupported(), "{refused:?}");
        let refused = distlock::connect(&format!("{url}&order=fair")).unwrap_err();
        assert!(refused.is_unsupported() && refused.to_string().contains("order=fair"));
    }
    // Refused without a request: no server runs at these addresses.
    let quorum = "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3?order=fair";
    assert!(distlock::connect(quorum).unwrap_err().is_unsupported());
}

#[test]
fn several_fair_locks_are_taken_as_one() {
    let server = RedisServer::start();
    let (a, b) = (client(&server, ""), client(&server, ""));
    let both = |client: &Client| {
        let locks: [Arc<dyn DistLock>; 2] =
            ["x", "y"].map(|name| client.fair_mutex(name).unwrap().into());
        distlock::MultiLock::new(locks).unwrap()
    };
    let guard = both(&a).lock().unwrap();
    assert!(b.fair_mutex("y").unwrap().try_lock().unwrap().is_none());
    assert!(both(&b).try_lock().unwrap().is_none());
    let other = both(&b);
    let waiter = thread::spawn(move || drop(other.lock().unwrap()));
    guard.unlock().unwrap();
    waiter.join().unwrap();
}
