//! The queue of waiters of a mutex in the store: what a release grants, to whom, and what happens
//! where waiters leave, die or receive no messages.

use crate::bench::{Bench, LONG, lease, name, soon};
use distlock::crossbeam_channel::{Receiver, Sender, bounded};
use distlock::{Client, Interrupt, LockOptions, Mutex};
use distlock_tests::child::{Child, Example};
use distlock_tests::probe::{Probe, Value};
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::{Fault, Plan, Proxy};
use distlock_tests::queue::{self, first_fields, waiting};
use distlock_tests::redis::{client, counted};
use distlock_tests::replicas::Replicated;
use distlock_tests::resp::{Kind, Request};
use distlock_tests::time::{Stopwatch, eventually, let_pass, ms, with_tolerance};
use lock_core::backend::{Answer, Attempt, Tokens, WAITER_PRESENCE};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The orders and formats that have this queue.
const SETTINGS: [&str; 3] = ["order=any", "order=fair", "order=any&format=token"];

const NAME: &str = "x";

/// The shortest time after which a waiter in the queue repeats its attempt.
const FIRST_ATTEMPT: Duration = Duration::from_secs(1);

fn mutex(client: &Client) -> Mutex {
    client.mutex(NAME).unwrap()
}

/// Connects a client whose connections do not begin with the scripts that joined requests need.
fn unjoined(server: &RedisServer, settings: &str) -> Client {
    client(server, &format!("joined=off&{settings}"))
}

/// Makes the server learn the scripts. Otherwise a client sends the first request of each script
/// twice, and the tests would count both.
fn teach(server: &RedisServer, settings: &str) {
    let [one, other] = [(); 2].map(|()| client(server, settings));
    let held = mutex(&one).lock().unwrap();
    let waiter = Waiter::enter(&mut server.probe(), &other, &LockOptions::new());
    held.unlock().unwrap();
    waiter.token();
    waiter.give_back();
    let mut probe = server.probe();
    eventually("it is free", LONG, || !probe.exists(NAME));
    probe.command(&["DEL", "redisson_lock_token:{x}"]);
}

fn must_be_empty(probe: &mut Probe) {
    eventually("nothing of the queue is left", LONG, || {
        !probe.exists(&queue::key(NAME))
    });
}

/// Returns the ID of the client of the first waiter.
fn first_client(probe: &mut Probe) -> String {
    let found = probe.command(&["ZRANGE", &queue::key(NAME), "0", "0"]);
    let name = found.texts().pop().unwrap_or_default();
    name.split(':').next().unwrap_or_default().to_owned()
}

/// A thread that waits for the lock, and holds it until the test ends that.
struct Waiter {
    got: Receiver<Option<u64>>,
    give_back: Sender<()>,
    thread: JoinHandle<()>,
}

impl Waiter {
    fn start(client: &Client, options: &LockOptions) -> Self {
        let ((tell, got), (give_back, told)) = (bounded(1), bounded(1));
        let (lock, options) = (mutex(client), options.clone());
        let thread = thread::spawn(move || {
            let guard = lock.acquire(None, &options).unwrap().unwrap();
            let token = guard.fencing_token().map(|it| it.get());
            let _gone = tell.send(token);
            if told.recv().is_ok() {
                assert!(guard.is_valid());
                guard.unlock().unwrap();
            }
        });
        Self {
            got,
            give_back,
            thread,
        }
    }

    /// Starts a waiter of a client that has not waited before. Returns when the waiter is in the
    /// queue and has made a second attempt, after it subscribed.
    fn enter(probe: &mut Probe, client: &Client, options: &LockOptions) -> Self {
        let (before, scripts) = (waiting(probe, NAME), counted(probe).scripts);
        let waiter = Self::start(client, options);
        eventually("it is in the queue", LONG, || {
            waiting(probe, NAME) > before && counted(probe).scripts >= scripts + 2
        });
        waiter
    }

    fn has_it(&self) -> bool {
        !self.got.is_empty()
    }

    /// Waits until the thread has the lock; returns its token.
    fn token(&self) -> Option<u64> {
        self.got.recv_timeout(LONG).expect("it gets the lock")
    }

    fn give_back(self) {
        let _gone = self.give_back.send(());
        self.thread.join().unwrap();
    }
}

/// Returns the time from the start of `work` until this waiter has the lock. Fails if that is
/// longer than `bound` and the tolerance of this machine.
#[track_caller]
fn must_get_it(waiter: &Waiter, bound: Duration, what: &str, work: impl FnOnce()) -> Duration {
    let (took, tolerance) = with_tolerance(|| {
        let watch = Stopwatch::start();
        work();
        waiter.token();
        watch.elapsed()
    });
    println!("{what}: {took:?}");
    tolerance.must_cover(took.saturating_sub(bound), LONG / 2, what);
    took
}

