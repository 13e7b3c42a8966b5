//! An interrupt at every step of a wait: how soon the wait ends, and that it leaves nothing behind.

use super::scene::{Row, answered, builder_of, client_of, command};
use super::table::Case;
use distlock::time::{Clock, Moment, Signal, SystemClock, Woken};
use distlock::{Client, Error, Event, Interrupt, LockGuard, LockOptions};
use distlock_tests::probe::Probe;
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::{Fault, Plan, Proxy};
use distlock_tests::queue;
use distlock_tests::resp::{Kind, Request};
use distlock_tests::time::{always, eventually, let_pass, ms, scaled};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
/// The bound of a wait that ends at once, without the allowance for a busy machine.
const AT_ONCE: Duration = Duration::ZERO;

pub(super) const CASES: &[Case] = &[
    ("before the call", before_the_call),
    ("in the local queue, behind a holder", behind_a_holder),
    ("in the local queue, behind a waiter", behind_a_waiter),
    ("as it is handed the lock", || in_its_turn(false)),
    ("as it is handed the lock, before another", || {
        in_its_turn(true)
    }),
    ("as the first request is sent, busy", || {
        busy(Step::sent(acquires, 1))
    }),
    ("as the first answer comes, busy", || {
        busy(Step::answered(acquires, 1))
    }),
    ("as it subscribes", || busy(Step::sent(subscribes, 1))),
    ("as the subscription is confirmed", || {
        busy(Step::answered(subscribes, 1))
    }),
    ("as it looks again", || busy(Step::sent(acquires, 2))),
    ("after that look, before it sleeps", || {
        busy(Step::answered(acquires, 2))
    }),
    ("asleep", asleep),
    ("as the first request is sent, free", || {
        free(Step::sent(acquires, 1))
    }),
    ("as it is granted", || free(Step::answered(acquires, 1))),
    ("a request is under way that gets no answer", no_answer),
    ("the server is frozen", frozen),
    ("the server is down, between two tries", down),
    ("after the grant", after_the_grant),
];

fn acquires(request: &Request) -> bool {
    request.kind() == Kind::Acquire
}

fn subscribes(request: &Request) -> bool {
    request.is("SUBSCRIBE")
}

/// The command of the waiter at which the interrupt fires, and the fault of that command.
struct Step {
    on: fn(&Request) -> bool,
    turn: u64,
    /// If true, the interrupt fires when the server has answered and the client does not have the
    /// answer yet; otherwise before the server gets the command.
    answered: bool,
    fault: Fault,
}

impl Step {
    fn sent(on: fn(&Request) -> bool, turn: u64) -> Self {
        Self {
            on,
            turn,
            answered: false,
            fault: Fault::Pass,
        }
    }

    fn answered(on: fn(&Request) -> bool, turn: u64) -> Self {
        Self {
            answered: true,
            ..Self::sent(on, turn)
        }
    }
}

/// A proxy's plan that fires the interrupt at its step, and records when.
struct Fires {
    step: Step,
    sent: AtomicU64,
    answered: AtomicU64,
    interrupt: Interrupt,
    at: Mutex<Option<Moment>>,
}

impl Fires {
    fn at(step: Step) -> Arc<Self> {
        let (sent, answered) = (AtomicU64::new(0), AtomicU64::new(0));
        let (interrupt, at) = (Interrupt::new(), Mutex::default());
        Arc::new(Self {
            step,
            sent,
            answered,
            interrupt,
            at,
        })
    }

    fn count(&self, seen: &AtomicU64, answered: bool) -> bool {
        let is_it = seen.fetch_add(1, Ordering::SeqCst) + 1 == self.step.turn;
        if is_it && answered == self.step.answered {
            *self.at.lock() = Some(SystemClock.now());
            self.interrupt.fire();
        }
        is_it
    }
}

impl Plan for Fires {
    fn fate(&self, request: &mut Request) -> Fault {
        let is_it = (self.step.on)(request) && self.count(&self.sent, false);
        if is_it { self.step.fault } else { Fault::Pass }
    }

    fn answered(&self, request: &Request, _: &[u8], _: Fault) {
        if (self.step.on)(request) {
            self.count(&self.answered, true);
        }
    }
}

/// Starts a server that knows the scripts.
fn server() -> RedisServer {
    let server = RedisServer::start();
    client_of(&server.url())
        .mutex("b")
        .unwrap()
        .lock()
        .unwrap()
        .unlock()
        .unwrap();
    server
}

