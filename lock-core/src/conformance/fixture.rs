//! What a case works with: names, clients, a direct line to the backend, and bounded waiting.

use super::lateness::{late, late_after};
use super::replicas::ReplicaSet;
use super::scale::scaled;
use super::subject::Subject;
use super::violation::violated_unless;
use super::virtual_time::VirtualTime;
use crate::backend::{
    AcquisitionId, Answer, Attempt, Backend, Failure, Grant, LockInfo, Receipt, Release,
    ReleaseOptions, Renewal, RenewalRequest, Tokens, Wake, Watch,
};
use crate::client::{Client, ClientBuilder};
use crate::clock::{Clock, Moment, Signal, SystemClock, Woken};
use crate::guard::LockGuard;
use crate::lease::LeaseTime;
use crate::lock::DistLock;
use crate::loss::{Loss, LossCause};
use crate::name::LockName;
use crate::options::LockOptions;
use crate::owner::{ClientId, OwnerId};
use crate::replication::{InsufficientReplicas, Replication};
use crate::scheme::Context;
use crate::token::FencingToken;
use crossbeam_channel::Receiver;
use parking_lot::Mutex as Cell;
use std::cell::RefCell;
use std::cmp::Ordering as Order;
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// A number of milliseconds, times the scale.
pub(super) fn ms(millis: u64) -> Duration {
    scaled(Duration::from_millis(millis))
}

/// A lease that the case waits out.
pub(super) fn short() -> Duration {
    ms(300)
}

/// A lease that is renewed in time, also on a busy machine.
pub(super) fn kept() -> Duration {
    ms(900)
}

/// A lease that outlives the case: what is freed within it was freed by somebody.
pub(super) fn long() -> Duration {
    ms(60_000)
}

/// The bound on what must happen at once, generous to busy machines, and far from [`long`].
pub(super) fn prompt() -> Duration {
    ms(1_500)
}

/// The bound on what must happen after a few short leases at most.
pub(super) fn patience() -> Duration {
    ms(4_000)
}

/// A lock name that nobody has used.
pub(super) fn fresh_name() -> LockName {
    named("conformance:")
}

/// The same with a text before it.
pub(super) fn named(before: &str) -> LockName {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("{:08x}:{}", fastrand::u32(..), NEXT.fetch_add(1, Ordering::Relaxed));
    let name = if world().tags { format!("{before}{{{name}}}") } else { [before, &name].concat() };
    LockName::new(&name).expect("well formed")
}

/// What the threads of a case share.
#[derive(Clone)]
pub(super) struct World {
    /// The time of the case and of its store.
    pub(super) clock: Arc<dyn Clock>,
    /// Whether the names of its locks have hash tags.
    pub(super) tags: bool,
}

thread_local! {
    static WORLD: RefCell<World> =
        RefCell::new(World { clock: Arc::new(SystemClock), tags: false });
}

/// This thread is one of the case's from here on.
pub(super) fn enter(world: World) {
    WORLD.set(world);
}

fn world() -> World {
    WORLD.with_borrow(World::clone)
}

/// The clock that this thread's case runs on.
pub(super) fn clock() -> Arc<dyn Clock> {
    world().clock
}

/// Where a new client opens the subject.
pub(super) fn context() -> Context {
    Context::new(clock(), ClientId::random())
}

/// A process of its own, whose watchdog's lease is [`long`].
pub(super) fn client(subject: &dyn Subject) -> Process<'_> {
    let builders = subject.clients(&context()).into_iter();
    let clients = builders.map(|builder| connect(subject, builder)).collect();
    Process { subject, clients }
}

/// The clients of a process. Of most subjects that is one, and this is it.
pub(super) struct Process<'a> {
    subject: &'a dyn Subject,
    clients: Vec<Client>,
}

impl Deref for Process<'_> {
    type Target = Client;

    fn deref(&self) -> &Client {
        let [client] = &self.clients[..] else { panic!("this case is for a single client") };
        client
    }
}

/// A lock of the subject's, which may be made of several, under the name by which the subject knows
/// it.
#[derive(Clone)]
pub(super) struct Lock {
    lock: Arc<dyn DistLock>,
    name: LockName,
}

impl Lock {
    pub(super) fn name(&self) -> &LockName {
        &self.name
    }
}

