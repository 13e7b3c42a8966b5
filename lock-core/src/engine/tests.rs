//! The engine on the in-memory store and a clock that stands still until it is told to go on.

use crate::backend::{
    Abilities, Answer, Attempt, Backend, Closing, Failure, Lane, LockInfo, Release, Renewal,
    Renewing, TenureId, Wake, Waking, Watch,
};
use crate::error::ErrorKind;
use crate::{
    Client, Clock, DistLock, Error, Event, GuardState, Interrupt, LockName, LockOptions, LossCause,
    ManualClock, MemoryBackend, Moment,
};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use crate::OwnerId;

mod cleanup;
mod doubt;
mod extension;
mod handoff;
mod loss;
mod release;
mod renewal;
mod settings;
mod thread_life;
mod wait;

const SECOND: Duration = Duration::from_secs(1);

/// The memory store, with a record of what it was asked, and failures on demand.
#[derive(Debug, Clone)]
struct Recorded {
    store: MemoryBackend,
    clock: ManualClock,
    log: Arc<Mutex<Vec<Request>>>,
    /// What the next requests of a kind fail with, after or before they are applied.
    faults: Arc<Mutex<VecDeque<(&'static str, Fault)>>>,
    abilities: Abilities,
    /// Who asked for a lock last.
    owner: Arc<Mutex<Option<OwnerId>>>,
    /// While it is up, the backend does not know its lanes.
    lane_panics: Arc<AtomicBool>,
    /// While somebody holds it, requests that are to hang do.
    gate: Arc<Mutex<()>>,
    /// One for each watch; alive for as long as that is.
    watches: Arc<Mutex<Vec<Weak<()>>>>,
}

/// What was asked, when, and by when it had to be answered.
#[derive(Debug, Clone, Copy)]
struct Request {
    kind: &'static str,
    at: Moment,
    by: Moment,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    /// Applied, and the answer waits at the gate.
    AnswerHangs,
    /// Something that is not a lock is under the key.
    Foreign,
    /// The backend panics.
    Panic,
    /// A batch is answered with fewer answers than it has holdings.
    Mute,
    /// Applied, and the answer is lost.
    Swallowed,
    /// Never left.
    NotSent,
    /// It left, and nobody knows more: it may arrive yet.
    Vanished,
    /// The store will not do it, now or later.
    Refused,
    /// Waits at the gate before it is applied.
    Hangs,
    /// Applied, and the answer takes this long.
    Slow(Duration),
    /// Waited for this long, and no answer came.
    TimedOut(Duration),
}

impl Recorded {
    fn new() -> (Self, ManualClock) {
        let clock = ManualClock::new();
        let store = MemoryBackend::new(Arc::new(clock.clone()));
        let recorded = Self {
            store,
            clock: clock.clone(),
            log: Arc::default(),
            faults: Arc::default(),
            abilities: Abilities::full(),
            owner: Arc::default(),
            lane_panics: Arc::default(),
            gate: Arc::default(),
            watches: Arc::default(),
        };
        (recorded, clock)
    }

    /// The same store, seen as one that can do less.
    fn able(&self, abilities: Abilities) -> Self {
        Self { abilities, ..self.clone() }
    }

    fn client(&self) -> Client {
        self.builder().connect().unwrap()
    }

    /// One that gives its commands this long.
    fn impatient_client(&self, command_timeout: Duration) -> Client {
        let configure = |config: crate::Config| config.with_command_timeout(command_timeout);
        self.builder().configure(configure).connect().unwrap()
    }

    fn builder(&self) -> crate::ClientBuilder {
        Client::builder().backend(Arc::new(self.clone())).clock(Arc::new(self.clock.clone()))
    }

    /// A client, and the names of its events in their order.
    fn client_with_events(&self) -> (Client, Arc<Mutex<Vec<String>>>) {
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let (events, clock) = (Arc::clone(&told), Arc::new(self.clock.clone()));
        let client = Client::builder()
            .backend(Arc::new(self.clone()))
            .clock(clock)
            .events(Arc::new(move |event: &Event| {
                let text = format!("{event:?}");
                let name = text.split(' ').next().unwrap_or_default();
                events.lock().push(name.to_owned());
            }))
            .connect()
            .unwrap();
        (client, told)
    }