/// Returns the outcome of a wait with this interrupt, and when it ended. The wait has a deadline:
/// otherwise an interrupt without effect would leave the test waiting for ever.
fn wait(client: &Client, interrupt: &Interrupt) -> (Result<LockGuard, Error>, Moment) {
    let options = LockOptions::new().interrupt(interrupt);
    let lock = client.mutex("a").unwrap();
    let outcome = lock.try_lock_for_with(scaled(LONG), &options);
    let ended = SystemClock.now();
    (
        outcome.map(|guard| guard.expect("the interrupt ends it, or it is granted")),
        ended,
    )
}

/// Returns the owners of the lock, and the subscribed channels.
fn left(probe: &mut Probe) -> (Vec<String>, Vec<String>) {
    let channels = probe.command(&["PUBSUB", "CHANNELS"]).texts();
    (probe.hgetall("a").into_keys().collect(), channels)
}

/// Interrupts a wait while another client holds the lock.
fn busy(step: Step) -> Row {
    let (server, fires) = (server(), Fires::at(step));
    let holder = client_of(&server.url()).mutex("a").unwrap().lock().unwrap();
    let mut probe = server.probe();
    let before = left(&mut probe);
    let proxy = Proxy::new(server.port(), Arc::clone(&fires) as Arc<dyn Plan>);
    let client = client_of(&proxy.url());
    let (outcome, ended) = wait(&client, &fires.interrupt);
    let error = outcome.map(drop).unwrap_err();
    assert!(error.is_interrupted(), "{error:?}");
    let fired = fires.at.lock().expect("it has fired");
    assert_eq!(client.queue_length("a").unwrap(), 0);
    eventually("nothing but the holder is left", LONG, || {
        left(&mut probe) == before
    });
    holder.unlock().unwrap();
    client
        .mutex("a")
        .unwrap()
        .try_lock()
        .unwrap()
        .unwrap()
        .unlock()
        .unwrap();
    // The wait ends only after the request that is under way.
    Row::new(error, ended.since(fired), command())
}

/// Interrupts a wait for a free lock. The client may get the lock or not; in both cases no request
/// with an unknown outcome is left.
fn free(step: Step) -> Row {
    let (server, fires) = (server(), Fires::at(step));
    let proxy = Proxy::new(server.port(), Arc::clone(&fires) as Arc<dyn Plan>);
    let client = client_of(&proxy.url());
    let (outcome, ended) = wait(&client, &fires.interrupt);
    let fired = fires.at.lock().expect("it has fired");
    let said = match outcome {
        Ok(guard) => {
            answered(guard.verify());
            answered(guard.unlock());
            "it was granted, and is held".to_owned()
        }
        Err(error) => {
            assert!(error.is_interrupted(), "{error:?}");
            error.to_string()
        }
    };
    let mut probe = server.probe();
    eventually("nothing is left", LONG, || {
        left(&mut probe) == (vec![], vec![])
    });
    always("nothing comes back", command(), || !probe.exists("a"));
    Row::new(said, ended.since(fired), command())
}

fn no_answer() -> Row {
    free(Step {
        fault: Fault::SwallowReply,
        ..Step::sent(acquires, 1)
    })
}

fn before_the_call() -> Row {
    let server = server();
    let client = client_of(&server.url());
    let interrupt = Interrupt::new();
    interrupt.fire();
    let mut probe = server.probe();
    probe.reset_stats();
    let start = SystemClock.now();
    let (outcome, ended) = wait(&client, &interrupt);
    let error = outcome.map(drop).unwrap_err();
    assert!(
        error.is_interrupted() && probe.command_calls("evalsha") == 0,
        "{error:?}"
    );
    Row::new(error, ended.since(start), AT_ONCE)
}

/// Interrupts a wait on another thread after `ready` has returned.
fn fired_when(client: &Client, ready: impl FnOnce()) -> (Error, Duration) {
    let interrupt = Interrupt::new();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let (outcome, ended) = wait(client, &interrupt);
            (outcome.map(drop).unwrap_err(), ended)
        });
        ready();
        assert!(!waiting.is_finished(), "it waits");
        let fired = SystemClock.now();
        interrupt.fire();
        let (error, ended) = waiting.join().unwrap();
        assert!(error.is_interrupted(), "{error:?}");
        (error, ended.since(fired))
    })
}

fn behind_a_holder() -> Row {
    let server = server();
    let client = client_of(&server.url());
    let held = client.mutex("a").unwrap().lock().unwrap();
    let queues = || eventually("it queues", LONG, || client.queue_length("a").unwrap() == 1);
    let (error, took) = fired_when(&client, queues);
    assert_eq!(client.queue_length("a").unwrap(), 0);
    held.unlock().unwrap();
    Row::new(error, took, AT_ONCE)
}

