//! [`Network`]: a backend between the engine and the store that loses, delays or repeats requests.

use crate::explore::trace;
use crate::world::Virtual;
use distlock_schedules::backend::{
    Abilities, AcquisitionId, Admin, Answer, Attempt, Backend, Failure, Grant, HolderInfo,
    LockInfo, NextOwner, NodeId, OnReleased, PermitChange, PermitOutcome, Release, ReleaseOptions,
    Renewal, RenewalRequest, ReplicaSupport, Wake, Watch,
};
use distlock_schedules::{
    Clock, Error, FencingToken, InsufficientReplicas, LockName, MemoryBackend, Moment, OwnerText,
    Signal, TokenRange,
};

use shuttle::{sync::Mutex, thread};
use std::fmt;
use std::panic::resume_unwind;
use std::sync;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// A store behind a network with faults. Changing its settings is no scheduling point.
pub(crate) struct Network {
    store: MemoryBackend,
    clock: Virtual,
    /// On average one request of this many is slow or faulty; none if this is zero.
    trouble: AtomicUsize,
    /// Half of the round trip of every fault-free request, in milliseconds.
    distance: AtomicUsize,
    /// Whether one grant or renewal in three is confirmed by too few replicas.
    has_replicas: AtomicBool,
    /// The number of next renewals that fail without being sent.
    failing_renewals: AtomicUsize,
    /// The number of next renewals that are answered "gone", although the store has the lock.
    denied_renewals: AtomicUsize,
    /// The additional delay of every answer to a renewal, in milliseconds.
    slow_renewals: AtomicUsize,
    /// The number of next releases that never arrive.
    lost_releases: AtomicUsize,
    /// The longest delay of a message to the next waiter of a queue, in milliseconds. A random half
    /// of the messages is delayed.
    late_messages: Arc<AtomicUsize>,
    /// The number of open watches.
    watches: Arc<AtomicUsize>,
    /// The number of requests, answers and messages that arrive later.
    under_way: Arc<AtomicUsize>,
    grants: Arc<Grants>,
}

/// The acquisitions that the store granted, and those that it lost on purpose.
#[derive(Default)]
struct Grants {
    /// Locked during each acquire and each `lose`: otherwise a grant between the reading of the
    /// owner and the loss would be lost without a record.
    turn: Mutex<()>,
    /// The owner and the tokens of each acquisition.
    granted: sync::Mutex<Vec<(OwnerText, TokenRange)>>,
    lost: sync::Mutex<Vec<OwnerText>>,
}

impl Grants {
    fn acquire(
        &self,
        store: &MemoryBackend,
        attempt: &Attempt<'_>,
        by: Moment,
    ) -> Result<Answer, Failure> {
        let _turn = self.turn.lock().expect("no panic");
        let answer = store.acquire(attempt, by)?;
        if let Answer::Granted(Grant {
            tokens: Some(tokens),
            ..
        }) = &answer
        {
            let owner = OwnerText::new(&attempt.owner.to_string());
            self.granted
                .lock()
                .expect("no panic")
                .push((owner, *tokens));
        }
        Ok(answer)
    }
}

/// The outcome of one request on the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Fine,
    Slow,
    NotSent,
    /// The request never arrives.
    Lost,
    /// The request arrives, and its answer is lost.
    Unanswered,
    /// The request arrives after the sender has given up.
    Late,
    /// The request arrives at once, its answer is lost, and a copy of the request arrives after the
    /// sender has given up.
    Repeated,
    /// The backend panics after the request has arrived.
    Panics,
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("network")
    }
}

fn deliver(under_way: &Arc<AtomicUsize>, at: Moment, what: impl FnOnce() + Send + 'static) {
    let under_way = Arc::clone(under_way);
    under_way.fetch_add(1, Ordering::Relaxed);
    thread::spawn(move || {
        Virtual.wait(&Arc::new(Signal::new()), at);
        trace(|| "a late request, answer or message arrives".to_owned());
        what();
        under_way.fetch_sub(1, Ordering::Relaxed);
    });
}

fn some_millis(most: u64) -> Duration {
    Duration::from_millis(fastrand::u64(..=most))
}