    fn times(&self, kind: &str) -> Vec<Moment> {
        self.log.lock().iter().filter(|it| it.kind == kind).map(|it| it.at).collect()
    }

    /// How much time the last request of a kind was given.
    fn time_given(&self, kind: &str) -> Duration {
        let log = self.log.lock();
        let last = log.iter().rfind(|it| it.kind == kind).unwrap();
        last.by.since(last.at)
    }

    /// How many watches there are now.
    fn watches(&self) -> usize {
        self.watches.lock().iter().filter(|it| it.strong_count() > 0).count()
    }

    /// All requests of a kind fail, until [`mend`](Self::mend).
    fn cut(&self, kind: &'static str, fault: Fault) {
        self.faults.lock().extend((0..10_000).map(|_| (kind, fault)));
    }

    /// Nothing fails any more.
    fn mend(&self) {
        self.faults.lock().clear();
    }

    /// By when the last request of a kind had to be answered.
    fn by(&self, kind: &str) -> Option<Moment> {
        self.log.lock().iter().rfind(|request| request.kind == kind).map(|request| request.by)
    }

    fn count(&self, kind: &str) -> usize {
        self.times(kind).len()
    }

    fn fail_next(&self, kind: &'static str, fault: Fault) {
        self.faults.lock().push_back((kind, fault));
    }