fn behind_a_waiter() -> Row {
    let server = server();
    let held = client_of(&server.url()).mutex("a").unwrap().lock().unwrap();
    let client = client_of(&server.url());
    thread::scope(|scope| {
        let first = scope.spawn(|| client.mutex("a").unwrap().lock().unwrap().unlock());
        eventually("one waits", LONG, || client.queue_length("a").unwrap() == 1);
        let queues = || {
            eventually("another queues", LONG, || {
                client.queue_length("a").unwrap() == 2
            });
        };
        let (error, took) = fired_when(&client, queues);
        assert!(!first.is_finished(), "it is not meant");
        held.unlock().unwrap();
        first.join().unwrap().unwrap();
        Row::new(error, took, AT_ONCE)
    })
}

/// The name of the thread that a test's clock interrupts.
const WAITER: &str = "waiter";

/// The machine's clock, which fires the interrupt at a certain wake-up of the waiter.
#[derive(Debug)]
struct Alarm {
    /// True from the moment when the holder in this client releases the lock. Earlier wake-ups do
    /// not count.
    is_set: AtomicBool,
    interrupt: Interrupt,
    at: Mutex<Option<Moment>>,
}

impl Alarm {
    fn fire(&self) {
        let mut at = self.at.lock();
        if at.is_none() {
            *at = Some(SystemClock.now());
            self.interrupt.fire();
        }
    }
}

impl Clock for Alarm {
    fn now(&self) -> Moment {
        SystemClock.now()
    }

    fn wait(&self, signal: &Arc<Signal>, until: Moment) -> Woken {
        let woken = SystemClock.wait(signal, until);
        let is_it = self.is_set.load(Ordering::SeqCst) && thread::current().name() == Some(WAITER);
        // The waiter was woken because the lock was handed to it, and has not seen that yet.
        if is_it && woken == Woken::Signalled {
            self.fire();
        }
        woken
    }
}

/// Interrupts a waiter when another thread of its client hands the lock to it, with or without
/// another waiter behind it.
fn in_its_turn(before_another: bool) -> Row {
    // On a busy machine the lock may be handed over before the waiter sleeps: then the case is
    // repeated.
    eventually("it sleeps like that", LONG, || {
        try_in_its_turn(before_another)
    })
}

/// Runs the case; returns `None` if the waiter got the lock without sleeping.
fn try_in_its_turn(before_another: bool) -> Option<Row> {
    let server = server();
    let elsewhere = client_of(&server.url()).mutex("a").unwrap().lock().unwrap();
    let (is_set, interrupt, at) = (AtomicBool::new(false), Interrupt::new(), Mutex::default());
    let alarm = Arc::new(Alarm {
        is_set,
        interrupt,
        at,
    });
    let taken = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&taken);
    let counts = move |event: &Event| {
        count.fetch_add(
            u64::from(matches!(event, Event::Acquired { .. })),
            Ordering::SeqCst,
        );
    };
    let hand_off = Duration::from_secs(1);
    let client = builder_of(&server.url())
        // Without tokens: otherwise the first attempt would set none aside for the threads that
        // queue later, and the lock could not be handed to them.
        .configure(|config| {
            config
                .with_hand_off(hand_off)
                .with_tokens(lock_core::TokenPolicy::Off)
        })
        .clock(Arc::clone(&alarm) as Arc<dyn Clock>)
        .events(Arc::new(counts))
        .connect()
        .unwrap();
    let lock = client.mutex("a").unwrap();
    let queues =
        |n: usize| eventually("it queues", LONG, || client.queue_length("a").unwrap() == n);
    let mut probe = server.probe();
    let (outcome, ended) = thread::scope(|scope| {
        let first = scope.spawn(|| {
            let guard = lock.lock().unwrap();
            alarm.is_set.store(true, Ordering::SeqCst);
            guard.unlock().unwrap();
        });
        queues(1);
        let waiter = thread::Builder::new().name(WAITER.to_owned());
        let waiting = waiter
            .spawn_scoped(scope, || {
                let (outcome, ended) = wait(&client, &alarm.interrupt);
                (outcome.map(drop), ended)
            })
            .unwrap();
        queues(2);
        let another =
            before_another.then(|| scope.spawn(|| lock.lock().unwrap().unlock().unwrap()));
        queues(2 + usize::from(before_another));
        eventually("they wait in the store's queue", LONG, || {
            queue::waiting(&mut probe, "a") == 1
        });
        elsewhere.unlock().unwrap();
        first.join().unwrap();
        if let Some(another) = another {
            another.join().unwrap();
        }
        waiting.join().unwrap()
    });
    let Some(fired) = *alarm.at.lock() else {
        outcome.expect("nothing has interrupted it");
        return None;
    };
    let error = outcome.unwrap_err();
    assert!(error.is_interrupted(), "{error:?}");
    eventually("nothing is left", LONG, || {
        left(&mut probe) == (vec![], vec![])
    });
    always("nothing comes back", command(), || !probe.exists("a"));
    // The grant that was handed to the waiter counts, too.
    let had = 2 + u64::from(before_another);
    assert_eq!(taken.load(Ordering::SeqCst), had, "the number of grants");
    let bound = command();
    Some(Row::new(error, ended.since(fired), bound))
}