#[test]
fn release_grants_to_the_next_client_without_an_attempt() {
    for settings in SETTINGS {
        for tokens in ["", "&tokens=off"] {
            let settings = format!("{settings}{tokens}");
            // On a late machine the waiter repeats its attempt before the release: then the round
            // is repeated.
            eventually("it is granted before it asks again", LONG, || {
                let server = RedisServer::start();
                let mut probe = server.probe();
                teach(&server, &settings);
                let [holder, next] = [(); 2].map(|()| unjoined(&server, &settings));
                let held = mutex(&holder).lock().unwrap();
                let before = held.fencing_token().map(|it| it.get());
                let begun = Stopwatch::start();
                let waiter = Waiter::enter(&mut probe, &next, &LockOptions::new());
                probe.reset_stats();
                held.unlock().unwrap();
                let token = waiter.token();
                let (counted, left) = (counted(&mut probe), probe.pttl(NAME).unwrap());
                let is_in_time = begun.elapsed() < FIRST_ATTEMPT / 2;
                waiter.give_back();
                must_be_empty(&mut probe);
                assert!(!probe.exists(NAME));
                if is_in_time {
                    println!("{settings}: {counted:?}, {left:?}");
                    assert_eq!(counted.scripts, 1, "{settings}");
                    assert!(left <= WAITER_PRESENCE && left > WAITER_PRESENCE / 2);
                    assert_eq!(before.is_some(), tokens.is_empty());
                    assert!(token.is_some() == before.is_some() && token >= before);
                }
                is_in_time
            });
        }
    }
}

/// The attempt at the head of the queue reserves tokens for the threads behind it.
#[test]
fn granted_lock_is_handed_to_the_threads_behind_with_its_tokens() {
    for settings in ["order=any", "order=any&format=token"] {
        let settings = format!("hand_off=1s&{settings}");
        eventually("all are granted before they ask again", LONG, || {
            let server = RedisServer::start();
            let mut probe = server.probe();
            teach(&server, &settings);
            let [holder, next] = [(); 2].map(|()| unjoined(&server, &settings));
            let held = mutex(&holder).lock().unwrap();
            let begun = Stopwatch::start();
            let options = LockOptions::new();
            let waiters = [(); 4].map(|()| Waiter::start(&next, &options));
            eventually("they wait", LONG, || {
                next.queue_length(NAME).unwrap() == 4 && waiting(&mut probe, NAME) == 1
            });
            let reserve: u64 = first_fields(&mut probe, NAME)[6].parse().unwrap();
            probe.reset_stats();
            held.unlock().unwrap();
            let mut left: Vec<_> = waiters.into_iter().collect();
            let mut tokens = Vec::new();
            while !left.is_empty() {
                let at = eventually("the next has it", LONG, || {
                    left.iter().position(Waiter::has_it)
                });
                let waiter = left.remove(at);
                tokens.push(waiter.token().unwrap());
                waiter.give_back();
            }
            let counted = counted(&mut probe);
            let is_in_time = begun.elapsed() < FIRST_ATTEMPT / 2 && reserve >= 3;
            must_be_empty(&mut probe);
            assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
            if is_in_time {
                println!("{settings}: {counted:?}, {tokens:?} of {reserve}");
                // Two releases. The server does not know the script of the second one yet, so that
                // is sent twice.
                assert!(counted.scripts <= 3, "{settings}: {counted:?}");
                assert_eq!(tokens[3], tokens[0] + 3);
                let last = probe.get("redisson_lock_token:{x}").unwrap();
                assert_eq!(last, tokens[3].to_string(), "unused tokens go back");
            }
            is_in_time
        });
    }
}

/// Unless the watchdog renews a lock without a limit, the waiter confirms its grant by a request,
/// which sets the whole lease.
#[test]
fn grants_of_other_leases_are_confirmed_by_one_request() {
    let second = Duration::from_secs(1);
    let leases = [
        (LockOptions::new().lease(second * 20), second * 20),
        (LockOptions::new().lease(second * 2), second * 2),
        (
            LockOptions::new().watched_at_most(second * 20, 2),
            second * 20,
        ),
    ];
    for settings in SETTINGS {
        for (options, lease) in &leases {
            eventually("it is granted before it asks again", LONG, || {
                let server = RedisServer::start();
                let mut probe = server.probe();
                teach(&server, settings);
                let [holder, next] = [(); 2].map(|()| unjoined(&server, settings));
                let held = mutex(&holder).lock().unwrap();
                let begun = Stopwatch::start();
                let waiter = Waiter::enter(&mut probe, &next, options);
                let asked = first_fields(&mut probe, NAME)[4].clone();
                assert_eq!(asked, lease.min(&WAITER_PRESENCE).as_millis().to_string());
                probe.reset_stats();
                held.unlock().unwrap();
                waiter.token();
                let (counted, left) = (counted(&mut probe), probe.pttl(NAME).unwrap());
                let is_in_time = begun.elapsed() < FIRST_ATTEMPT / 2;
                if is_in_time {
                    println!("{settings} {lease:?}: {counted:?}, {left:?}");
                    assert_eq!(counted.scripts, 2, "{settings}");
                    assert!(left <= *lease && left + FIRST_ATTEMPT > *lease, "{left:?}");
                }
                waiter.give_back();
                must_be_empty(&mut probe);
                is_in_time
            });
        }
    }
}

