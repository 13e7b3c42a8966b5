//! [`Recorded`]: the in-memory store with a log of its requests, and faults on demand.

use super::*;
use crate::backend::NextOwner;

/// The in-memory store with a log of its requests, and faults on demand.
#[derive(Debug, Clone)]
pub(crate) struct Recorded {
    pub(crate) store: MemoryBackend,
    pub(crate) clock: ManualClock,
    pub(crate) log: Arc<Mutex<Vec<Request>>>,
    /// The faults of the next requests, by kind of request.
    pub(crate) faults: Arc<Mutex<VecDeque<(&'static str, Fault)>>>,
    pub(crate) abilities: Abilities,
    /// The owner of the last attempt.
    pub(crate) owner: Arc<Mutex<Option<OwnerId>>>,
    /// While set, `renewal_node` panics.
    pub(crate) node_panics: Arc<AtomicBool>,
    /// Requests with a hanging fault wait while a test holds this mutex.
    pub(crate) gate: Arc<Mutex<()>>,
    /// One entry for each watch, alive as long as the watch.
    pub(crate) watches: Arc<Mutex<Vec<Weak<()>>>>,
    /// False if direct grants do not count, as after the replacement of a server.
    pub(crate) grants_count: Arc<AtomicBool>,
    /// True if a plain wake-up, as after a new connection, precedes each direct grant.
    pub(crate) reconnects: Arc<AtomicBool>,
    /// True if answers to asynchronous releases stay unread until [`Recorded::read`], which
    /// `inspect` and `verify` call, too.
    pub(crate) is_lazy: Arc<AtomicBool>,
    /// The unread answers.
    pub(crate) unread: Arc<Mutex<Vec<Unread>>>,
    /// The number of replicas that confirm a write; `None`: the store does not answer in time.
    pub(crate) replicas: Arc<Mutex<Option<u32>>>,
    /// True if the store reports that it has no replica that could be promoted.
    pub(crate) unreplicated: Arc<AtomicBool>,
    /// The lead of the replicas (the time by which a lease ends earlier on a replica): one value
    /// for each query; the last value stays.
    pub(crate) leads: Arc<Mutex<VecDeque<Duration>>>,
}

/// A [`Wake`] whose direct grants count only under a condition.
struct OnCondition {
    wake: Arc<dyn Wake>,
    counts: Arc<AtomicBool>,
    reconnects: Arc<AtomicBool>,
}

impl Wake for OnCondition {
    fn wake(&self) {
        self.wake.wake();
    }

    fn wake_next(&self, next: &NextOwner) {
        if self.reconnects.load(Ordering::SeqCst) {
            self.wake.wake();
        }
        let counts = Arc::clone(&self.counts);
        let condition = Arc::new(move || counts.load(Ordering::SeqCst));
        self.wake.wake_next(&next.clone().only_while(condition));
    }
}

/// The number of replicas of the store.
const REPLICAS: u32 = 2;

/// An unread answer, and the callback that handles it.
pub(crate) struct Unread(OnReleased, Result<Release, Failure>);

impl std::fmt::Debug for Unread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Unread").field(&self.1).finish()
    }
}

/// One request: its kind, the time at which it was sent, and its deadline.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) kind: &'static str,
    pub(crate) at: Moment,
    pub(crate) by: Moment,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// Applied; the answer waits at the gate.
    AnswerHangs,
    /// The key has a value of a foreign format.
    Foreign,
    /// The backend panics.
    Panic,
    /// A batch of renewals gets no answers.
    Mute,
    /// Applied; the answer is lost.
    Swallowed,
    /// Applied; the answer is lost, and the request must not be repeated.
    Final,
    /// Not sent.
    NotSent,
    /// Sent, but not applied and not answered: it may arrive later.
    Vanished,
    /// Refused by the store; a repetition would be refused, too.
    Refused,
    /// Waits at the gate before it is applied.
    Hangs,
    /// Waits at the gate, is not applied, and gets no answer.
    Unanswered,
    /// Applied; the answer takes this long.
    Slow(Duration),
    /// Not applied; no answer came for this long.
    TimedOut(Duration),
}

impl Recorded {
    pub(crate) fn new() -> (Self, ManualClock) {
        let clock = ManualClock::new();
        (Self::on(&clock), clock)
    }

    /// Makes an empty store on this clock.
    pub(crate) fn on(clock: &ManualClock) -> Self {
        Self {
            store: MemoryBackend::new(Arc::new(clock.clone())),
            clock: clock.clone(),
            log: Arc::default(),
            faults: Arc::default(),
            abilities: Abilities::full().all_kinds(true),
            owner: Arc::default(),
            node_panics: Arc::default(),
            gate: Arc::default(),
            watches: Arc::default(),
            grants_count: Arc::new(AtomicBool::new(true)),
            reconnects: Arc::default(),
            is_lazy: Arc::default(),
            unread: Arc::default(),
            replicas: Arc::new(Mutex::new(Some(REPLICAS))),
            unreplicated: Arc::default(),
            leads: Arc::default(),
        }
    }