    fn asked<T>(
        &self,
        kind: &'static str,
        by: Moment,
        apply: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.log.lock().push(Request { kind, at: self.clock.now(), by });
        let mut faults = self.faults.lock();
        let fault = faults.iter().position(|(k, _)| *k == kind).and_then(|at| faults.remove(at));
        drop(faults);
        match fault.map(|(_, fault)| fault) {
            None => apply(),
            Some(Fault::AnswerHangs) => {
                let answer = apply();
                drop(self.gate.lock());
                answer
            }
            Some(Fault::Foreign) => {
                Err(Failure::Refused(Error::new(ErrorKind::ForeignFormat, "on purpose")))
            }
            Some(Fault::Panic) => panic!("on purpose"),
            Some(Fault::Mute) => Err(Failure::NotSent(Error::misuse(MUTE))),
            Some(Fault::NotSent) => Err(Failure::NotSent(Error::unavailable("on purpose"))),
            Some(Fault::Vanished) => Err(Failure::Unknown(Error::unavailable("on purpose"))),
            Some(Fault::Refused) => Err(Failure::Refused(Error::configuration("on purpose"))),
            Some(Fault::Hangs) => {
                drop(self.gate.lock());
                apply()
            }
            Some(Fault::Swallowed) => {
                apply()?;
                Err(Failure::Unknown(Error::unavailable("swallowed on purpose")))
            }
            Some(Fault::TimedOut(time)) => {
                self.clock.advance(time);
                Err(Failure::Unknown(Error::unavailable("timed out on purpose")))
            }
            Some(Fault::Slow(time)) => {
                let answer = apply();
                self.clock.advance(time);
                answer
            }
        }
    }
}

/// How [`Fault::Mute`] is told from a failure.
const MUTE: &str = "no answer at all";

impl Backend for Recorded {
    fn acquire(&self, attempt: &Attempt<'_>, by: Moment) -> Result<Answer, Failure> {
        *self.owner.lock() = Some(attempt.owner);
        self.asked("acquire", by, || self.store.acquire(attempt, by))
    }
    fn renew(&self, lane: Lane, batch: &[Renewing], by: Moment) -> Vec<Result<Renewal, Failure>> {
        match self.asked("renew", by, || Ok(self.store.renew(lane, batch, by))) {
            Ok(answers) => answers,
            Err(failure) if failure.error().to_string().contains(MUTE) => Vec::new(),
            Err(failure) => vec![Err(failure); batch.len()],
        }
    }
    fn release(&self, tenure: &TenureId, closing: Closing, by: Moment) -> Result<Release, Failure> {
        let kind = if closing == Closing::CLEAN { "release" } else { "close" };
        self.asked(kind, by, || self.store.release(tenure, closing, by))
    }
    fn inspect(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure> {
        self.asked("inspect", by, || self.store.inspect(name, by))
    }
    fn force_release(&self, name: &LockName, by: Moment) -> Result<bool, Failure> {
        self.store.force_release(name, by)
    }
    fn watch(&self, name: &LockName, wake: Arc<dyn Wake>, by: Moment) -> Result<Watch, Failure> {
        self.asked("watch", by, || {
            let alive = Arc::new(());
            self.watches.lock().push(Arc::downgrade(&alive));
            self.store.watch(name, wake, by).map(|watch| Watch::new((watch, alive)))
        })
    }
    fn lane(&self, name: &LockName) -> Lane {
        assert!(!self.lane_panics.load(Ordering::SeqCst), "on purpose");
        self.store.lane(name)
    }
    fn abilities(&self) -> Abilities {
        self.abilities
    }
}

/// Waits, in real time and with a bound, until `condition` holds.
fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = crate::SystemClock.now();
    while !condition() {
        assert!(crate::SystemClock.now().since(start) < 20 * SECOND, "did not come about: {what}");
        thread::yield_now();
    }
}

/// Advances by small steps, and lets whoever wakes do its work before the next.
fn advance(client: &Client, clock: &ManualClock, by: Duration) {
    let rest = || eventually("everybody is at rest", || client.0.is_at_rest(|| clock.sleepers()));
    let end = clock.now() + by;
    rest();
    while clock.now() < end {
        clock.advance(Duration::from_millis(10).min(end.since(clock.now())));
        rest();
    }
}

/// Waits until that many threads sleep on the clock, and none whose time has come.
fn parked(clock: &ManualClock, threads: usize) {
    eventually("everybody sleeps", || sleeping(clock) >= threads);
}

/// How many threads sleep on the clock; none if the time of one has come.
fn sleeping(clock: &ManualClock) -> usize {
    let sleepers = clock.sleepers();
    if sleepers.iter().all(|until| *until > clock.now()) { sleepers.len() } else { 0 }
}

/// Advances for as long as that thread needs, and only while it and the `others` sleep.
fn advance_until_done<T>(clock: &ManualClock, others: usize, thread: &thread::JoinHandle<T>) {
    while !thread.is_finished() {
        eventually("it sleeps, or is done", || thread.is_finished() || sleeping(clock) > others);
        clock.advance(SECOND / 20);
    }
}

#[test]
fn renewal_is_sent_with_two_thirds_of_the_lease_left() {
    for lease in [30 * SECOND, 60 * SECOND] {
        let (store, clock) = Recorded::new();
        let client = store.client();
        let lock = client.mutex("x").unwrap();
        let start = clock.now();
        let guard = lock.lock_with(&LockOptions::new().watched(lease)).unwrap();
        advance(&client, &clock, lease * 2);
        let sent: Vec<_> = store.times("renew").iter().map(|at| at.since(start)).collect();
        assert!((5..=6).contains(&sent.len()), "{sent:?}");
        for (n, at) in sent.iter().enumerate() {
            let due = lease / 3 * u32::try_from(n + 1).unwrap();
            assert!(*at >= due && *at < due + SECOND / 5, "{sent:?}");
        }
        assert!(guard.is_valid() && guard.remaining() > lease / 2);
        guard.unlock().unwrap();
    }
}

#[test]
fn quick_cycles_leave_one_timer_and_no_renewals() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    for _ in 0..3_000 {
        lock.lock().unwrap().unlock().unwrap();
    }
    let guard = lock.lock().unwrap();
    let before = store.count("renew");
    advance(&client, &clock, 100 * SECOND);
    let renewals = store.count("renew") - before;
    assert!((9..=10).contains(&renewals), "{renewals} renewals in ten periods");
    drop(guard);
}