#[test]
fn grant_that_replicas_must_confirm_is_asked_for_once() {
    let servers = Replicated::start(2);
    SETTINGS
        .iter()
        .for_each(|settings| teach(&servers.master, settings));
    for settings in SETTINGS {
        let settings = format!("joined=off&replicas=2&{settings}");
        let of_master = |settings: &str| client(&servers.master, settings);
        eventually("it is granted before it asks again", LONG, || {
            let mut probe = servers.master.probe();
            let [holder, next] = [(); 2].map(|()| of_master(&settings));
            let held = mutex(&holder).lock().unwrap();
            let begun = Stopwatch::start();
            let waiter = Waiter::enter(&mut probe, &next, &LockOptions::new());
            probe.reset_stats();
            held.unlock().unwrap();
            waiter.token();
            let is_in_time = begun.elapsed() < FIRST_ATTEMPT / 2;
            let (counted, waits) = (counted(&mut probe), probe.command_calls("wait"));
            if is_in_time {
                println!("{settings}: {counted:?} {waits}");
                assert_eq!(counted.scripts, 2, "{settings}");
                assert!(waits > 0);
                assert!(probe.pttl(NAME).unwrap() > WAITER_PRESENCE);
            }
            waiter.give_back();
            must_be_empty(&mut probe);
            is_in_time
        });
    }
}

/// Puts waiters of clients that are gone into the queue: nothing listens on their inboxes.
fn dead_waiters(server: &RedisServer, settings: &str, count: usize) {
    let kind = match settings.contains("fair") {
        true => lock_core::LockKind::Fair,
        false => lock_core::LockKind::Mutex,
    };
    for _ in 0..count {
        let bench = Bench::new(&format!("{}?{settings}", server.url()));
        let name = name(NAME).of_kind(kind);
        let attempt = Attempt::new(&name, bench.owner(), lease(30_000))
            .tokens(Tokens::Assign { reserve: 0 })
            .waits(true)
            // So long that all are still present when the last one has entered.
            .presence(LONG)
            .direct(NonZeroU64::new(7));
        assert!(matches!(
            bench.backend.acquire(&attempt, soon()).unwrap(),
            Answer::Busy(_)
        ));
    }
}

#[test]
fn dead_waiters_cost_no_time() {
    for settings in SETTINGS {
        let server = RedisServer::start();
        let mut probe = server.probe();
        let holder = client(&server, settings);
        let held = mutex(&holder).lock().unwrap();
        // More than a script checks at once.
        dead_waiters(&server, settings, 230);
        let options = LockOptions::new();
        let living = client(&server, settings);
        let first = Waiter::enter(&mut probe, &living, &options);
        dead_waiters(&server, settings, 30);
        let other = client(&server, settings);
        let second = Waiter::enter(&mut probe, &other, &options);
        assert_eq!(waiting(&mut probe, NAME), 262);
        must_get_it(&first, ms(0), "behind 230 dead ones", || {
            held.unlock().unwrap();
        });
        assert!(!second.has_it());
        must_get_it(&second, ms(0), "behind 30 more", || first.give_back());
        second.give_back();
    }
}

#[test]
fn killed_processes_that_wait_cost_no_time() {
    for settings in SETTINGS {
        let server = RedisServer::start();
        let mut probe = server.probe();
        let holder = client(&server, settings);
        let held = mutex(&holder).lock().unwrap();
        let url = format!("{}?{settings}", server.url());
        let mut children: Vec<Child> = (0..6)
            .map(|_| Example::distlock(&["hold", "--url", &url, NAME]).spawn())
            .collect();
        eventually("all wait", LONG, || waiting(&mut probe, NAME) == 6);
        let living = client(&server, settings);
        let waiter = Waiter::enter(&mut probe, &living, &LockOptions::new());
        children.iter_mut().for_each(Child::kill);
        must_get_it(&waiter, ms(0), "behind killed processes", || {
            held.unlock().unwrap();
        });
        waiter.give_back();
    }
}

/// The faults of one client's proxy.
#[derive(Default)]
struct Faults {
    /// If true, each subscription cuts the connection.
    refuses_subscriptions: AtomicBool,
    /// Milliseconds by which messages are late.
    delay: AtomicU64,
    /// Milliseconds by which attempts are late.
    delay_of_attempts: AtomicU64,
}

impl Plan for Faults {
    fn fate(&self, request: &mut Request) -> Fault {
        let late = self.delay_of_attempts.load(Ordering::SeqCst);
        if self.refuses_subscriptions.load(Ordering::SeqCst) && request.is("SUBSCRIBE") {
            Fault::Cut
        } else if late > 0 && request.kind() == Kind::Acquire {
            Fault::Delay(Duration::from_millis(late))
        } else {
            Fault::Pass
        }
    }

    fn delay_of_messages(&self) -> Duration {
        Duration::from_millis(self.delay.load(Ordering::SeqCst))
    }
}

fn behind(server: &RedisServer, settings: &str) -> (Arc<Faults>, Proxy, Client) {
    let faults = Arc::new(Faults::default());
    let proxy = Proxy::new(server.port(), Arc::clone(&faults) as Arc<dyn Plan>);
    let client = distlock::connect(&format!("{}?{settings}", proxy.url())).unwrap();
    (faults, proxy, client)
}

