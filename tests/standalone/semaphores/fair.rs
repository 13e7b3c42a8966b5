//! Fair semaphores: the order over all clients, whatever number of permits each wants.

use super::{NAME, TAKEN, stored};
use crate::bench::{Bench, LONG, lease, name, soon};
use distlock::backend::{LockKind, OwnerId};
use distlock::{Client, Interrupt, LockOptions, OwnedGuard, Semaphore};
use distlock_tests::contenders::Contenders;
use distlock_tests::contenders::permits::{fair_semaphore, most_at_once};
use distlock_tests::probe::Probe;
use distlock_tests::process::RedisServer;
use distlock_tests::queue;
use distlock_tests::redis::client;
use distlock_tests::time::{Stopwatch, eventually, ms, with_tolerance};
use lock_core::backend::{
    AcquisitionId, Answer, Attempt, NextOwner, Receipt, Release, ReleaseOptions, WAITER_ATTEMPTS,
    Wake,
};
use parking_lot::Mutex as Shared;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

const PLAIN: ReleaseOptions = ReleaseOptions::WITHOUT_TOMBSTONE;
/// The key of the queue, in which waiters are in the order of their arrival.
const QUEUE: &str = "distlock_queue:2:{downloads}";

fn fair(client: &Client, limit: u32) -> Semaphore {
    client.fair_semaphore(NAME, limit).unwrap()
}

fn waiting(probe: &mut Probe) -> i64 {
    queue::waiting(probe, NAME)
}

/// Starts a thread that waits for `count` permits and passes the guard to `then`. Returns once the
/// thread has a position in the queue.
fn enter<T: Send + 'static>(
    probe: &mut Probe,
    semaphore: Semaphore,
    count: u32,
    wait: Duration,
    then: impl FnOnce(Option<OwnedGuard>) -> T + Send + 'static,
) -> JoinHandle<T> {
    let before = waiting(probe);
    let waiter = thread::spawn(move || {
        let options = LockOptions::new();
        then(
            semaphore
                .try_acquire_for_with(count, wait, &options)
                .unwrap(),
        )
    });
    eventually("it has a position", LONG, || waiting(probe) > before);
    waiter
}

fn give_back(permits: Option<OwnedGuard>) {
    permits.expect("it has its turn").unlock().unwrap();
}

#[test]
fn fair_semaphore_serves_all_clients_in_the_order_of_arrival() {
    const WAITERS: u32 = 50;
    let server = RedisServer::start();
    let clients: Vec<_> = (0..3).map(|_| client(&server, "")).collect();
    let mut probe = server.probe();
    let held = fair(&clients[0], 3).acquire_many(3).unwrap();
    let order = Arc::new(Shared::new(Vec::new()));
    let waiters: Vec<_> = (0..WAITERS)
        .map(|n| {
            let (order, client) = (Arc::clone(&order), &clients[n as usize * 7 % 3]);
            // More than half of the permits, so that one waiter at a time is granted.
            enter(
                &mut probe,
                fair(client, 3),
                2 + n % 2,
                LONG,
                move |permits| {
                    order.lock().push(n);
                    give_back(permits);
                },
            )
        })
        .collect();
    let newcomer = fair(&clients[1], 3);
    assert!(newcomer.try_acquire().unwrap().is_none());
    held.unlock().unwrap();
    while waiters.iter().any(|waiter| !waiter.is_finished()) {
        if let Some(permit) = newcomer.try_acquire().unwrap() {
            // By then, at most the last waiter has not yet noted its turn.
            assert!(
                order.lock().len() + 1 >= WAITERS as usize,
                "it overtakes those that wait"
            );
            permit.unlock().unwrap();
        }
    }
    waiters
        .into_iter()
        .for_each(|waiter| waiter.join().unwrap());
    assert_eq!(*order.lock(), (0..WAITERS).collect::<Vec<_>>());
    assert_eq!(stored(&mut probe), ("3".to_owned(), 0));
    eventually("no position is left", LONG, || !probe.exists(QUEUE));
}

/// One client holds single permits in overlap, so that two are never free at once. Returns how long
/// another client waits for two permits; `None` if it does not get them within `longest`.
fn wait_for_two(semaphore_of: fn(&Client) -> Semaphore, longest: Duration) -> Option<Duration> {
    let server = RedisServer::start();
    let [busy, patient] = [(); 2].map(|()| client(&server, ""));
    let mut held = semaphore_of(&busy).acquire().unwrap();
    let watch = Stopwatch::start();
    let waiter = thread::spawn(move || {
        semaphore_of(&patient)
            .try_acquire_for_with(2, longest, &LockOptions::new())
            .unwrap()
            .map(|_| watch.elapsed())
    });
    while !waiter.is_finished() {
        match semaphore_of(&busy).try_acquire().unwrap() {
            Some(next) => std::mem::replace(&mut held, next).unlock().unwrap(),
            None => {
                held.unlock().unwrap();
                held = semaphore_of(&busy)
                    .try_acquire_for(LONG)
                    .unwrap()
                    .expect("it is its turn");
            }
        }
    }
    waiter.join().unwrap()
}