#[test]
fn a_name_that_is_not_used_any_more_leaves_nothing() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    for n in 0..500 {
        client.mutex(format!("n{n}")).unwrap().lock().unwrap().unlock().unwrap();
    }
    assert!(client.names_in_use() <= 500);
    advance(&client, &clock, 11 * SECOND);
    eventually("all names are forgotten", || client.names_in_use() == 0);
}

#[test]
fn a_failed_renewal_suspends_and_the_next_one_heals() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let guard = client.mutex("x").unwrap().lock().unwrap();
    store.fail_next("renew", Fault::NotSent);
    clock.advance(10 * SECOND + SECOND / 10);
    eventually("a renewal failed", || guard.state() == GuardState::Suspended);
    assert!(guard.is_valid());
    advance(&client, &clock, 2 * SECOND);
    eventually("the next one came through", || guard.state() == GuardState::Held);
}

#[test]
fn loss_is_declared_at_the_deadline_and_never_before() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let guard = client.mutex("x").unwrap().lock().unwrap();
    let losses = guard.losses();
    for _ in 0..200 {
        store.fail_next("renew", Fault::NotSent);
    }
    advance(&client, &clock, 29 * SECOND);
    assert_eq!((guard.state(), losses.try_recv().is_err()), (GuardState::Suspended, true));
    assert!(guard.is_valid());
    advance(&client, &clock, SECOND);
    let loss = losses.recv_timeout(20 * SECOND).unwrap();
    assert_eq!(loss.cause(), LossCause::Expired);
    assert!(loss.last_failure().is_some());
    assert!(!guard.is_valid());
    assert!(guard.unlock().unwrap_err().is_lost());
}

#[test]
fn a_holder_that_was_paused_past_its_lease_sees_it_at_its_first_look() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let guard =
        client.mutex("x").unwrap().lock_with(&LockOptions::new().lease(10 * SECOND)).unwrap();
    let rival = store.client().mutex("x").unwrap();
    // Nobody else gets to run between the jump and the look: `is_valid` is a look at the clock.
    clock.advance(60 * SECOND);
    assert!(!guard.is_valid());
    let successor = rival.try_lock().unwrap().unwrap();
    assert!(guard.fencing_token() < successor.fencing_token());
    assert!(guard.unlock().unwrap_err().is_lost());
    assert!(successor.verify().is_ok());
}

#[test]
fn validity_counts_from_before_the_request_was_sent() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    store.fail_next("acquire", Fault::Slow(4 * SECOND));
    let guard =
        client.mutex("x").unwrap().lock_with(&LockOptions::new().lease(10 * SECOND)).unwrap();
    assert!(guard.remaining() < 6 * SECOND, "{:?}", guard.remaining());
}

#[test]
fn a_grant_that_comes_after_its_lease_is_given_back_and_reported() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    store.fail_next("acquire", Fault::Slow(11 * SECOND));
    let error = lock.lock_with(&LockOptions::new().lease(10 * SECOND)).unwrap_err();
    assert!(
        error.is_unavailable()
            && error.to_string().contains("11.0s")
            && error.to_string().contains("10s"),
        "{error}"
    );
    assert_eq!(lock.hold_count(), 0);
    assert!(lock.try_lock().unwrap().is_some());
}

#[test]
fn a_lost_answer_to_an_acquire_is_repeated_with_the_same_owner_and_token() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    store.fail_next("acquire", Fault::Swallowed);
    let guard = lock.lock().unwrap();
    assert_eq!(store.count("acquire"), 2);
    assert!(guard.verify().is_ok());
    guard.unlock().unwrap();
    assert_eq!(
        (store.count("release"), store.count("close")),
        (0, 1),
        "a copy may still be under way: tombstone"
    );
    assert!(!lock.is_locked().unwrap());
}