#[test]
fn waiter_without_a_subscription_is_passed_over_and_keeps_its_place() {
    for settings in SETTINGS {
        let server = RedisServer::start();
        let mut probe = server.probe();
        let [holder, next, last] = [(); 3].map(|()| client(&server, settings));
        let (faults, _proxy, cut) = behind(&server, settings);
        let options = LockOptions::new();
        let held = mutex(&holder).lock().unwrap();
        let first = Waiter::enter(&mut probe, &cut, &options);
        faults.refuses_subscriptions.store(true, Ordering::SeqCst);
        probe.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        let second = Waiter::enter(&mut probe, &next, &options);
        let third = Waiter::enter(&mut probe, &last, &options);
        must_get_it(&second, ms(0), "it is passed over", || {
            held.unlock().unwrap();
        });
        assert!(!first.has_it());
        assert_eq!(first_client(&mut probe), cut.id().to_string(), "{settings}");
        faults.refuses_subscriptions.store(false, Ordering::SeqCst);
        eventually("it listens again", LONG, || {
            let inbox = format!("{}:{}", queue::key(NAME), cut.id());
            let found = probe.command(&["PUBSUB", "NUMSUB", &inbox]);
            matches!(found, Value::List(found) if found[1] == Value::Int(1))
                && first_fields(&mut probe, NAME)[2] != "0"
        });
        must_get_it(&first, ms(0), "it has its place", || second.give_back());
        assert!(!third.has_it());
        must_get_it(&third, ms(0), "and then the next", || first.give_back());
        third.give_back();
        must_be_empty(&mut probe);
    }
}

#[test]
fn paused_process_costs_its_presence_once_and_is_then_behind() {
    for settings in SETTINGS {
        let server = RedisServer::start();
        let mut probe = server.probe();
        let [holder, next, last] = [(); 3].map(|()| client(&server, settings));
        let options = LockOptions::new();
        let held = mutex(&holder).lock().unwrap();
        let url = format!("{}?{settings}", server.url());
        let attempts = counted(&mut probe).acquires;
        let mut paused = Example::distlock(&["hold", "--url", &url, NAME]).spawn();
        eventually("it is in the queue", LONG, || {
            waiting(&mut probe, NAME) == 1 && counted(&mut probe).acquires >= attempts + 2
        });
        let second = Waiter::enter(&mut probe, &next, &options);
        paused.pause();
        let took = must_get_it(&second, WAITER_PRESENCE, "once", || held.unlock().unwrap());
        assert!(
            took > WAITER_PRESENCE / 2,
            "it was granted to the paused one: {took:?}"
        );
        let third = Waiter::enter(&mut probe, &last, &options);
        paused.resume();
        eventually("it waits again", LONG, || waiting(&mut probe, NAME) == 2);
        must_get_it(&third, ms(0), "it is behind", || second.give_back());
        third.give_back();
        paused.expect_event("held", LONG);
    }
}

/// The grant has ended by the time its message arrives, and another client has the lock.
#[test]
fn message_that_comes_after_the_lease_of_its_grant_grants_nothing() {
    for settings in SETTINGS {
        let server = RedisServer::start();
        let mut probe = server.probe();
        let [holder, next] = [(); 2].map(|()| client(&server, settings));
        let (faults, _proxy, late) = behind(&server, &format!("command_timeout=20s&{settings}"));
        let options = LockOptions::new();
        let held = mutex(&holder).lock().unwrap();
        let first = Waiter::enter(&mut probe, &late, &options);
        let second = Waiter::enter(&mut probe, &next, &options);
        let delay = WAITER_PRESENCE * 2;
        let millis = u64::try_from(delay.as_millis()).unwrap();
        faults.delay.store(millis, Ordering::SeqCst);
        faults.delay_of_attempts.store(millis, Ordering::SeqCst);
        let watch = Stopwatch::start();
        let what = "the grant ends";
        must_get_it(&second, WAITER_PRESENCE, what, || held.unlock().unwrap());
        // Until the message, and the attempts that were sent meanwhile, have arrived.
        while watch.elapsed() < delay + FIRST_ATTEMPT {
            assert!(!first.has_it(), "{settings}: two have it");
            let_pass(ms(10));
        }
        faults.delay.store(0, Ordering::SeqCst);
        faults.delay_of_attempts.store(0, Ordering::SeqCst);
        must_get_it(&first, delay * 2, "it gets it after all", || {
            second.give_back();
        });
        first.give_back();
        must_be_empty(&mut probe);
    }
}

/// Returns how long ago the first waiter's last attempt was, in milliseconds.
fn age_of_attempt(probe: &mut Probe) -> u64 {
    let at: u64 = first_fields(probe, NAME)[8].parse().unwrap();
    let time = probe.command(&["TIME"]).texts();
    let [seconds, micros] = [0, 1].map(|at: usize| time[at].parse::<u64>().unwrap());
    (seconds * 1_000_000 + micros).saturating_sub(at) / 1_000
}