#[test]
fn waiter_for_many_permits_starves_only_where_none_stand_in_line() {
    let unordered = |client: &Client| client.semaphore(NAME, 2).unwrap();
    assert_eq!(wait_for_two(unordered, Duration::from_secs(1)), None);
    let waited = wait_for_two(|client| fair(client, 2), LONG);
    println!("two permits after {waited:?}");
    assert!(waited.is_some());
}

#[test]
fn fair_waiter_that_gives_up_lets_those_in_that_want_fewer() {
    let server = RedisServer::start();
    let [a, b] = [(); 2].map(|()| client(&server, ""));
    let mut probe = server.probe();
    let held = fair(&a, 3).acquire_many(2).unwrap();
    // Longer than the next waiter needs, on a busy machine, to get its position.
    let gives_up = enter(&mut probe, fair(&b, 3), 3, ms(3_000), |permits| {
        permits.is_none()
    });
    let next = enter(&mut probe, fair(&a, 3), 1, LONG, give_back);
    assert!(gives_up.join().unwrap());
    next.join().expect("one is free");
    held.unlock().unwrap();
}

/// Three threads of a client give up at the same time. The first one hands the client's place in
/// the queue over to a thread that gives up as well, before it has attempted: the place must be
/// removed all the same.
#[test]
fn threads_that_give_up_together_leave_no_place_in_the_queue() {
    for settings in ["order=any", "order=fair"] {
        let server = RedisServer::start();
        let mut probe = server.probe();
        let settings = format!("{settings}&fair_presence=60s");
        let [holder, leaving, next] = [(); 3].map(|()| client(&server, &settings));
        let semaphore = |client: &Client| client.semaphore(NAME, 1).unwrap();
        let held = semaphore(&holder).acquire().unwrap();
        let interrupt = Interrupt::new();
        let threads = [(); 3].map(|()| {
            let (semaphore, interrupt) = (semaphore(&leaving), interrupt.clone());
            thread::spawn(move || semaphore.acquire_interruptibly(&interrupt).unwrap_err())
        });
        eventually("a thread is in the queue", LONG, || waiting(&mut probe) > 0);
        let behind = enter(&mut probe, semaphore(&next), 1, LONG, give_back);
        interrupt.fire();
        for thread in threads {
            assert!(thread.join().unwrap().is_interrupted());
        }
        leaving.wait_for_cleanup(LONG).unwrap();
        held.unlock().unwrap();
        let (took, tolerance) = with_tolerance(|| {
            let watch = Stopwatch::start();
            behind.join().unwrap();
            watch.elapsed()
        });
        tolerance.must_cover(took, ms(1_000), &format!("{settings}: it is next"));
    }
}

/// A dead waiter at the head of the queue delays others for its own presence, not for that of their
/// clients.
#[test]
fn dead_head_delays_others_by_its_own_presence() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let client = client(&server, "");
    let presence = ms(1_000);
    let dead = name(NAME).of_kind(LockKind::FairPermits { limit: 1, count: 1 });
    let held = fair(&client, 1).acquire().unwrap();
    let attempt = Attempt::new(&dead, bench.owner(), lease(30_000)).presence(presence);
    assert!(bench.backend.acquire(&attempt, soon()).unwrap().is_busy());
    held.unlock().unwrap();
    let (waited, tolerance) = with_tolerance(|| {
        let watch = Stopwatch::start();
        give_back(fair(&client, 1).try_acquire_for(LONG).unwrap());
        watch.elapsed()
    });
    println!("behind a dead head: {waited:?}");
    let bound = presence + WAITER_ATTEMPTS;
    tolerance.must_cover(
        waited.saturating_sub(bound),
        LONG,
        "a dead head is passed over",
    );
}

#[test]
fn larger_limit_lets_the_next_in_and_a_smaller_one_those_that_want_fewer() {
    let server = RedisServer::start();
    let client = client(&server, "");
    let mut probe = server.probe();
    let mut operator = fair(&client, 4);
    let held = operator.acquire_many(3).unwrap();
    let many = enter(&mut probe, fair(&client, 4), 4, LONG * 2, give_back);
    let one = enter(&mut probe, fair(&client, 4), 1, LONG, give_back);
    // With a limit of three, the first waiter cannot be granted four permits, and no longer keeps
    // the second one out.
    assert_eq!(operator.set_limit(3).unwrap(), Some(4));
    held.unlock().unwrap();
    one.join().unwrap();
    assert!(!many.is_finished(), "there are three");
    let held = operator.acquire_many(3).unwrap();
    assert_eq!(operator.set_limit(7).unwrap(), Some(3));
    many.join().unwrap();
    held.unlock().unwrap();
    assert_eq!(stored(&mut probe), ("7".to_owned(), 0));
}

