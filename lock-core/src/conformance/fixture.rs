//! The fixture of the cases: names, clients, bounded waits, and what calls a backend directly.

mod direct_backend;

pub(super) use direct_backend::{DirectBackend, grant, unacknowledged};

use super::lateness::late;
use super::subject::{ReplicaSet, Subject};
use super::violation::violated_unless;
use super::virtual_time::VirtualTime;
use crate::client::{Client, ClientBuilder};
use crate::clock::{Clock, Moment, SystemClock};
use crate::guard::LockGuard;
use crate::lock::DistLock;
use crate::loss::{Loss, LossCause};
use crate::name::LockName;
use crate::options::LockOptions;
use crate::owner::ClientId;
use crate::replication::Replication;
use crate::scheme::Context;
use crate::token::FencingToken;
use crossbeam_channel::Receiver;
use std::cell::RefCell;
use std::cmp::Ordering as Order;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

pub(super) use super::scale::ms;

/// A lease whose end the case awaits.
pub(super) fn short() -> Duration {
    ms(300)
}

/// A lease that is renewed in time also on a busy machine.
pub(super) fn kept() -> Duration {
    ms(900)
}

/// A lease longer than the case: only a release ends it earlier.
pub(super) fn long() -> Duration {
    ms(60_000)
}

/// The bound on immediate effects, generous for busy machines, and far below [`long`].
pub(super) fn prompt() -> Duration {
    ms(1_500)
}

/// The bound on effects that take a few short leases.
pub(super) fn patience() -> Duration {
    ms(4_000)
}

/// An unused lock name.
pub(super) fn fresh_name() -> LockName {
    named("conformance:")
}

/// An unused lock name with this prefix.
pub(super) fn named(before: &str) -> LockName {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("{:08x}:{}", fastrand::u32(..), NEXT.fetch_add(1, Ordering::Relaxed));
    let name =
        if case_context().tags { format!("{before}{{{name}}}") } else { [before, &name].concat() };
    LockName::new(&name).expect("well formed")
}

/// What the threads of a case share.
#[derive(Clone)]
pub(super) struct CaseContext {
    /// The clock of the case and of its store.
    pub(super) clock: Arc<dyn Clock>,
    /// Whether its lock names have hash tags.
    pub(super) tags: bool,
}

thread_local! {
    static CONTEXT: RefCell<CaseContext> =
        RefCell::new(CaseContext { clock: Arc::new(SystemClock), tags: false });
}

/// Makes the current thread one of the case.
pub(super) fn enter(context: CaseContext) {
    CONTEXT.set(context);
}

fn case_context() -> CaseContext {
    CONTEXT.with_borrow(CaseContext::clone)
}

/// The clock of this thread's case.
pub(super) fn clock() -> Arc<dyn Clock> {
    case_context().clock
}

/// The context in which a new client opens the subject.
pub(super) fn context() -> Context {
    Context::new(clock(), ClientId::random())
}

/// A separate process, whose watchdog's lease is [`long`].
pub(super) fn client(subject: &dyn Subject) -> Process<'_> {
    let builders = subject.clients(&context()).into_iter();
    let clients = builders.map(|builder| connect(subject, builder)).collect();
    Process { subject, clients }
}

/// The clients of a process; one for most subjects, to which it dereferences.
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

/// A lock of the subject, which may consist of several, with its name in the subject.
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

/// A source of locks.
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

/// Connects a prepared builder. The command timeout is longer than [`prompt`], so that a store that
/// does not answer is told from a slow one.
pub(super) fn connect(subject: &dyn Subject, builder: ClientBuilder) -> Client {
    builder
        .configure(|config| config.with_watchdog(long()).with_command_timeout(ms(2_000)))
        .configure(|config| subject.settings(config))
        .connect()
        .expect("the store can be opened")
}

/// A lock of this client or process.
pub(super) fn mutex(whose: &impl Locks, name: &LockName) -> Lock {
    Lock { lock: whose.lock(name), name: name.clone() }
}

/// One unused lock, as a handle of each of `N` clients.
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
    taken.unwrap_or_else(|| late(bound, format!("the lock was not granted within {bound:?}")))
}

/// The tokens of an acquisition, one for each of its locks. One is larger than another if it is on
/// all locks that both hold: any two majorities share one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct GuardTokens(Vec<Option<FencingToken>>);

/// The tokens of this guard.
#[track_caller]
pub(super) fn tokens_of(guard: &LockGuard) -> GuardTokens {
    let tokens: Vec<_> = guard.fencing_tokens().into_iter().map(|(_, token)| token).collect();
    assert!(tokens.iter().any(Option::is_some), "a token");
    GuardTokens(tokens)
}