/// Sends a waiter the message of a release, changed by `change`, when its last attempt is `age`
/// milliseconds old. Returns whether the waiter takes the message for a grant; `None` if the
/// machine was late.
fn is_believed(settings: &str, age: u64, change: impl Fn(&mut Vec<String>)) -> Option<bool> {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let settings = format!("watchdog=30s&{settings}");
    let [holder, next] = [(); 2].map(|()| unjoined(&server, &settings));
    let held = mutex(&holder).lock().unwrap();
    let waiter = Waiter::enter(&mut probe, &next, &LockOptions::new());
    eventually("the attempt is that old", LONG, || {
        age_of_attempt(&mut probe) >= age
    });
    let begun = Stopwatch::start();
    let fields = first_fields(&mut probe, NAME);
    let mut message: Vec<_> = [1, 2].map(|at| fields[at].clone()).into();
    message.extend(["1", &fields[6], "1:", NAME].map(str::to_owned));
    change(&mut message);
    let inbox = format!("{}:{}", queue::key(NAME), next.id());
    let attempts = counted(&mut probe).acquires;
    probe.command(&["PUBLISH", &inbox, &message.join(" ")]);
    let passed = begun.elapsed();
    eventually("it has read it", LONG, || {
        waiter.has_it() || counted(&mut probe).acquires > attempts
    });
    let is_believed = waiter.has_it();
    // A waiter that believes the message does not have the lock in the store: its release would
    // fail.
    held.unlock().unwrap();
    if !is_believed {
        waiter.give_back();
    }
    (passed < FIRST_ATTEMPT / 4).then_some(is_believed)
}

#[test]
fn only_a_message_for_the_last_attempt_and_the_lock_is_a_grant() {
    for settings in SETTINGS {
        let of = |age, change: &dyn Fn(&mut Vec<String>)| {
            eventually("it is in time", LONG, || is_believed(settings, age, change))
        };
        assert!(of(0, &|_| {}), "{settings}: otherwise this tests nothing");
        let earlier = |message: &mut Vec<String>| {
            message[1] = (message[1].parse::<u64>().unwrap() - 1).to_string();
        };
        assert!(!of(0, &earlier), "{settings}: of an earlier attempt");
        assert!(
            !of(0, &|it| it[5] = "y".to_owned()),
            "{settings}: another lock"
        );
        assert!(!of(0, &|it| it[0].push('1')), "{settings}: another owner");
        assert!(!of(0, &|it| it.truncate(5)), "{settings}: of no lock");
        if settings.contains("fair") {
            continue; // the attempts are too near each other
        }
        // The lease of a grant is the presence. The pauses between attempts grow, so an attempt can
        // become 700 ms old.
        let short = format!("fair_presence=1s&{settings}");
        let late = eventually("it is in time", LONG, || is_believed(&short, 700, |_| {}));
        assert!(!late, "{settings}: more than half of the lease later");
    }
}

/// Starts a thread that waits for the lock until it is interrupted; returns when the thread is in
/// the queue. The thread returns false if it got the lock before.
fn interrupted(probe: &mut Probe, client: &Client, interrupt: &Interrupt) -> JoinHandle<bool> {
    let (before, scripts) = (waiting(probe, NAME), counted(probe).scripts);
    let (lock, options) = (mutex(client), LockOptions::new().interrupt(interrupt));
    let thread = thread::spawn(move || match lock.acquire(None, &options) {
        Ok(_) => false,
        Err(error) => {
            assert!(error.is_interrupted(), "{error}");
            true
        }
    });
    eventually("it is in the queue", LONG, || {
        waiting(probe, NAME) > before && counted(probe).scripts >= scripts + 2
    });
    thread
}

fn holder_of(probe: &mut Probe, settings: &str) -> String {
    if settings.contains("token") {
        return probe.get(NAME).unwrap_or_default();
    }
    probe.hgetall(NAME).into_keys().next().unwrap_or_default()
}

#[test]
fn waiter_that_gives_up_while_the_grant_is_under_way_frees_the_lock() {
    for settings in SETTINGS {
        // On a late machine the waiter repeats its attempt, and gets the lock by that: then the
        // round is repeated.
        eventually("it gives up before it asks again", LONG, || {
            let server = RedisServer::start();
            let mut probe = server.probe();
            let [holder, next] = [(); 2].map(|()| client(&server, settings));
            let (faults, _proxy, leaving) = behind(&server, settings);
            let held = mutex(&holder).lock().unwrap();
            let interrupt = Interrupt::new();
            let first = interrupted(&mut probe, &leaving, &interrupt);
            faults.delay.store(60_000, Ordering::SeqCst);
            let second = Waiter::enter(&mut probe, &next, &LockOptions::new());
            held.unlock().unwrap();
            let holds = holder_of(&mut probe, settings);
            let mut has_given_up = false;
            must_get_it(&second, ms(0), "it is freed at once", || {
                interrupt.fire();
                has_given_up = first.join().unwrap();
            });
            println!(
                "{settings}: granted to {holds}, and {} gave up: {has_given_up}",
                leaving.id()
            );
            second.give_back();
            must_be_empty(&mut probe);
            has_given_up
        });
    }
}