/// Records the owners that the store names as the next one.
#[derive(Default)]
struct Named(Shared<Vec<String>>);

impl Wake for Named {
    fn wake(&self) {
        self.0.lock().push("any".to_owned());
    }

    fn wake_next(&self, next: &NextOwner) {
        assert!(next.granted.is_none());
        self.0.lock().push(next.owner.as_str().to_owned());
    }
}

/// Sends single attempts of owners, which no client repeats.
struct Store {
    bench: Bench,
    probe: Probe,
    _server: RedisServer,
}

impl Store {
    fn start() -> Self {
        let server = RedisServer::start();
        Self {
            bench: Bench::on(&server),
            probe: server.probe(),
            _server: server,
        }
    }

    fn attempt(&self, owner: OwnerId, count: u32) -> Answer {
        let name = name(NAME).of_kind(LockKind::FairPermits { limit: 3, count });
        self.bench
            .backend
            .acquire(&Attempt::new(&name, owner, lease(30_000)), soon())
            .unwrap()
    }

    #[track_caller]
    fn hold(&self, count: u32) -> OwnerId {
        let owner = self.bench.owner();
        let answer = self.attempt(owner, count);
        assert!(matches!(answer, Answer::Granted(_)), "{answer:?}");
        owner
    }

    #[track_caller]
    fn wait(&self, count: u32) -> OwnerId {
        let owner = self.bench.owner();
        assert!(self.attempt(owner, count).is_busy());
        owner
    }

    fn release(&self, owner: OwnerId, count: u32, options: ReleaseOptions) -> Release {
        let name = name(NAME).of_kind(LockKind::FairPermits { limit: 3, count });
        let id = AcquisitionId::new(name, owner, lease(30_000), Receipt::default());
        self.bench.backend.release(&id, options, soon()).unwrap()
    }
}

#[test]
fn only_the_next_waiter_for_permits_is_told() {
    let store = Store::start();
    let held = [(); 2].map(|()| store.hold(1));
    let [many, quits, last] = [3, 1, 1].map(|count| store.wait(count));
    let named = Arc::new(Named::default());
    let kind = LockKind::FairPermits { limit: 3, count: 1 };
    let wake = Arc::clone(&named) as Arc<dyn Wake>;
    let _watch = store
        .bench
        .backend
        .watch(&name(NAME).of_kind(kind), wake, soon())
        .unwrap();
    let told = |owners: &[OwnerId]| {
        let owners: Vec<_> = owners.iter().map(OwnerId::to_string).collect();
        eventually("they are named", LONG, || *named.0.lock() == owners);
    };
    assert!(matches!(store.release(held[0], 1, PLAIN), Release::Freed));
    told(&[many]);
    assert_eq!(store.release(quits, 1, PLAIN), Release::Gone);
    assert!(store.attempt(many, 3).is_busy(), "two are free");
    assert!(matches!(store.release(held[1], 1, PLAIN), Release::Freed));
    told(&[many, many]);
    assert!(!store.attempt(many, 3).is_busy());
    assert!(store.attempt(last, 1).is_busy());
    assert!(matches!(store.release(many, 3, PLAIN), Release::Freed));
    told(&[many, many, last]);
    // Two permits are left for the waiter behind it.
    let next = store.wait(1);
    assert!(!store.attempt(last, 1).is_busy());
    told(&[many, many, last, next]);
}

#[test]
fn closed_owner_enters_no_queue_of_a_semaphore() {
    let mut store = Store::start();
    let held = store.hold(3);
    let late = store.wait(2);
    assert_eq!(
        store.release(late, 2, ReleaseOptions::WITH_TOMBSTONE),
        Release::Gone
    );
    assert!(matches!(store.attempt(late, 2), Answer::Busy(None)));
    assert!(!store.probe.exists(QUEUE));
    store.release(held, 3, PLAIN);
    assert!(matches!(store.attempt(late, 2), Answer::Busy(None)));
    assert_eq!(stored(&mut store.probe), ("3".to_owned(), 0));
}