/// Lowers the count by one; returns whether it was above zero.
fn is_one_of(left: &AtomicUsize) -> bool {
    let less = |count: usize| count.checked_sub(1);
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
        .is_ok()
}

impl Network {
    pub(crate) fn new(store: MemoryBackend) -> Self {
        Self {
            store,
            clock: Virtual,
            trouble: AtomicUsize::new(0),
            distance: AtomicUsize::new(0),
            has_replicas: AtomicBool::new(false),
            failing_renewals: AtomicUsize::new(0),
            denied_renewals: AtomicUsize::new(0),
            slow_renewals: AtomicUsize::new(0),
            lost_releases: AtomicUsize::new(0),
            late_messages: Arc::default(),
            watches: Arc::default(),
            under_way: Arc::default(),
            grants: Arc::default(),
        }
    }

    /// Makes on average one request of `every` slow or faulty from now on; none if `every` is zero.
    pub(crate) fn trouble(&self, every: usize) {
        self.trouble.store(every, Ordering::Relaxed);
    }

    /// Makes each request, and each answer, take so many milliseconds from now on.
    pub(crate) fn distance(&self, millis: usize) {
        self.distance.store(millis, Ordering::Relaxed);
    }

    /// Sets whether one grant or renewal in three is confirmed by too few replicas.
    pub(crate) fn replicas(&self, fall_short: bool) {
        self.has_replicas.store(fall_short, Ordering::Relaxed);
    }

    /// Makes the next `count` renewals fail without being sent.
    pub(crate) fn fail_renewals(&self, count: usize) {
        self.failing_renewals.store(count, Ordering::Relaxed);
    }

    /// Makes the next `count` renewals be answered that the lock is gone, although the store still
    /// has it.
    pub(crate) fn deny_renewals(&self, count: usize) {
        self.denied_renewals.store(count, Ordering::Relaxed);
    }

    /// Makes the next `count` releases never arrive.
    pub(crate) fn lose_releases(&self, count: usize) {
        self.lost_releases.store(count, Ordering::Relaxed);
    }

    /// Delays a random half of the messages to the next waiter of a queue by up to `most`
    /// milliseconds from now on.
    pub(crate) fn late_messages(&self, most: usize) {
        self.late_messages.store(most, Ordering::Relaxed);
    }

    /// Delays each answer to a renewal by so many milliseconds from now on.
    pub(crate) fn slow_renewals(&self, millis: usize) {
        self.slow_renewals.store(millis, Ordering::Relaxed);
    }

    /// Makes the store lose the lock. The holder learns it only from the answer to its next
    /// request.
    pub(crate) fn lose(&self, name: &LockName) {
        let _turn = self.grants.turn.lock().expect("no panic");
        let held = self
            .store
            .inspect(name, Moment::NEVER)
            .expect("memory")
            .holder;
        self.grants
            .lost
            .lock()
            .expect("no panic")
            .extend(held.map(|holder| holder.owner));
        self.store.lose(name);
    }

    /// Returns whether the store has lost the acquisition with this token.
    pub(crate) fn is_lost(&self, token: FencingToken) -> bool {
        let lost = self.grants.lost.lock().expect("no panic");
        let granted = self.grants.granted.lock().expect("no panic");
        let has_token = |tokens: &TokenRange| (tokens.first()..=tokens.last()).contains(&token);
        granted
            .iter()
            .any(|(owner, tokens)| has_token(tokens) && lost.contains(owner))
    }

    pub(crate) fn watches(&self) -> usize {
        self.watches.load(Ordering::Relaxed)
    }