/// A thread whose wait is over may free the lock by force. By then, no release may grant the lock
/// to the wait that is over.
#[test]
fn waiter_that_gave_up_has_left_before_the_next_request_of_its_client() {
    for settings in SETTINGS {
        let server = RedisServer::start();
        let mut probe = server.probe();
        let [holder, leaving] = [(); 2].map(|()| client(&server, settings));
        for round in 0..50 {
            let _held = mutex(&holder).lock().unwrap();
            let refused = mutex(&leaving).try_lock_for(ms(1)).unwrap();
            assert!(refused.is_none());
            mutex(&leaving).inspect().unwrap();
            assert_eq!(waiting(&mut probe, NAME), 0, "{settings}, round {round}");
        }
    }
}

#[test]
fn waiter_that_gives_up_leaves_its_place_to_the_threads_behind() {
    for settings in ["order=any", "order=any&format=token"] {
        let server = RedisServer::start();
        let mut probe = server.probe();
        let [holder, leaving, next] = [(); 3].map(|()| client(&server, settings));
        let held = mutex(&holder).lock().unwrap();
        let interrupt = Interrupt::new();
        let first = interrupted(&mut probe, &leaving, &interrupt);
        let follower = Waiter::start(&leaving, &LockOptions::new());
        eventually("it waits", LONG, || {
            leaving.queue_length(NAME).unwrap() == 2
        });
        let second = Waiter::enter(&mut probe, &next, &LockOptions::new());
        interrupt.fire();
        assert!(first.join().unwrap(), "it is interrupted");
        leaving.wait_for_cleanup(LONG).unwrap();
        assert_eq!(first_client(&mut probe), leaving.id().to_string());
        // Until the thread behind has made an attempt, a release passes its client over.
        eventually("the thread behind has asked", LONG, || {
            first_fields(&mut probe, NAME)[2] != "0"
        });
        must_get_it(&follower, ms(0), "it has the place", || {
            held.unlock().unwrap();
        });
        assert!(!second.has_it());
        follower.give_back();
        second.token();
        second.give_back();
        must_be_empty(&mut probe);
    }
}

/// Gives the user `me` all rights except those that `rules` take away.
fn allow(server: &RedisServer, rules: &str) {
    let rule = format!("ACL SETUSER me reset on nopass ~* &* +@all {rules}");
    let told = server
        .probe()
        .command(&rule.split_whitespace().collect::<Vec<_>>());
    assert_eq!(told.text(), "OK");
}

fn as_me(server: &RedisServer, settings: &str) -> Client {
    distlock::connect(&format!("{}?{settings}", server.url_as("me"))).unwrap()
}

/// Returns how often the server has refused something, by its log.
fn refusals(probe: &mut Probe) -> i64 {
    let Value::List(entries) = probe.command(&["ACL", "LOG"]) else {
        panic!("no list")
    };
    let count = |entry: &Value| match entry {
        Value::List(pairs) => pairs[1].clone().int(),
        other => panic!("{other:?}"),
    };
    entries.iter().map(count).sum()
}

#[test]
fn lock_whose_release_cannot_be_published_is_found_within_a_second() {
    let rules = [
        "-publish",
        "resetchannels &redisson_lock__channel:* &distlock_lock__channel:*",
        "resetchannels",
    ];
    for settings in SETTINGS {
        for rule in rules {
            for tracking in ["", "&tracking=off"] {
                let server = RedisServer::start();
                allow(&server, rule);
                let mut probe = server.probe();
                let [holder, next, last] =
                    [(); 3].map(|()| as_me(&server, &format!("{settings}{tracking}")));
                let options = LockOptions::new();
                let held = mutex(&holder).lock().unwrap();
                let first = Waiter::start(&next, &options);
                eventually("it waits", LONG, || next.queue_length(NAME).unwrap() == 1);
                let_pass(ms(300));
                let second = Waiter::start(&last, &options);
                let_pass(ms(300));
                let what = format!("{settings} {rule}{tracking}");
                let watch = Stopwatch::start();
                held.unlock().unwrap();
                let (got, other) = eventually("one has it", LONG, || {
                    if first.has_it() {
                        Some((true, ()))
                    } else {
                        second.has_it().then_some((false, ()))
                    }
                });
                let took = watch.elapsed();
                println!("{what}: {took:?}, {got}, {other:?}");
                let (first, second) = if got {
                    (first, second)
                } else {
                    (second, first)
                };
                first.token();
                let took = must_get_it(&second, FIRST_ATTEMPT, &what, || first.give_back());
                println!("{what}: then {took:?}");
                second.give_back();
                must_be_empty(&mut probe);
            }
        }
    }
}

/// Otherwise a failed publication would look like a client that is gone, and its waiters would be
/// removed.
#[test]
fn release_that_cannot_be_published_leaves_all_in_the_queue() {
    for settings in SETTINGS {
        for rule in ["-publish", "resetchannels &*_lock__channel:*"] {
            let server = RedisServer::start();
            allow(&server, rule);
            let mut probe = server.probe();
            let holder = as_me(&server, settings);
            let held = mutex(&holder).lock().unwrap();
            dead_waiters(&server, settings, 2);
            let before = probe.command(&["ZRANGE", &queue::key(NAME), "0", "-1"]);
            held.unlock().unwrap();
            assert!(!probe.exists(NAME), "{settings} {rule}: it is free");
            let after = probe.command(&["ZRANGE", &queue::key(NAME), "0", "-1"]);
            assert_eq!(before, after, "{settings} {rule}");
        }
    }
}