fn asleep() -> Row {
    let server = server();
    let held = client_of(&server.url()).mutex("a").unwrap().lock().unwrap();
    let (client, mut probe) = (client_of(&server.url()), server.probe());
    probe.reset_stats();
    let (error, took) = fired_when(&client, || {
        eventually("it has looked again", LONG, || {
            probe.command_calls("exists") >= 2
        });
        let_pass(ms(20));
    });
    eventually("its subscription ends", LONG, || {
        left(&mut probe).1.is_empty()
    });
    held.unlock().unwrap();
    Row::new(error, took, AT_ONCE)
}

fn frozen() -> Row {
    let server = server();
    let client = client_of(&server.url());
    client.mutex("a").unwrap().lock().unwrap().unlock().unwrap();
    server.pause();
    let (error, took) = fired_when(&client, || {
        eventually("it waits", LONG, || client.queue_length("a").unwrap() == 1);
    });
    server.resume();
    let mut probe = server.probe();
    eventually("nothing is left", LONG, || !probe.exists("a"));
    always("nothing comes back", command(), || !probe.exists("a"));
    Row::new(error, took, command())
}

/// The machine's clock, which fires the interrupt when the waiter begins a long pause, and records
/// what ended that pause.
#[derive(Debug)]
struct Pauses {
    interrupt: Interrupt,
    ended_by: Mutex<Option<(Moment, Woken)>>,
}

impl Clock for Pauses {
    fn now(&self) -> Moment {
        SystemClock.now()
    }

    fn wait(&self, signal: &Arc<Signal>, until: Moment) -> Woken {
        let is_long = until.since(self.now()) > Duration::from_millis(300);
        let is_it = is_long && thread::current().name() == Some(WAITER);
        if !is_it || self.interrupt.is_fired() {
            return SystemClock.wait(signal, until);
        }
        let at = SystemClock.now();
        self.interrupt.fire();
        let woken = SystemClock.wait(signal, until);
        *self.ended_by.lock() = Some((at, woken));
        woken
    }
}

/// Interrupts a pause between two tries; such pauses grow to half a second.
fn down() -> Row {
    let mut server = server();
    let url = format!(
        "{}?outage_limit=1m&command_timeout={}ms",
        server.url(),
        command().as_millis()
    );
    let pauses = Arc::new(Pauses {
        interrupt: Interrupt::new(),
        ended_by: Mutex::default(),
    });
    let client = distlock::builder()
        .url(&url)
        .unwrap()
        .clock(Arc::clone(&pauses) as Arc<dyn Clock>);
    let client = client.connect().unwrap();
    server.kill();
    let (outcome, ended) = thread::scope(|scope| {
        let waiter = thread::Builder::new().name(WAITER.to_owned());
        let waits = || {
            let (outcome, ended) = wait(&client, &pauses.interrupt);
            (outcome.map(drop), ended)
        };
        waiter.spawn_scoped(scope, waits).unwrap().join().unwrap()
    });
    let error = outcome.unwrap_err();
    assert!(error.is_interrupted(), "{error:?}");
    let (fired, woken) = pauses.ended_by.lock().take().expect("it has fired");
    assert_eq!(
        woken,
        Woken::Signalled,
        "the pause did not go on to its end"
    );
    Row::new(error, ended.since(fired), AT_ONCE)
}

fn after_the_grant() -> Row {
    let server = server();
    let (client, interrupt) = (client_of(&server.url()), Interrupt::new());
    let guard = wait(&client, &interrupt).0.unwrap();
    interrupt.fire();
    guard.verify().unwrap();
    let start = SystemClock.now();
    let (outcome, ended) = wait(&client, &interrupt);
    assert!(
        outcome.map(drop).unwrap_err().is_interrupted(),
        "also a nested hold"
    );
    guard.unlock().unwrap();
    Row::new(
        "nothing: it is held; the next wait is refused",
        ended.since(start),
        AT_ONCE,
    )
}