    pub(crate) fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }

    fn travel(&self) {
        let millis = self.distance.load(Ordering::Relaxed) as u64;
        if millis > 0 {
            self.sleep_until(self.clock.now() + Duration::from_millis(millis));
        }
    }

    fn sleep_until(&self, until: Moment) {
        self.clock.wait(&Arc::new(Signal::new()), until);
    }

    fn fate(&self) -> Fate {
        let every = self.trouble.load(Ordering::Relaxed);
        if every == 0 || fastrand::usize(..every) > 0 {
            return Fate::Fine;
        }
        match fastrand::u8(..8) {
            0 | 1 => Fate::Slow,
            2 => Fate::NotSent,
            3 => Fate::Lost,
            4 => Fate::Unanswered,
            5 => Fate::Late,
            6 => Fate::Repeated,
            _ => Fate::Panics,
        }
    }

    /// Sends one request. `again` is the copy of the request that arrives late.
    fn send<T>(
        &self,
        what: &str,
        by: Moment,
        request: impl FnOnce() -> T,
        again: impl FnOnce() + Send + 'static,
    ) -> Result<T, Failure> {
        let unknown = || {
            Err(Failure::Unknown(Error::unavailable(
                "no answer came, on purpose",
            )))
        };
        let fate = self.fate();
        trace(|| format!("{what}: {fate:?}"));
        match fate {
            Fate::Fine => {
                self.travel();
                let answer = request();
                self.travel();
                Ok(answer)
            }
            Fate::Slow => {
                let (there, back) = (some_millis(30), some_millis(30));
                self.sleep_until((self.clock.now() + there).min(by));
                let answer = request();
                let back = self.clock.now() + back;
                self.sleep_until(back.min(by));
                if back > by { unknown() } else { Ok(answer) }
            }
            Fate::NotSent => Err(Failure::NotSent(Error::unavailable("refused, on purpose"))),
            Fate::Lost => {
                self.sleep_until(by);
                unknown()
            }
            Fate::Unanswered => {
                request();
                self.sleep_until(by);
                unknown()
            }
            Fate::Late => {
                self.deliver(by + some_millis(200), again);
                self.sleep_until(by);
                unknown()
            }
            Fate::Repeated => {
                request();
                self.deliver(by + some_millis(200), again);
                self.sleep_until(by);
                unknown()
            }
            Fate::Panics => {
                request();
                resume_unwind(Box::new("on purpose"));
            }
        }
    }

    fn deliver(&self, at: Moment, request: impl FnOnce() + Send + 'static) {
        deliver(&self.under_way, at, request);
    }

    fn falls_short(&self) -> bool {
        self.has_replicas.load(Ordering::Relaxed) && fastrand::u8(..3) == 0
    }
}

impl Backend for Network {
    fn acquire(&self, attempt: &Attempt<'_>, by: Moment) -> Result<Answer, Failure> {
        let (store, name) = (self.store.clone(), attempt.name.clone());
        let grants = Arc::clone(&self.grants);
        let Attempt {
            owner,
            lease,
            tokens,
            beside,
            waits,
            presence,
            direct,
            ..
        } = *attempt;
        // The attempt reaches the store without its replication policy: `falls_short` decides
        // instead.
        let acquire = move |grants: &Grants, store: &MemoryBackend, name: &LockName| {
            let attempt = Attempt::new(name, owner, lease)
                .tokens(tokens)
                .presence(presence);
            grants.acquire(
                store,
                &attempt.beside(beside).waits(waits).direct(direct),
                by,
            )
        };
        let again = move || drop(acquire(&grants, &store, &name));
        let acquire = || acquire(&self.grants, &self.store, attempt.name);
        match self.send("acquire", by, acquire, again)?? {
            Answer::Granted(grant) if self.falls_short() => Ok(Answer::Unacknowledged(
                grant,
                InsufficientReplicas::new(0, 1),
            )),
            answer => Ok(answer),
        }
    }

    fn renew(
        &self,
        lane: NodeId,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        let (store, again) = (self.store.clone(), batch.to_vec());
        let again = move || drop(store.renew(lane, &again, by));
        if is_one_of(&self.failing_renewals) {
            let failure = Failure::NotSent(Error::unavailable("refused, on purpose"));
            return vec![Err(failure); batch.len()];
        }
        if is_one_of(&self.denied_renewals) {
            return vec![Ok(Renewal::Gone); batch.len()];
        }
        let sent = self.send("renew", by, || self.store.renew(lane, batch, by), again);
        let slow = self.slow_renewals.load(Ordering::Relaxed) as u64;
        if slow > 0 {
            self.sleep_until((self.clock.now() + Duration::from_millis(slow)).min(by));
        }
        match sent {
            Ok(answers) => answers
                .into_iter()
                .map(|answer| match answer {
                    Ok(Renewal::Extended) if self.falls_short() => {
                        Ok(Renewal::Unacknowledged(InsufficientReplicas::new(0, 1)))
                    }
                    answer => answer,
                })
                .collect(),
            Err(failure) => batch.iter().map(|_| Err(failure.clone())).collect(),
        }
    }