#[test]
fn user_without_the_queue_locks_without_it_and_is_refused_once() {
    let rules = [
        "resetkeys ~x ~redisson_lock_token:* ~distlock_closed:* ~distlock_owner:*",
        "-zadd",
    ];
    for settings in SETTINGS {
        for rule in rules {
            let server = RedisServer::start();
            allow(&server, rule);
            let mut probe = server.probe();
            let [holder, next] = [(); 2].map(|()| as_me(&server, settings));
            let pass = |times| {
                for _ in 0..times {
                    let held = mutex(&holder).lock().unwrap();
                    let waiter = Waiter::start(&next, &LockOptions::new());
                    eventually("it waits", LONG, || next.queue_length(NAME).unwrap() == 1);
                    let_pass(ms(50));
                    must_get_it(&waiter, FIRST_ATTEMPT, rule, || held.unlock().unwrap());
                    waiter.give_back();
                }
            };
            pass(2);
            let before = refusals(&mut probe);
            pass(5);
            let after = refusals(&mut probe);
            println!("{settings} {rule}: {before}, {after}");
            assert!(
                after <= 4,
                "{settings} {rule}: each client is refused once or twice"
            );
            assert_eq!(before, after, "{settings} {rule}");
        }
    }
}

/// A client may still listen at a former master, now a replica, which publishes what scripts on the
/// present master publish.
#[test]
fn grant_that_is_taken_back_is_heard_at_no_replica() {
    for settings in SETTINGS {
        let servers = Replicated::start(1);
        let [mut master, mut replica] = servers.probes().try_into().ok().unwrap();
        let held = mutex(&client(&servers.master, settings)).lock().unwrap();
        let cut_off = "0f0e0d0c-0b0a-0908-0706-050403020100";
        let owner = format!("{cut_off}:3");
        let name = if settings == "order=fair" {
            &owner
        } else {
            cut_off
        };
        let now = master.command(&["TIME"]).texts()[0].parse::<u64>().unwrap() * 1_000_000;
        let fields = format!("{name} {owner} 7 9000 3000 - - 1 {now}");
        master.command(&["ZADD", &queue::key(NAME), "1", name, "1", &fields]);
        let inbox = format!("{}:{cut_off}", queue::key(NAME));
        replica.command(&["SUBSCRIBE", &inbox]);
        held.unlock().unwrap();
        let passed_over = &first_fields(&mut master, NAME)[2];
        assert_eq!(
            passed_over, "0",
            "{settings}: it was granted the lock in vain"
        );
        assert!(!master.exists(NAME));
        master.command(&["PUBLISH", &inbox, "the end"]);
        let heard = replica.read_value().unwrap().texts();
        assert_eq!(heard, ["message", &inbox, "the end"], "{settings}");
    }
}

/// Redisson's `RReadWriteLock` treats a mutex of the same name as a free lock: its readers enter
/// beside the holder.
#[test]
fn release_grants_no_lock_that_readers_have_broken_into() {
    for settings in ["order=any", "order=fair"] {
        let server = RedisServer::start();
        let mut probe = server.probe();
        let held = mutex(&client(&server, settings)).lock().unwrap();
        let waiter = Waiter::enter(&mut probe, &client(&server, settings), &LockOptions::new());
        probe.command(&["HSET", NAME, "mode", "read", "someone:1", "1"]);
        held.unlock().unwrap();
        let_pass(ms(300));
        assert!(!waiter.has_it(), "{settings}: beside a reader");
        probe.command(&["DEL", NAME]);
        waiter.token();
        waiter.give_back();
    }
}

#[test]
fn full_server_takes_releases_and_grants() {
    for settings in SETTINGS {
        let server = RedisServer::start();
        let mut probe = server.probe();
        let [holder, next, last] = [(); 3].map(|()| client(&server, settings));
        let options = LockOptions::new();
        let held = mutex(&holder).lock().unwrap();
        let first = Waiter::enter(&mut probe, &next, &options);
        let second = Waiter::enter(&mut probe, &last, &options);
        probe.command(&["CONFIG", "SET", "maxmemory", "1"]);
        must_get_it(&first, ms(0), "on a full server", || held.unlock().unwrap());
        must_get_it(&second, ms(0), "on a full server", || first.give_back());
        second.give_back();
        probe.command(&["CONFIG", "SET", "maxmemory", "0"]);
        must_be_empty(&mut probe);
    }
}

#[test]
fn other_data_under_the_queues_key_is_named_to_waiters() {
    for settings in SETTINGS {
        let server = RedisServer::start();
        let mut probe = server.probe();
        let [holder, next] = [(); 2].map(|()| client(&server, settings));
        let held = mutex(&holder).lock().unwrap();
        probe.command(&["SET", &queue::key(NAME), "a text"]);
        let lock = mutex(&next);
        let waiter = thread::spawn(move || lock.lock().unwrap_err());
        eventually("it waits", LONG, || next.queue_length(NAME).unwrap() == 1);
        let_pass(ms(100));
        held.unlock().unwrap();
        assert!(!probe.exists(NAME));
        eventually("it does not hang", LONG, || waiter.is_finished());
        let error = waiter.join().unwrap();
        println!("{settings}: {error}");
        assert!(error.is_foreign_format(), "{error:?}");
    }
}