impl PartialOrd for GuardTokens {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        let both =
            self.0.iter().zip(&other.0).filter_map(|(a, b)| Some(a.as_ref()?.cmp(b.as_ref()?)));
        let both: Vec<_> = both.collect();
        let first = *both.first()?;
        both.iter().all(|it| *it == first).then_some(first)
    }
}

/// Whether another holder has the lock.
#[track_caller]
pub(super) fn is_busy(mutex: &Lock) -> bool {
    mutex.try_lock().expect("the store answers").is_none()
}

/// Options with a fixed lease.
pub(super) fn fixed(lease: Duration) -> LockOptions {
    LockOptions::new().lease(lease)
}

/// Options with a lease that the watchdog renews.
pub(super) fn watched(lease: Duration) -> LockOptions {
    LockOptions::new().watched(lease)
}

/// Runs work on another thread, and waits for it.
pub(super) fn elsewhere<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| join(spawn(scope, work)))
}

/// Starts a thread of this case, with the same name, so that its panics are printed, or not, like
/// those of the case.
pub(super) fn spawn<'scope, R: Send + 'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    work: impl FnOnce() -> R + Send + 'scope,
) -> thread::ScopedJoinHandle<'scope, R> {
    let name = thread::current().name().unwrap_or("case").to_owned();
    let context = case_context();
    let work = move || {
        enter(context);
        work()
    };
    thread::Builder::new().name(name).spawn_scoped(scope, work).expect("a thread can be started")
}

/// Joins a thread, and resumes its panic.
pub(super) fn join<R>(thread: thread::ScopedJoinHandle<'_, R>) -> R {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Now, on the case's clock.
pub(super) fn now() -> Moment {
    clock().now()
}

/// Waits for a time that is itself the subject, as a lease that ends.
pub(super) fn let_pass(time: Duration) {
    let clock = clock();
    let _due = clock.wait(&Arc::default(), clock.now() + time);
}

/// The interval of polling. In virtual time each check stops all threads of the process, so there
/// it is longer.
fn look_again() -> Duration {
    // Not scaled: a scaled bound does not need more checks.
    if VirtualTime::is_of(&clock()) { Duration::from_millis(20) } else { ms(5) }
}

/// Polls until the condition holds; late with `what` after `bound`.
#[track_caller]
pub(super) fn eventually(what: &str, bound: Duration, mut look: impl FnMut() -> bool) {
    if poll(bound, || look().then_some(())).is_none() {
        late(bound, format!("waited {bound:?} in vain for this: {what}"));
    }
}

/// Polls until there is a value, for at most `bound`, and once more then.
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

/// The loss that the holder is notified of within [`patience`].
#[track_caller]
pub(super) fn loss(losses: &Receiver<Loss>) -> Loss {
    poll(patience(), || losses.try_recv().ok()).expect("the holder is told")
}

/// Late with `what` if it took as long as its bound, or longer.
#[track_caller]
pub(super) fn assert_within(what: &str, took: Duration, bound: Duration) {
    if took >= bound {
        late(bound, format!("{what} after {took:?}, and not within {bound:?}"));
    }
}

/// Polls for the whole of `time`; panics with `what` as soon as the condition fails.
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

/// Polls for the whole of `time` whether renewals keep this guard's lock in the store. Late if its
/// `lease` ended first, for the guard as well; a lock that only the store dropped is a violation.
#[track_caller]
pub(super) fn stays_held(
    guard: &LockGuard,
    lease: Duration,
    time: Duration,
    mut is_held: impl FnMut() -> bool,
) {
    let until = now() + time;
    loop {
        // In this order: what the store said was so before the guard is asked.
        let (is_held, is_valid) = (is_held(), guard.is_valid());
        violated_unless(is_held || !is_valid, "the store let it go, and the guard is valid");
        if !is_valid {
            let loss = guard.loss();
            let cause = loss.as_ref().map(Loss::cause);
            assert_eq!(cause, Some(LossCause::Expired), "{loss:?}");
            late(lease, "the lease ended before it was renewed");
        }
        if now() >= until {
            return;
        }
        let_pass(look_again());
    }
}

/// The replicas of a subject that has some.
#[track_caller]
pub(super) fn replicas(subject: &dyn Subject) -> &dyn ReplicaSet {
    subject.replicas().expect("it has replicas")
}

/// Pauses the first `count` replicas until it is dropped.
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

/// A policy with enough time for the replicas.
pub(super) fn patient(replicas: u32) -> Replication {
    Replication::replicas(replicas).timeout(ms(1_100))
}

/// A policy with a short timeout, for paused replicas.
pub(super) fn impatient(replicas: u32) -> Replication {
    Replication::replicas(replicas).timeout(ms(500))
}