    fn release(
        &self,
        acquisition: &AcquisitionId,
        closing: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure> {
        if is_one_of(&self.lost_releases) {
            self.sleep_until(by);
            return Err(Failure::Unknown(Error::unavailable(
                "no answer came, on purpose",
            )));
        }
        let (store, copy) = (self.store.clone(), acquisition.clone());
        let again = move || drop(store.release(&copy, closing, by));
        self.send(
            "release",
            by,
            || self.store.release(acquisition, closing, by),
            again,
        )?
    }

    fn submit_release(
        &self,
        acquisition: &AcquisitionId,
        closing: ReleaseOptions,
        by: Moment,
        done: OnReleased,
    ) {
        // The store applies such releases in the order of the calls, and the answer arrives later
        // on another thread, as on a multiplexed connection.
        let is_heard = self.fate() != Fate::Unanswered;
        let answer = self.store.release(acquisition, closing, by);
        let at = if is_heard { self.clock.now() } else { by };
        self.deliver(at, move || {
            done(if is_heard {
                answer
            } else {
                Err(Failure::Unknown(Error::unavailable(
                    "no answer came, on purpose",
                )))
            });
        });
    }

    fn inspect(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure> {
        self.send("inspect", by, || self.store.inspect(name, by), || ())?
    }

    fn verify(
        &self,
        acquisition: &AcquisitionId,
        by: Moment,
    ) -> Result<Option<HolderInfo>, Failure> {
        self.send("verify", by, || self.store.verify(acquisition, by), || ())?
    }

    fn watch(&self, name: &LockName, wake: Arc<dyn Wake>, by: Moment) -> Result<Watch, Failure> {
        if self.fate() == Fate::NotSent {
            return Err(Failure::NotSent(Error::unavailable("refused, on purpose")));
        }
        let wake = LateWake {
            wake,
            grants: Arc::clone(&self.grants),
            late_messages: Arc::clone(&self.late_messages),
            under_way: Arc::clone(&self.under_way),
        };
        self.travel();
        let watch = self.store.watch(name, Arc::new(wake), by)?;
        self.travel();
        self.watches.fetch_add(1, Ordering::Relaxed);
        Ok(Watch::new((watch, Counted(Arc::clone(&self.watches)))))
    }

    fn renewal_node(&self, name: &LockName) -> NodeId {
        self.store.renewal_node(name)
    }

    fn abilities(&self) -> Abilities {
        self.store.abilities().replication(ReplicaSupport::Counted)
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }
}

impl Admin for Network {
    fn change_permits(
        &self,
        name: &LockName,
        change: PermitChange,
        by: Moment,
    ) -> Result<PermitOutcome, Failure> {
        self.send(
            "change_permits",
            by,
            || self.store.change_permits(name, change, by),
            || (),
        )?
    }

    fn force_release(&self, name: &LockName, by: Moment) -> Result<bool, Failure> {
        self.store.force_release(name, by)
    }
}

/// Forwards the messages of a watch; those to the next waiter of a queue may be late.
struct LateWake {
    wake: Arc<dyn Wake>,
    grants: Arc<Grants>,
    late_messages: Arc<AtomicUsize>,
    under_way: Arc<AtomicUsize>,
}

impl Wake for LateWake {
    fn wake(&self) {
        self.wake.wake();
    }

    fn wake_next(&self, next: &NextOwner) {
        if let Some(tokens) = next.granted.as_ref().and_then(|it| it.grant.tokens) {
            self.grants
                .granted
                .lock()
                .expect("no panic")
                .push((next.owner.clone(), tokens));
        }
        let most = self.late_messages.load(Ordering::Relaxed) as u64;
        if most == 0 || fastrand::bool() {
            return self.wake.wake_next(next);
        }
        let (wake, next) = (Arc::clone(&self.wake), next.clone());
        deliver(
            &self.under_way,
            Virtual.now() + some_millis(most),
            move || wake.wake_next(&next),
        );
    }
}

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