/// Clients that acquire the lock again and again, until the test ends them.
struct Crowd {
    ended: Arc<AtomicBool>,
    turns: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Crowd {
    fn start(server: &RedisServer, settings: &str, clients: usize) -> Self {
        let (ended, turns) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let threads = (0..clients).map(|_| {
            let lock = mutex(&client(server, settings));
            let (ended, turns) = (Arc::clone(&ended), Arc::clone(&turns));
            thread::spawn(move || {
                while !ended.load(Ordering::SeqCst) {
                    let guard = lock.lock().unwrap();
                    turns.fetch_add(1, Ordering::SeqCst);
                    let_pass(Duration::from_millis(1));
                    guard.unlock().unwrap();
                }
            })
        });
        let threads = threads.collect();
        Self {
            ended,
            turns,
            threads,
        }
    }

    fn end(self) {
        self.ended.store(true, Ordering::SeqCst);
        self.threads.into_iter().for_each(|it| it.join().unwrap());
    }
}

/// The acquire of Redisson's `RLock`.
const REDISSON: &str = "if ((redis.call('exists', KEYS[1]) == 0) or \
     (redis.call('hexists', KEYS[1], ARGV[2]) == 1)) then \
     redis.call('hincrby', KEYS[1], ARGV[2], 1); redis.call('pexpire', KEYS[1], ARGV[1]); \
     return nil; end; return redis.call('pttl', KEYS[1]);";

#[test]
fn redisson_gets_the_lock_beside_clients_that_queue() {
    for settings in ["order=any", "order=fair"] {
        let server = RedisServer::start();
        let crowd = Crowd::start(&server, settings, 4);
        let (mut probe, mut listener) = (server.probe(), server.probe());
        let channel = "redisson_lock__channel:{x}";
        for _ in 0..5 {
            eventually("it is contended", LONG, || waiting(&mut probe, NAME) >= 2);
            let (watch, before) = (Stopwatch::start(), crowd.turns.load(Ordering::SeqCst));
            listener.command(&["SUBSCRIBE", channel]);
            let owner = "11111111-2222-3333-4444-555555555555:1";
            while probe.command(&["EVAL", REDISSON, "1", NAME, "30000", owner]) != Value::Nil {
                listener.read_value().unwrap();
                assert!(watch.elapsed() < LONG, "it does not get it");
            }
            println!(
                "{settings}: Redisson after {:?}, {} turns",
                watch.elapsed(),
                crowd.turns.load(Ordering::SeqCst) - before
            );
            listener.command(&["UNSUBSCRIBE", channel]);
            probe.command(&["DEL", NAME]);
            probe.command(&["PUBLISH", channel, "0"]);
        }
        crowd.end();
        must_be_empty(&mut probe);
    }
}

#[test]
fn client_that_polls_gets_the_lock_beside_clients_that_queue() {
    let server = RedisServer::start();
    let crowd = Crowd::start(&server, "format=token", 4);
    let mut probe = server.probe();
    for _ in 0..5 {
        eventually("it is contended", LONG, || waiting(&mut probe, NAME) >= 2);
        let (watch, before) = (Stopwatch::start(), crowd.turns.load(Ordering::SeqCst));
        let mut tries = 0;
        while probe.command(&["SET", NAME, "foreign", "NX", "PX", "30000"]) == Value::Nil {
            tries += 1;
            let_pass(Duration::from_millis(1));
            assert!(watch.elapsed() < LONG, "it does not get it");
        }
        println!(
            "polling client after {:?}, {tries} tries, {} turns",
            watch.elapsed(),
            crowd.turns.load(Ordering::SeqCst) - before
        );
        probe.command(&["DEL", NAME]);
    }
    crowd.end();
    must_be_empty(&mut probe);
}

/// The first of a client's threads gives up, and leaves its place to a thread that gives up, too,
/// before it has made an attempt.
#[test]
fn place_that_no_thread_of_a_client_uses_is_granted_to_none() {
    let server = RedisServer::start();
    let [holder, waiter, next] = [(); 3].map(|()| client(&server, ""));
    for _ in 0..150 {
        let held = mutex(&holder).lock().unwrap();
        thread::scope(|scope| {
            for micros in [20_000, 20_000 + fastrand::u64(0..1_000)] {
                let lock = mutex(&waiter);
                scope.spawn(move || {
                    let patience = Duration::from_micros(micros);
                    assert!(lock.try_lock_for(patience).unwrap().is_none());
                });
            }
        });
        waiter.wait_for_cleanup(LONG).unwrap();
        held.unlock().unwrap();
        let (took, tolerance) = with_tolerance(|| {
            let watch = Stopwatch::start();
            mutex(&next).lock().unwrap().unlock().unwrap();
            watch.elapsed()
        });
        tolerance.must_cover(took, WAITER_PRESENCE / 2, "no owner that is gone has it");
    }
}