/// A forced release removes the head of the queue: otherwise an operator could do nothing about a
/// head that never attempts.
#[test]
fn forced_release_of_free_permits_removes_the_head_of_the_queue() {
    let mut store = Store::start();
    let kind = LockKind::FairPermits { limit: 3, count: 1 };
    let force = |store: &Store| {
        store
            .bench
            .backend
            .admin()
            .unwrap()
            .force_release(&name(NAME).of_kind(kind), soon())
            .unwrap()
    };
    let held = store.hold(3);
    let [_dead, second, third] = [3, 2, 2].map(|count| store.wait(count));
    store.release(held, 3, PLAIN);
    assert!(store.attempt(second, 2).is_busy(), "the first keeps it out");
    assert!(!force(&store), "none is taken");
    assert!(!store.attempt(second, 2).is_busy());
    assert!(store.attempt(third, 2).is_busy(), "one is left");
    assert!(force(&store));
    assert_eq!(waiting(&mut store.probe), 1, "it may take them now");
    assert!(!store.attempt(third, 2).is_busy());
}

#[test]
fn repeated_attempt_keeps_position_and_permits() {
    let mut store = Store::start();
    let held = store.hold(2);
    let [first, second] = [2, 1].map(|count| store.wait(count));
    store.probe.command(&["SCRIPT", "FLUSH"]);
    assert!(store.attempt(second, 1).is_busy() && store.attempt(first, 2).is_busy());
    store.release(held, 2, PLAIN);
    assert_eq!(store.release(held, 2, PLAIN), Release::Gone);
    assert!(store.attempt(second, 1).is_busy(), "the first came before");
    for _ in 0..2 {
        assert!(!store.attempt(first, 2).is_busy());
        assert_eq!(stored(&mut store.probe), ("1".to_owned(), 2));
    }
    assert_eq!(waiting(&mut store.probe), 1, "a holder waits no longer");
    store.probe.pttl(QUEUE).expect("it has an end");
}

#[test]
fn other_data_under_the_queues_key_keeps_no_permits() {
    let server = RedisServer::start();
    let (mut semaphore, mut probe) = (fair(&client(&server, ""), 2), server.probe());
    for forced in [false, true] {
        let permits = semaphore.acquire_many(2).unwrap();
        probe.command(&["SET", QUEUE, "a text"]);
        if forced {
            assert!(semaphore.force_release_all().unwrap());
            assert!(permits.unlock().unwrap_err().is_lost());
        } else {
            permits.unlock().unwrap();
        }
        assert_eq!(semaphore.set_limit(2).unwrap(), Some(2));
        assert_eq!(stored(&mut probe), ("2".to_owned(), 0));
        assert_eq!(probe.get(QUEUE).as_deref(), Some("a text"));
        assert!(semaphore.try_acquire().unwrap_err().is_foreign_format());
        probe.command(&["DEL", QUEUE]);
    }
}

#[test]
fn semaphores_in_order_and_in_none_share_their_permits() {
    let server = RedisServer::start();
    let [ours, others] = [(); 2].map(|()| client(&server, ""));
    let mut probe = server.probe();
    let (in_order, in_none) = (fair(&ours, 2), others.semaphore(NAME, 2).unwrap());
    let held = in_order.acquire().unwrap();
    let beside = in_none.acquire().unwrap();
    assert!(in_order.try_acquire().unwrap().is_none() && in_none.try_acquire().unwrap().is_none());
    let waiter = enter(&mut probe, fair(&ours, 2), 2, LONG, give_back);
    held.unlock().unwrap();
    let overtakes = in_none
        .try_acquire()
        .unwrap()
        .expect("it stands in no line");
    overtakes.unlock().unwrap();
    beside.unlock().unwrap();
    waiter.join().unwrap();
    assert!(!probe.exists(TAKEN));
}

/// No more permits than the limit are held while a process is killed, and while another one is
/// paused and resumes.
#[test]
fn fair_limit_holds_while_processes_are_killed_and_paused() {
    const LIMIT: u32 = 3;
    let server = RedisServer::start();
    let url = format!("{}?watchdog=1s&fair_presence=1s", server.url());
    let mut contenders = Contenders::start(&url, &fair_semaphore(NAME, LIMIT), 3, 3);
    let visits = |contenders: &Contenders| {
        let before = contenders.claims().len();
        eventually("they go on", LONG, || {
            contenders.claims().len() > before + 30
        });
    };
    visits(&contenders);
    contenders.replace_first();
    visits(&contenders);
    contenders.child(0).pause();
    visits(&contenders);
    contenders.child(0).resume();
    visits(&contenders);
    assert_eq!(most_at_once(&contenders.stop()), u64::from(LIMIT));
    let all = fair(&client(&server, ""), LIMIT);
    all.try_acquire_for_with(LIMIT, LONG, &LockOptions::new())
        .unwrap()
        .expect("all come back")
        .unlock()
        .unwrap();
    assert_eq!(stored(&mut server.probe()), (LIMIT.to_string(), 0));
}