#[test]
fn an_acquire_that_is_given_up_in_doubt_leaves_nothing_locked() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    store.fail_next("acquire", Fault::Swallowed);
    store.fail_next("acquire", Fault::Swallowed);
    assert!(lock.try_lock().unwrap_err().is_unavailable());
    eventually("the attempt is taken back", || store.count("close") == 1);
    eventually("it is free", || !lock.is_locked().unwrap());
}

#[test]
fn a_lost_answer_to_a_release_is_no_loss() {
    let (store, _clock) = Recorded::new();
    let unconfirmed = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&unconfirmed);
    let client = Client::builder()
        .backend(Arc::new(store.clone()))
        .clock(Arc::new(store.clock.clone()))
        .events(Arc::new(move |event: &Event| {
            if matches!(event, Event::ReleaseUnconfirmed { .. }) {
                *counted.lock() += 1;
            }
        }))
        .connect()
        .unwrap();
    let guard = client.mutex("x").unwrap().lock().unwrap();
    store.fail_next("release", Fault::Swallowed);
    let done = thread::spawn({
        let clock = store.clock.clone();
        move || {
            for _ in 0..5_000 {
                clock.advance(Duration::from_micros(10));
                thread::yield_now();
            }
        }
    });
    guard.unlock().unwrap();
    done.join().unwrap();
    eventually("the event comes", || *unconfirmed.lock() == 1);
}

#[test]
fn gone_at_the_first_release_is_a_loss() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    let guard = lock.lock().unwrap();
    store.store.lose(lock.name());
    let error = guard.unlock().unwrap_err();
    assert!(error.is_lost(), "{error:?}");
    assert!(lock.try_lock().unwrap().is_some(), "the thread may lock again");
}

#[test]
fn nested_holds_cost_nothing_and_a_longer_lease_one_renewal() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    let outer = lock.lock().unwrap();
    let inner = lock.lock().unwrap();
    let shorter = lock.lock_with(&LockOptions::new().lease(SECOND)).unwrap();
    assert_eq!((lock.hold_count(), store.count("acquire"), store.count("renew")), (3, 1, 0));
    assert_eq!(inner.fencing_token(), outer.fencing_token());
    let longer = lock.lock_with(&LockOptions::new().lease(60 * SECOND)).unwrap();
    assert_eq!(store.count("renew"), 1);
    assert!(outer.remaining() > 59 * SECOND);
    drop((longer, shorter, inner));
    assert_eq!((lock.hold_count(), store.count("release")), (1, 0));
    outer.unlock().unwrap();
    assert_eq!((lock.hold_count(), store.count("release")), (0, 1));
}

#[test]
fn a_watched_hold_inside_a_fixed_lease_does_not_start_the_watchdog() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    let outer = lock.lock_with(&LockOptions::new().lease(20 * SECOND)).unwrap();
    let inner = lock.lock().unwrap();
    advance(&client, &clock, 19 * SECOND);
    assert!(inner.is_valid());
    advance(&client, &clock, SECOND);
    assert!(!inner.is_valid() && store.count("renew") == 0);
    assert!(lock.lock().unwrap_err().is_lost(), "until all its guards are gone");
    drop(inner);
    assert!(lock.lock().unwrap_err().is_lost());
    assert!(outer.unlock().unwrap_err().is_lost());
    assert!(lock.lock().is_ok());
}

#[test]
fn the_number_of_holds_has_a_limit() {
    let (store, _clock) = Recorded::new();
    let lock = store.client().mutex("x").unwrap();
    let guards: Vec<_> = (0..super::entry::MOST_HOLDS).map(|_| lock.lock().unwrap()).collect();
    assert!(lock.lock().unwrap_err().is_misuse());
    drop(guards);
    assert_eq!((lock.hold_count(), store.count("release")), (0, 1));
}