impl Deref for Lock {
    type Target = dyn DistLock;

    fn deref(&self) -> &Self::Target {
        self.lock.as_ref()
    }
}

/// Who has locks.
pub(super) trait Locks {
    fn lock(&self, name: &LockName) -> Arc<dyn DistLock>;
}

impl Locks for Client {
    fn lock(&self, name: &LockName) -> Arc<dyn DistLock> {
        self.mutex(name).expect("a good name").into()
    }
}

impl Locks for Process<'_> {
    fn lock(&self, name: &LockName) -> Arc<dyn DistLock> {
        self.subject.lock(&self.clients, name)
    }
}

/// The same from a builder that was prepared. A request may take longer than whatever is to be
/// [`prompt`], so that a store which keeps it waiting is told from one that is slow.
pub(super) fn connect(subject: &dyn Subject, builder: ClientBuilder) -> Client {
    builder
        .configure(|config| config.with_watchdog(long()).with_command_timeout(ms(2_000)))
        .configure(|config| subject.settings(config))
        .connect()
        .expect("the store can be opened")
}

/// A lock of this client, or of this process.
pub(super) fn mutex(whose: &impl Locks, name: &LockName) -> Lock {
    Lock { lock: whose.lock(name), name: name.clone() }
}

/// One and the same lock, nobody's before, seen by `N` clients.
pub(super) fn mutexes<const N: usize>(subject: &dyn Subject) -> [Lock; N] {
    let name = fresh_name();
    std::array::from_fn(|_| mutex(&client(subject), &name))
}

/// Takes a lock that must be free.
#[track_caller]
pub(super) fn take(mutex: &Lock) -> LockGuard {
    mutex.try_lock().expect("the store answers").expect("a free lock is granted")
}

/// Takes a lock that must be free, with options.
#[track_caller]
pub(super) fn take_with(mutex: &Lock, options: &LockOptions) -> LockGuard {
    mutex.try_lock_with(options).expect("the store answers").expect("a free lock is granted")
}

/// Takes a lock that must become free within [`patience`].
#[track_caller]
pub(super) fn take_soon(mutex: &Lock) -> LockGuard {
    take_within(mutex, patience())
}

/// Takes a lock that must become free within `bound`.
#[track_caller]
pub(super) fn take_within(mutex: &Lock, bound: Duration) -> LockGuard {
    let taken = mutex.try_lock_for(bound).expect("the store answers");
    taken.unwrap_or_else(|| late_after(bound, format!("the lock was not granted within {bound:?}")))
}

/// The tokens of a holding, one for each lock that it is made of. One is larger than the other if
/// it is on all locks that both hold: any two majorities have one in common.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Shown(Vec<Option<FencingToken>>);

/// The tokens that this guard shows.
#[track_caller]
pub(super) fn shown(guard: &LockGuard) -> Shown {
    let tokens: Vec<_> = guard.fencing_tokens().into_iter().map(|(_, token)| token).collect();
    assert!(tokens.iter().any(Option::is_some), "a token");
    Shown(tokens)
}

impl PartialOrd for Shown {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        let both =
            self.0.iter().zip(&other.0).filter_map(|(a, b)| Some(a.as_ref()?.cmp(b.as_ref()?)));
        let both: Vec<_> = both.collect();
        let first = *both.first()?;
        both.iter().all(|it| *it == first).then_some(first)
    }
}

/// Whether somebody else has it.
#[track_caller]
pub(super) fn is_busy(mutex: &Lock) -> bool {
    mutex.try_lock().expect("the store answers").is_none()
}

/// Options with a lease that ends by itself.
pub(super) fn fixed(lease: Duration) -> LockOptions {
    LockOptions::new().lease(lease)
}

/// Options with a lease that the watchdog keeps.
pub(super) fn watched(lease: Duration) -> LockOptions {
    LockOptions::new().watched(lease)
}

/// Does something on another thread, and waits for it.
pub(super) fn elsewhere<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| join(spawn(scope, work)))
}