    /// Returns a handle of this store with other abilities.
    pub(crate) fn able(&self, abilities: Abilities) -> Self {
        Self {
            abilities,
            ..self.clone()
        }
    }

    pub(crate) fn client(&self) -> Client {
        self.builder().connect().unwrap()
    }

    /// Makes a client with this command timeout.
    pub(crate) fn impatient_client(&self, command_timeout: Duration) -> Client {
        let configure = |config: crate::Config| config.with_command_timeout(command_timeout);
        self.builder().configure(configure).connect().unwrap()
    }

    pub(crate) fn builder(&self) -> crate::ClientBuilder {
        crate::builder()
            .backend(Arc::new(self.clone()))
            .clock(Arc::new(self.clock.clone()))
    }

    /// Makes a client, and returns it with the names of its events in order.
    pub(crate) fn client_with_events(&self) -> (Client, Arc<Mutex<Vec<String>>>) {
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let (events, clock) = (Arc::clone(&told), Arc::new(self.clock.clone()));
        let client = crate::builder()
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

    pub(crate) fn times(&self, kind: &str) -> Vec<Moment> {
        self.log
            .lock()
            .iter()
            .filter(|it| it.kind == kind)
            .map(|it| it.at)
            .collect()
    }

    /// Returns the timeout of the last request of a kind.
    pub(crate) fn time_given(&self, kind: &str) -> Duration {
        let log = self.log.lock();
        let last = log.iter().rfind(|it| it.kind == kind).unwrap();
        last.by.since(last.at)
    }

    /// Returns the number of open watches.
    pub(crate) fn watches(&self) -> usize {
        self.watches
            .lock()
            .iter()
            .filter(|it| it.strong_count() > 0)
            .count()
    }

    /// Makes all requests of a kind fail, until [`mend`](Self::mend).
    pub(crate) fn cut(&self, kind: &'static str, fault: Fault) {
        self.faults
            .lock()
            .extend((0..10_000).map(|_| (kind, fault)));
    }

    /// Removes all faults.
    pub(crate) fn mend(&self) {
        self.faults.lock().clear();
    }

    /// Returns the deadline of the last request of a kind.
    pub(crate) fn by(&self, kind: &str) -> Option<Moment> {
        self.log
            .lock()
            .iter()
            .rfind(|request| request.kind == kind)
            .map(|request| request.by)
    }

    /// Returns how many replicas confirm a write now and how many must, if too few confirm it.
    fn falls_short(&self, replication: Replication) -> Option<InsufficientReplicas> {
        let needed = match replication.count() {
            Replicas::Off => return None,
            Replicas::AtLeast(count) => count,
            Replicas::All => REPLICAS,
        };
        match *self.replicas.lock() {
            Some(confirm) => (confirm < needed).then(|| InsufficientReplicas::new(confirm, needed)),
            None => Some(InsufficientReplicas::unanswered(needed)),
        }
    }

    /// Reads the unread answers.
    pub(crate) fn read(&self) {
        let unread = std::mem::take(&mut *self.unread.lock());
        for Unread(done, answer) in unread {
            done(answer);
        }
    }
    pub(crate) fn count(&self, kind: &str) -> usize {
        self.times(kind).len()
    }

    pub(crate) fn fail_next(&self, kind: &'static str, fault: Fault) {
        self.faults.lock().push_back((kind, fault));
    }

    pub(crate) fn asked<T>(
        &self,
        kind: &'static str,
        by: Moment,
        apply: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.log.lock().push(Request {
            kind,
            at: self.clock.now(),
            by,
        });
        let mut faults = self.faults.lock();
        let fault = faults
            .iter()
            .position(|(k, _)| *k == kind)
            .and_then(|at| faults.remove(at));
        drop(faults);
        match fault.map(|(_, fault)| fault) {
            None => apply(),
            Some(Fault::AnswerHangs) => {
                let answer = apply();
                drop(self.gate.lock());
                answer
            }
            Some(Fault::Foreign) => Err(Failure::Refused(Error::new(
                ErrorKind::ForeignFormat,
                "on purpose",
            ))),
            Some(Fault::Panic) => panic!("on purpose"),
            Some(Fault::Mute) => Err(Failure::NotSent(Error::misuse(MUTE))),
            Some(Fault::Final) => {
                apply()?;
                Err(Failure::Final(Error::unavailable("final on purpose")))
            }
            Some(Fault::NotSent) => Err(Failure::NotSent(Error::unavailable("on purpose"))),
            Some(Fault::Vanished) => Err(Failure::Unknown(Error::unavailable("on purpose"))),
            Some(Fault::Refused) => Err(Failure::Refused(Error::configuration("on purpose"))),
            Some(Fault::Hangs) => {
                drop(self.gate.lock());
                apply()
            }
            Some(Fault::Unanswered) => {
                drop(self.gate.lock());
                Err(Failure::Unknown(Error::unavailable(
                    "no answer, on purpose",
                )))
            }
            Some(Fault::Swallowed) => {
                apply()?;
                Err(Failure::Unknown(Error::unavailable("swallowed on purpose")))
            }
            Some(Fault::TimedOut(time)) => {
                self.clock.jump(time);
                Err(Failure::Unknown(Error::unavailable("timed out on purpose")))
            }
            Some(Fault::Slow(time)) => {
                let answer = apply();
                self.clock.jump(time);
                answer
            }
        }
    }
}

/// The text by which `renew` distinguishes [`Fault::Mute`] from a failure.
pub(crate) const MUTE: &str = "no answer at all";

impl Backend for Recorded {
    fn acquire(&self, attempt: &Attempt<'_>, by: Moment) -> Result<Answer, Failure> {
        *self.owner.lock() = Some(attempt.owner);
        let plain = attempt.replication(Replication::off());
        let answer = self.asked("acquire", by, || self.store.acquire(&plain, by))?;
        Ok(match (answer, self.falls_short(attempt.replication)) {
            (Answer::Granted(grant), Some(insufficient)) => {
                Answer::Unacknowledged(grant, insufficient)
            }
            (answer, _) => answer,
        })
    }