#[test]
fn renewals_that_are_used_up_leave_time_to_roll_back() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let guard = client
        .mutex("x")
        .unwrap()
        .lock_with(&LockOptions::new().watched_at_most(30 * SECOND, 2))
        .unwrap();
    let losses = guard.losses();
    advance(&client, &clock, 29 * SECOND);
    assert!(losses.try_recv().is_err() && store.count("renew") == 2);
    advance(&client, &clock, 2 * SECOND);
    assert_eq!(losses.recv_timeout(20 * SECOND).unwrap().cause(), LossCause::RenewalsUsedUp);
    assert!(guard.is_valid() && guard.remaining() > 15 * SECOND);
    assert_eq!(guard.state(), GuardState::Suspended);
    advance(&client, &clock, 20 * SECOND);
    assert_eq!((guard.state(), store.count("renew")), (GuardState::Lost, 2));
    assert_eq!(guard.loss().unwrap().cause(), LossCause::RenewalsUsedUp);
}

#[test]
fn the_lock_of_a_thread_that_ended_is_given_back() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    thread::spawn({
        let lock = lock.clone();
        move || lock.lock().unwrap().detach()
    })
    .join()
    .unwrap();
    assert!(lock.is_locked().unwrap());
    advance(&client, &clock, 11 * SECOND);
    eventually("it is free", || !lock.is_locked().unwrap());
}

#[test]
fn dropping_a_client_gives_back_what_was_detached() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    client.mutex("x").unwrap().lock().unwrap().detach();
    drop(client);
    let other = store.client().mutex("x").unwrap();
    eventually("it is free", || !other.is_locked().unwrap());
}

#[test]
fn detached_holds_are_ended_newest_first_by_their_own_thread() {
    let (store, _clock) = Recorded::new();
    let lock = store.client().mutex("x").unwrap();
    assert!(lock.unlock().unwrap_err().is_not_held());
    lock.lock().unwrap().detach();
    lock.lock().unwrap().detach();
    let stranger = lock.clone();
    assert!(thread::spawn(move || stranger.unlock()).join().unwrap().unwrap_err().is_not_held());
    lock.unlock().unwrap();
    assert_eq!((lock.hold_count(), store.count("release")), (1, 0));
    lock.unlock().unwrap();
    assert_eq!((lock.hold_count(), store.count("release")), (0, 1));
    assert!(lock.unlock().unwrap_err().is_not_held());
}

/// Lets that many threads wait for a held lock, one after the other, and returns the order in which they get it.
fn serve(client: &Client, count: usize, options: impl Fn(usize) -> LockOptions) -> Vec<usize> {
    let lock = client.mutex("x").unwrap();
    let guard = lock.lock().unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let threads: Vec<_> = (0..count)
        .map(|n| {
            let (inner, order, options) = (lock.clone(), Arc::clone(&order), options(n));
            let thread = thread::spawn(move || {
                let guard = inner.lock_with(&options).unwrap();
                order.lock().push(n);
                guard.unlock().unwrap();
            });
            eventually("it queues", || client.waiting("x").unwrap() == n + 1);
            thread
        })
        .collect();
    guard.unlock().unwrap();
    for thread in threads {
        thread.join().unwrap();
    }
    std::mem::take(&mut *order.lock())
}

#[test]
fn a_thousand_waiters_are_served_in_order_with_one_attempt_each() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    // No two neighbours want the same, so each takes it from the store.
    let order = serve(&client, 1_000, |n| LockOptions::new().watched(SECOND * (20 + n as u32 % 2)));
    assert_eq!(order, (0..1_000).collect::<Vec<_>>());
    let releases = store.count("release") + store.count("close");
    assert_eq!((store.count("acquire"), releases, store.count("watch")), (1_001, 1_001, 0));
}