/// Starts a thread of this case. It bears this one's name, so that what it panics with is said, or
/// not, like ours.
pub(super) fn spawn<'scope, R: Send + 'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    work: impl FnOnce() -> R + Send + 'scope,
) -> thread::ScopedJoinHandle<'scope, R> {
    let name = thread::current().name().unwrap_or("case").to_owned();
    let world = world();
    let work = move || {
        enter(world);
        work()
    };
    thread::Builder::new().name(name).spawn_scoped(scope, work).expect("a thread can be started")
}

/// What a thread came to; its panic becomes ours.
pub(super) fn join<R>(thread: thread::ScopedJoinHandle<'_, R>) -> R {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Now, on the case's clock.
pub(super) fn now() -> Moment {
    clock().now()
}

/// Lets time pass that is itself the subject: a lease that is to run out.
pub(super) fn let_pass(time: Duration) {
    let clock = clock();
    let _due = clock.wait(&Arc::default(), clock.now() + time);
}

/// How long the next look is put off. Each look in virtual time stops all threads of the process,
/// so there are fewer.
fn look_again() -> Duration {
    // A bound that is scaled costs no more looks for that.
    if VirtualTime::is_of(&clock()) { Duration::from_millis(20) } else { ms(5) }
}

/// Looks until it is so; late with `what` after `bound`.
#[track_caller]
pub(super) fn eventually(what: &str, bound: Duration, mut look: impl FnMut() -> bool) {
    if poll(bound, || look().then_some(())).is_none() {
        late_after(bound, format!("waited {bound:?} in vain for this: {what}"));
    }
}

/// Looks until there is something, for `bound` at most, and once more then.
pub(super) fn poll<T>(bound: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let until = now() + bound;
    loop {
        let last = now() >= until;
        let found = look();
        if found.is_some() || last {
            return found;
        }
        let_pass(look_again());
    }
}

/// The loss of which this guard's holder is told within [`patience`].
#[track_caller]
pub(super) fn loss(losses: &Receiver<Loss>) -> Loss {
    poll(patience(), || losses.try_recv().ok()).expect("the holder is told")
}

/// Late with `what` if that took as long as its bound, or longer.
#[track_caller]
pub(super) fn in_time(what: &str, took: Duration, bound: Duration) {
    if took >= bound {
        late_after(bound, format!("{what} after {took:?}, and not within {bound:?}"));
    }
}

/// Looks for the whole of `time`; panics with `what` as soon as it is not so.
#[track_caller]
pub(super) fn always(what: &str, time: Duration, mut look: impl FnMut() -> bool) {
    let until = now() + time;
    loop {
        assert!(look(), "this did not stay so: {what}");
        if now() >= until {
            return;
        }
        let_pass(look_again());
    }
}

/// Looks for the whole of `time` whether renewals keep this guard's lock in the store. Late if its
/// lease ended first, for the guard, too; a lock that only the store has let go is a violation.
#[track_caller]
pub(super) fn stays_held(guard: &LockGuard, time: Duration, mut is_held: impl FnMut() -> bool) {
    let until = now() + time;
    loop {
        // In this order: what the store said was so before the guard is asked.
        let (is_held, is_valid) = (is_held(), guard.is_valid());
        violated_unless(is_held || !is_valid, "the store let it go, and the guard is valid");
        if !is_valid {
            let loss = guard.loss();
            let cause = loss.as_ref().map(Loss::cause);
            assert_eq!(cause, Some(LossCause::Expired), "{loss:?}");
            late("the lease ended before it was renewed");
        }
        if now() >= until {
            return;
        }
        let_pass(look_again());
    }
}

/// A backend that is talked to directly, without the engine.
pub(super) struct Line {
    backend: Arc<dyn Backend>,
    client: ClientId,
    clock: Arc<dyn Clock>,
    next: AtomicU64,
    /// What the backend wants to be reminded of, for each owner that was granted something.
    receipts: Cell<HashMap<OwnerId, Receipt>>,
}

impl Line {
    pub(super) fn open(subject: &dyn Subject) -> Self {
        let context = context();
        let backend = subject.backend(&context);
        let (next, receipts) = (AtomicU64::new(1), Cell::default());
        Self { backend, client: context.client, clock: context.clock, next, receipts }
    }

    /// By when a direct call must be answered.
    fn by(&self) -> Moment {
        self.clock.now() + prompt()
    }

    /// An owner that was never used.
    pub(super) fn owner(&self) -> OwnerId {
        OwnerId::new(self.client, self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// One attempt, with one token.
    #[track_caller]
    pub(super) fn acquire(&self, name: &LockName, owner: OwnerId, lease: Duration) -> Answer {
        self.attempt(name, owner, lease, Tokens::Assign { reserve: 0 })
    }

    /// One attempt.
    #[track_caller]
    pub(super) fn attempt(
        &self,
        name: &LockName,
        owner: OwnerId,
        lease: Duration,
        tokens: Tokens,
    ) -> Answer {
        answered(self.ask(&Attempt::new(name, owner, lease_time(lease)).tokens(tokens), self.by()))
    }

    /// One attempt that replicas must confirm.
    #[track_caller]
    pub(super) fn confirmed(
        &self,
        name: &LockName,
        owner: OwnerId,
        lease: Duration,
        policy: Replication,
    ) -> Answer {
        let attempt = Attempt::new(name, owner, lease_time(lease)).replication(policy);
        answered(self.ask(&attempt, self.by()))
    }

    /// One attempt, and whatever comes of it until `by`.
    pub(super) fn ask(&self, attempt: &Attempt<'_>, by: Moment) -> Result<Answer, Failure> {
        let answer = self.backend.acquire(attempt, by);
        if let Ok(Answer::Granted(grant) | Answer::Unacknowledged(grant, _)) = &answer {
            self.receipts.lock().insert(attempt.owner, grant.receipt.clone());
        }
        answer
    }

    /// An attempt that must succeed.
    #[track_caller]
    pub(super) fn granted(&self, name: &LockName, owner: OwnerId, lease: Duration) -> Grant {
        grant(self.acquire(name, owner, lease))
    }

    /// Takes the lock for an owner that nobody used.
    #[track_caller]
    pub(super) fn hold(&self, name: &LockName, lease: Duration) -> OwnerId {
        let owner = self.owner();
        let _grant = self.granted(name, owner, lease);
        owner
    }

    /// Takes the lock, for an owner that nobody used, as soon as it can be had: where a lock stands
    /// on several nodes, a lease ends on one after the other.
    #[track_caller]
    pub(super) fn hold_soon(&self, name: &LockName, lease: Duration) -> (OwnerId, Grant) {
        let mut taken = None;
        eventually("the lock is granted", patience(), || {
            let owner = self.owner();
            let answer = self.acquire(name, owner, lease);
            if !answer.is_busy() {
                taken = Some((owner, grant(answer)));
            }
            taken.is_some()
        });
        taken.expect("or that would not have ended")
    }

    /// Whether an attempt of a new owner is turned down.
    #[track_caller]
    pub(super) fn is_busy(&self, name: &LockName) -> bool {
        self.acquire(name, self.owner(), short()).is_busy()
    }

    #[track_caller]
    pub(super) fn release(
        &self,
        name: &LockName,
        owner: OwnerId,
        closing: ReleaseOptions,
    ) -> Release {
        self.end(&self.acquisition(name, owner, long()), closing)
    }

    /// The same with the lease that the tombstone, if one is left, must live for.
    #[track_caller]
    pub(super) fn bury(&self, name: &LockName, owner: OwnerId, lease: Duration) -> Release {
        self.end(&self.acquisition(name, owner, lease), ReleaseOptions::WITH_TOMBSTONE)
    }

    #[track_caller]
    fn end(&self, acquisition: &AcquisitionId, closing: ReleaseOptions) -> Release {
        match answered(self.backend.release(acquisition, closing, self.by())) {
            Release::FreedFor(_) => Release::Freed, // not every store can say it
            release => release,
        }
    }

    #[track_caller]
    pub(super) fn renew(&self, name: &LockName, owner: OwnerId, lease: Duration) -> Renewal {
        self.renew_all(&[(name.clone(), owner)], lease)[0]
    }

    /// Renews many at once; the names must share a lane.
    #[track_caller]
    pub(super) fn renew_all(&self, held: &[(LockName, OwnerId)], lease: Duration) -> Vec<Renewal> {
        self.renew_confirmed(held, &vec![Replication::off(); held.len()], lease)
    }

    /// The same, each of them confirmed by replicas as its policy says.
    #[track_caller]
    pub(super) fn renew_confirmed(
        &self,
        held: &[(LockName, OwnerId)],
        policies: &[Replication],
        lease: Duration,
    ) -> Vec<Renewal> {
        let lane = self.backend.renewal_node(&held[0].0);
        let renewing = |((name, owner), policy): (&(LockName, OwnerId), &Replication)| {
            RenewalRequest::new(self.acquisition(name, *owner, lease)).replication(*policy)
        };
        let batch: Vec<_> = held.iter().zip(policies).map(renewing).collect();
        let answers = self.backend.renew(lane, &batch, self.by());
        assert_eq!(answers.len(), batch.len(), "as many answers as holdings");
        answers.into_iter().map(answered).collect()
    }

    /// The acquisition of an owner, with the receipt of its last grant; empty if none was granted,
    /// as when the answer is lost.
    fn acquisition(&self, name: &LockName, owner: OwnerId, lease: Duration) -> AcquisitionId {
        let receipt = self.receipts.lock().get(&owner).cloned().unwrap_or_default();
        AcquisitionId::new(name.clone(), owner, lease_time(lease), receipt)
    }

    #[track_caller]
    pub(super) fn inspect(&self, name: &LockName) -> LockInfo {
        answered(self.backend.inspect(name, self.by()))
    }

    #[track_caller]
    pub(super) fn force_release(&self, name: &LockName) -> bool {
        answered(self.backend.force_release(name, self.by()))
    }

    /// A watch, and the bell that it rings.
    #[track_caller]
    pub(super) fn watch(&self, name: &LockName) -> (Arc<Bell>, Watch) {
        let bell = Arc::new(Bell::default());
        let watch = answered(self.backend.watch(name, Arc::clone(&bell) as _, self.by()));
        (bell, watch)
    }
}

fn lease_time(lease: Duration) -> LeaseTime {
    LeaseTime::new(lease).expect("a lease of ordinary length")
}

#[track_caller]
fn answered<T>(result: Result<T, Failure>) -> T {
    result.expect("the store answers")
}

/// The grant in an answer.
#[track_caller]
pub(super) fn grant(answer: Answer) -> Grant {
    match answer {
        Answer::Granted(grant) => grant,
        refused => panic!("the lock is refused ({refused:?}), it should be granted"),
    }
}

/// A grant that too few replicas confirmed.
#[track_caller]
pub(super) fn fell_short(answer: Answer) -> (Grant, InsufficientReplicas) {
    match answer {
        Answer::Unacknowledged(grant, insufficient) => (grant, insufficient),
        other => panic!("too few replicas could confirm it, and the answer is {other:?}"),
    }
}

/// The replicas of a subject that has some.
#[track_caller]
pub(super) fn replicas(subject: &dyn Subject) -> &dyn ReplicaSet {
    subject.replicas().expect("it has replicas")
}

/// Keeps the first so many replicas from confirming anything, until it is dropped.
pub(super) fn hold_back(replicas: &dyn ReplicaSet, count: u32) -> HeldBack<'_> {
    replicas.hold_back(count);
    HeldBack(replicas)
}

pub(super) struct HeldBack<'a>(&'a dyn ReplicaSet);

impl Drop for HeldBack<'_> {
    fn drop(&mut self) {
        self.0.hold_back(0);
    }
}

/// A policy under which replicas have so much time that they keep it.
pub(super) fn patient(replicas: u32) -> Replication {
    Replication::replicas(replicas).timeout(ms(1_100))
}

/// A policy that cannot be kept, and is not waited for long.
pub(super) fn impatient(replicas: u32) -> Replication {
    Replication::replicas(replicas).timeout(ms(500))
}

/// Counts how often it was rung.
#[derive(Debug, Default)]
pub(super) struct Bell {
    rung: AtomicUsize,
    signal: Arc<Signal>,
}

impl Bell {
    pub(super) fn count(&self) -> usize {
        self.rung.load(Ordering::SeqCst)
    }

    /// Whether it rings within `bound`, or has rung since the last look.
    pub(super) fn rings(&self, bound: Duration) -> bool {
        clock().wait(&self.signal, now() + bound) == Woken::Signalled
    }
}

impl Wake for Bell {
    fn wake(&self) {
        self.rung.fetch_add(1, Ordering::SeqCst);
        self.signal.raise();
    }
}