    fn renew(
        &self,
        node: NodeId,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        match self.asked("renew", by, || Ok(self.store.renew(node, batch, by))) {
            Ok(answers) => {
                let unconfirmed = match self.unreplicated.load(Ordering::SeqCst) {
                    true => Renewal::Unreplicated,
                    false => Renewal::Unacknowledged,
                };
                let weighed = |(answer, one): (_, &RenewalRequest)| match answer {
                    Ok(Renewal::Extended) => Ok(self
                        .falls_short(one.replication)
                        .map_or(Renewal::Extended, unconfirmed)),
                    answer => answer,
                };
                if batch.iter().any(|one| one.label.is_some()) {
                    let _answer = self.asked("label", by, || Ok(()));
                }
                if !batch.iter().all(|one| one.replication.is_off()) {
                    let _answer = self.asked("confirm", by, || Ok(()));
                }
                answers.into_iter().zip(batch).map(weighed).collect()
            }
            Err(failure) if failure.error().to_string().contains(MUTE) => Vec::new(),
            Err(failure) => vec![Err(failure); batch.len()],
        }
    }

    fn release(
        &self,
        acquisition: &AcquisitionId,
        closing: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure> {
        let kind = if closing == ReleaseOptions::WITHOUT_TOMBSTONE {
            "release"
        } else {
            "close"
        };
        self.asked(kind, by, || self.store.release(acquisition, closing, by))
    }

    fn submit_release(
        &self,
        acquisition: &AcquisitionId,
        closing: ReleaseOptions,
        by: Moment,
        done: OnReleased,
    ) {
        let answer = self.release(acquisition, closing, by);
        if self.is_lazy.load(Ordering::SeqCst) {
            self.unread.lock().push(Unread(done, answer));
        } else {
            done(answer);
        }
    }

    fn inspect(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure> {
        self.read();
        self.asked("inspect", by, || self.store.inspect(name, by))
    }

    fn verify(
        &self,
        acquisition: &AcquisitionId,
        by: Moment,
    ) -> Result<Option<HolderInfo>, Failure> {
        self.read();
        self.asked("inspect", by, || self.store.verify(acquisition, by))
    }

    fn watch(&self, name: &LockName, wake: Arc<dyn Wake>, by: Moment) -> Result<Watch, Failure> {
        self.asked("watch", by, || {
            let alive = Arc::new(());
            self.watches.lock().push(Arc::downgrade(&alive));
            let wake = OnCondition {
                wake,
                counts: Arc::clone(&self.grants_count),
                reconnects: Arc::clone(&self.reconnects),
            };
            self.store
                .watch(name, Arc::new(wake), by)
                .map(|watch| Watch::new((watch, alive)))
        })
    }

    fn renewal_node(&self, name: &LockName) -> NodeId {
        assert!(!self.node_panics.load(Ordering::SeqCst), "on purpose");
        let _asked = self.asked("node", Moment::NEVER, || Ok(()));
        self.store.renewal_node(name)
    }

    fn abilities(&self) -> Abilities {
        self.abilities
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }

    fn replicated(&self) -> Option<&dyn Replicated> {
        Some(self)
    }
}

impl Admin for Recorded {
    fn change_permits(
        &self,
        name: &LockName,
        change: PermitChange,
        by: Moment,
    ) -> Result<PermitOutcome, Failure> {
        self.asked("change_permits", by, || {
            self.store.change_permits(name, change, by)
        })
    }

    fn force_release(&self, name: &LockName, by: Moment) -> Result<bool, Failure> {
        self.store.force_release(name, by)
    }
}

impl Replicated for Recorded {
    fn replica_lead(&self, _: &LockName, _: LeaseTime, _: Replication) -> Duration {
        let mut leads = self.leads.lock();
        let next = leads.front().copied();
        if leads.len() > 1 {
            leads.pop_front();
        }
        next.unwrap_or_default()
    }
}