#[test]
fn one_interrupt_ends_the_waits_for_several_locks_and_no_other() {
    let (store, _clock) = Recorded::new();
    let (holder, client) = (store.client(), store.client());
    let names = ["a", "b", "c"];
    let held: Vec<_> =
        names.iter().map(|name| holder.mutex(*name).unwrap().lock().unwrap()).collect();
    let (fired, other) = (Interrupt::new(), Interrupt::new());
    let waiters: Vec<_> = names
        .iter()
        .map(|name| {
            let lock = client.mutex(*name).unwrap();
            let interrupt = if *name == "c" { other.clone() } else { fired.clone() };
            let waiter = thread::spawn(move || lock.lock_interruptibly(&interrupt).map(drop));
            eventually("it waits", || client.waiting(*name).unwrap() == 1);
            waiter
        })
        .collect();
    fired.fire();
    let mut waiters = waiters.into_iter();
    for waiter in waiters.by_ref().take(2) {
        assert!(waiter.join().unwrap().unwrap_err().is_interrupted());
    }
    assert!(
        client.mutex("a").unwrap().lock_interruptibly(&fired).unwrap_err().is_interrupted(),
        "until it is reset"
    );
    assert_eq!(client.waiting("c").unwrap(), 1);
    drop(held);
    waiters.next().unwrap().join().unwrap().unwrap();
}

#[test]
fn an_interrupt_also_ends_a_wait_in_the_local_queue() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    let held = lock.lock().unwrap();
    let interrupt = Interrupt::new();
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let (lock, interrupt) = (lock.clone(), interrupt.clone());
            thread::spawn(move || lock.lock_interruptibly(&interrupt).map(drop))
        })
        .collect();
    eventually("they wait", || client.waiting("x").unwrap() == 3);
    interrupt.fire();
    for waiter in waiters {
        assert!(waiter.join().unwrap().unwrap_err().is_interrupted());
    }
    assert_eq!((client.waiting("x").unwrap(), store.count("acquire")), (0, 1));
    held.unlock().unwrap();
}

#[test]
fn a_guard_of_its_own_can_be_sent_and_is_a_stranger_to_its_thread() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    let (owned, mutex) = (client.owned_mutex("x").unwrap(), client.mutex("x").unwrap());
    let guard = owned.lock().unwrap();
    assert!(owned.try_lock().unwrap().is_none() && mutex.try_lock().unwrap().is_none());
    assert_eq!((mutex.hold_count(), mutex.is_held_by_current_thread()), (0, false));
    thread::spawn(move || guard.unlock()).join().unwrap().unwrap();
    assert!(mutex.try_lock().unwrap().is_some());
}

#[test]
fn a_store_that_tells_nobody_is_polled() {
    let (store, clock) = Recorded::new();
    let waking = Waking::Polls { interval: SECOND / 10, jitter: SECOND / 10 };
    let holder = store.client();
    let client = store.able(Abilities::full().waking(waking)).client();
    let held = holder.mutex("x").unwrap().lock().unwrap();
    let waiter = thread::spawn({
        let lock = client.mutex("x").unwrap();
        move || lock.lock().unwrap().fencing_token()
    });
    eventually("it waits", || store.count("acquire") == 2);
    for _ in 0..100 {
        parked(&clock, 2);
        clock.advance(SECOND / 50);
    }
    let asked = store.count("acquire") - 1;
    assert!((8..=20).contains(&asked), "{asked} attempts in 2 s, 100 to 200 ms apart");
    assert_eq!(store.count("watch"), 0);
    let token = held.fencing_token();
    held.unlock().unwrap();
    advance_until_done(&clock, 1, &waiter);
    assert!(waiter.join().unwrap() > token);
}

#[test]
fn where_the_owner_is_not_known_nothing_is_watched_repeated_or_released_late() {
    let (store, clock) = Recorded::new();
    let client = store.able(Abilities::full().owned(false)).client();
    let lock = client.mutex("x").unwrap();
    assert!(lock.lock().unwrap_err().is_unsupported(), "the watchdog cannot keep it");
    let fixed = LockOptions::new().lease(10 * SECOND);
    store.fail_next("acquire", Fault::Swallowed);
    assert!(lock.lock_with(&fixed).unwrap_err().is_unavailable());
    assert_eq!(store.count("acquire"), 1, "a second one might take it twice");
    clock.advance(11 * SECOND);
    let guard = lock.lock_with(&fixed).unwrap();
    assert!(guard.verify().unwrap_err().is_unsupported());
    clock.advance(11 * SECOND);
    assert!(guard.unlock().unwrap_err().is_lost());
    assert_eq!(store.count("release") + store.count("close"), 0, "it could free a stranger's");
    let guard = lock.lock_with(&fixed).unwrap();
    guard.unlock().unwrap();
    assert_eq!(store.count("release"), 1);
}

#[test]
fn a_store_that_answers_but_does_not_tell_of_releases_is_asked_again_and_again() {
    let (store, clock) = Recorded::new();
    let (holder, client) = (store.client(), store.client());
    let held = holder.mutex("x").unwrap().lock().unwrap();
    for _ in 0..1_000 {
        store.fail_next("watch", Fault::NotSent);
    }
    let waiter = thread::spawn({
        let lock = client.mutex("x").unwrap();
        move || lock.lock().unwrap().unlock().unwrap()
    });
    eventually("it waits", || store.count("watch") >= 1);
    for _ in 0..200 {
        parked(&clock, 2);
        clock.advance(SECOND / 50);
    }
    let asked = store.count("watch");
    assert!((6..60).contains(&asked), "{asked} tries in 4 s: backing off, and not giving up");
    held.unlock().unwrap();
    advance_until_done(&clock, 1, &waiter);
    waiter.join().unwrap();
}

#[test]
fn an_unreachable_store_is_unavailable_and_never_busy() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    for _ in 0..10_000 {
        store.fail_next("acquire", Fault::NotSent);
    }
    assert!(lock.try_lock().unwrap_err().is_unavailable());
    let waits = |options: LockOptions| {
        let (lock, clock) = (lock.clone(), clock.clone());
        let start = clock.now();
        let waiter = thread::spawn(move || lock.acquire(&options).map(|guard| guard.is_some()));
        advance_until_done(&clock, 0, &waiter);
        (waiter.join().unwrap().unwrap_err(), clock.now().since(start))
    };
    let (error, after) = waits(LockOptions::new().wait(3 * SECOND));
    assert!(error.is_unavailable() && after >= 3 * SECOND && after < 30 * SECOND, "{after:?}");
    let (error, after) = waits(LockOptions::new());
    assert!(error.is_unavailable() && after >= 30 * SECOND, "one lease of outage: {after:?}");
}

#[test]
fn a_panic_under_the_lock_releases_it() {
    let (store, _clock) = Recorded::new();
    let lock = store.client().mutex("x").unwrap();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        lock.run(|_| panic!("on purpose"))
    }));
    assert!(caught.is_err() && !lock.is_locked().unwrap() && lock.hold_count() == 0);
    let dynamic: &dyn DistLock = &lock;
    assert!(dynamic.run(|guard| guard.is_valid()).unwrap());
    store.store.lose(lock.name());
    let lost = lock.run(|guard| store.store.lose(guard.name()));
    assert!(lost.unwrap_err().is_lost(), "the work was done, and its result is suspect");
}

#[test]
fn absurd_durations_are_refused_or_never_come() {
    let (store, _clock) = Recorded::new();
    let lock = store.client().mutex("x").unwrap();
    for lease in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
        let fixed = LockOptions::new().lease(lease);
        assert!(lock.lock_with(&fixed).unwrap_err().is_misuse(), "{lease:?}");
        assert!(
            lock.lock_with(&LockOptions::new().watched(lease)).unwrap_err().is_misuse(),
            "{lease:?}"
        );
    }
    assert!(lock.lock_with(&LockOptions::new().wait(SECOND)).unwrap_err().is_misuse());
    let guard = lock.try_lock_for(Duration::MAX).unwrap().unwrap();
    assert!(guard.extend(Duration::MAX).unwrap_err().is_misuse());
    assert!(guard.extend(Duration::ZERO).is_ok());
    assert!(
        guard.ensure(Duration::MAX).unwrap_err().is_ending()
            && guard.ensure(Duration::ZERO).is_ok()
    );
}
