//! Acquires several locks in rounds. A round waits for one lock while the thread holds none, and
//! then tries the other locks. The first round of a majority only tries. After some failed rounds,
//! a round may also wait for the other locks.

use super::guards::MemberGuards;
use super::members::Members;
use super::patience::Patience;
use crate::api::guard::LockGuard;
use crate::api::parts::SingleLock;
use crate::backend::replication::OnInsufficientReplicas;
use crate::call::interrupt::Registration;
use crate::call::options::LockOptions;
use crate::error::{Error, ErrorKind, MemberOutcome, MemberResult, worst_kind};
use crate::time::backoff::Backoff;
use crate::time::lease::{Lease, LeaseTime};
use crate::time::{Clock, Moment, Signal, Woken};
use std::sync::Arc;
use std::time::Duration;

/// The longest wait of a majority for one of its members while it holds none, because another
/// member may become free sooner. Between this limit and [`SHORTEST_SHARE`], the wait is the
/// remaining time divided by the number of members.
const LONGEST_SHARE: Duration = Duration::from_secs(1);

/// The longest such wait for a fair lock. It is longer because a waiter that gives up before it is
/// the head of the lock's queue loses its position.
const LONGEST_QUEUED_SHARE: Duration = Duration::from_secs(10);

/// The shortest such wait, unless the deadline is nearer, because a shorter wait has no more
/// success than a try.
const SHORTEST_SHARE: Duration = Duration::from_millis(10);

/// The time for which a majority avoids a member that did not answer, if the other members are
/// enough, because each request to a server that hangs costs a command timeout.
const UNRESPONSIVE_FOR: Duration = Duration::from_secs(5);

/// The smallest limit of the random pause after a failed round, so that two clients that hold one
/// lock each do not retry in step. The limit is twice the time for which the round held locks. It
/// doubles with each earlier round that acquired a lock and failed, six times at most.
const SHORTEST_PAUSE: Duration = Duration::from_micros(200);
/// The largest such limit, so that the locks are not free for longer before the thread retries.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// The shortest time between the beginnings of two rounds while too few members answer, so that a
/// store whose requests fail at once is not queried without a pause.
const OUTAGE_PAUSES: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_millis(500));

impl Members {
    /// Acquires the locks for the calling thread. Returns `None` if they were busy until the end of
    /// the wait.
    pub(crate) fn acquire_here(
        &self,
        wait: Option<Duration>,
        options: &LockOptions,
    ) -> Result<Option<LockGuard>, Error> {
        let signal = Arc::new(Signal::new());
        // Registered here, too: the wait for a single member misses an interrupt that is fired and
        // reset between the waits for two members.
        let interrupt = options
            .interrupt
            .as_ref()
            .map(|interrupt| interrupt.register(&signal));
        CompositeAcquisition::new(self, wait, options, &signal, interrupt.as_ref())
            .and_then(CompositeAcquisition::run)
            .map_err(|error| error.on(self.name()))
    }
}

/// One thread's acquisition of several locks.
struct CompositeAcquisition<'a> {
    members: &'a Members,
    options: &'a LockOptions,
    clock: Arc<dyn Clock>,
    signal: &'a Arc<Signal>,
    interrupt: Option<&'a Registration<'a>>,
    /// The absolute deadline; `None` for a wait without a time limit.
    deadline: Option<Moment>,
    /// The fixed lease that every member must have when the guard is returned; `None` if the
    /// watchdog renews the locks or the settings apply.
    lease: Option<LeaseTime>,
    minimum_hold: Option<LeaseTime>,
    patience: Patience,
    /// The time since which too few members answer, and the back-off between the rounds since then.
    outage: Option<(Moment, Backoff)>,
}

/// The results of a round so far.
struct Round {
    began: Moment,
    /// The time at which the first lock was acquired.
    first: Option<Moment>,
    guards: Vec<Option<LockGuard>>,
    outcomes: Vec<MemberOutcome>,
    /// The last member that was busy.
    busy: Option<usize>,
    /// The last member with a transient failure.
    unavailable: Option<usize>,
    /// For each member, whether its failure is not transient.
    refused: Vec<bool>,
}

/// The number of members with each outcome.
#[derive(Default)]
struct Count {
    taken: usize,
    busy: usize,
    unavailable: usize,
    refused: usize,
}

impl<'a> CompositeAcquisition<'a> {
    fn new(
        members: &'a Members,
        wait: Option<Duration>,
        options: &'a LockOptions,
        signal: &'a Arc<Signal>,
        interrupt: Option<&'a Registration<'a>>,
    ) -> Result<Self, Error> {
        let clock = members.composite().clock();
        let lease = match options.lease {
            Some(Lease::Fixed(time)) => Some(LeaseTime::new(time)?),
            Some(Lease::Watched { .. }) | None => None,
        };
        let locks = members.composite().single_locks();
        let minimum_hold = options.minimum_hold(locks.iter().map(|lock| lock.place()))?;
        let deadline = wait.map(|wait| clock.now() + wait);
        let is_queued = locks.iter().any(|lock| lock.is_queued());
        let (patience, outage) = (Patience::new(members.locks.len(), is_queued), None);
        Ok(Self {
            members,
            options,
            clock,
            signal,
            interrupt,
            deadline,
            lease,
            minimum_hold,
            patience,
            outage,
        })
    }

    fn run(mut self) -> Result<Option<LockGuard>, Error> {
        // If all members are required, the first round waits for the first member by name. A
        // majority only tries its members in the first round, because enough of them may be free.
        let mut next = (self.members.spare() == 0).then(|| self.members.order[0]);
        loop {
            let mut round = self.round(next)?;
            if self.is_complete(&mut round)? {
                let guards = std::mem::take(&mut round.guards);
                let guard = LockGuard::composite(MemberGuards::new(
                    Arc::clone(self.members.composite()),
                    guards,
                ));
                if let Some(time) = self.minimum_hold {
                    guard.keep(time);
                }
                return Ok(Some(guard));
            }
            let held_for = round.release_all(self.clock.now());
            self.check_interrupt()?;
            if self.is_over(&round)? {
                return Ok(None);
            }
            next = round.busy.or(round.unavailable);
            self.pause(held_for, round.began);
            self.check_interrupt()?;
        }
    }

    /// If `wait_for` is a member, waits for it, or for the member that [`Patience`] sorts first if
    /// this round waits for all. Then tries the other locks, or waits for them as long as
    /// `Patience` allows.
    fn round(&mut self, wait_for: Option<usize>) -> Result<Round, Error> {
        let need = self.members.required();
        let (order, wait_for) = self.order(wait_for);
        let mut round = Round::new(order.len(), self.clock.now());
        for at in order {
            if round.count().taken >= need && self.is_unresponsive(at) {
                break;
            }
            let wait = match Some(at) == wait_for {
                true => self.share(at),
                // Enough members are held, so the others are only tried.
                false if round.count().taken >= need => Some(Duration::ZERO),
                false => Some(self.wait_beside(&round, at)),
            };
            let asked = self.clock.now();
            self.try_member(&mut round, at, wait)?;
            // A member that failed is left out: the duration of an outage does not predict the wait
            // in a queue.
            let has_answered = !matches!(round.outcomes[at], MemberOutcome::Failed(_));
            if has_answered && wait != Some(Duration::ZERO) {
                self.patience.waited(at, self.clock.now().since(asked));
            }
            if round.is_decided(need) {
                break;
            }
        }
        Ok(round)
    }

    /// Returns the order of the locks in this round, and the lock to wait for while no lock is
    /// held.
    fn order(&self, wait_for: Option<usize>) -> (Vec<usize>, Option<usize>) {
        let mut order = self.members.order.clone();
        let waits_for_all = self.patience.waits_for_all() && wait_for.is_some();
        if waits_for_all {
            self.patience.sort(&mut order, self.members.spare() == 0);
        } else {
            let start = order
                .iter()
                .position(|at| Some(*at) == wait_for)
                .unwrap_or_default();
            order.rotate_left(start);
        }
        // An unresponsive member costs a command timeout, so it comes last, unless this round waits
        // for it. It is not tried at all if the other members are enough.
        let is_awaited = |at| !waits_for_all && Some(at) == wait_for;
        order.sort_by_key(|at| self.is_unresponsive(*at) && !is_awaited(*at));
        let first = if waits_for_all {
            order.first().copied()
        } else {
            wait_for
        };
        (order, first)
    }

    /// Returns how long to wait for a lock while others are held. Zero in a round that only tries.
    fn wait_beside(&self, round: &Round, at: usize) -> Duration {
        let now = self.clock.now();
        // The first lock's fixed lease must not end during the wait, so at most half of it is used.
        let ends = self
            .lease
            .zip(round.first)
            .map(|(lease, first)| first + lease.validity() / 2);
        let ends = ends
            .into_iter()
            .chain(self.deadline)
            .map(|end| end.since(now));
        ends.fold(self.patience.beside_others(at), Duration::min)
    }

    fn is_unresponsive(&self, at: usize) -> bool {
        self.members.spare() > 0 && self.members.is_unresponsive(at, self.clock.now())
    }

    /// Returns how long to wait for a lock while no lock is held; `None` means without a time
    /// limit.
    fn share(&self, at: usize) -> Option<Duration> {
        let left = self
            .deadline
            .map(|deadline| deadline.since(self.clock.now()));
        if self.members.spare() == 0 {
            return left; // every member is required
        }
        let members = u32::try_from(self.members.locks.len()).unwrap_or(u32::MAX);
        let share = left.map_or(LONGEST_SHARE, |left| left / members);
        let share = share.clamp(SHORTEST_SHARE, LONGEST_SHARE);
        // A wait that ends too soon loses its position in the queue, so the share of a fair lock
        // grows to the time that its earlier waits suggest.
        let locks = self.members.composite().parts[at].single_locks();
        let is_fair = locks
            .iter()
            .any(|lock| lock.name().profile().queued_in_store);
        let needs = self.patience.known(at).filter(|_| is_fair);
        let share = needs.map_or(share, |needs| needs.clamp(share, LONGEST_QUEUED_SHARE));
        Some(left.map_or(share, |left| left.min(share)))
    }

    /// Fails if the interrupt has fired.
    fn check_interrupt(&self) -> Result<(), Error> {
        self.interrupt
            .map_or(Ok(()), Registration::check)
            .map_err(|_| interrupted())
    }

    fn try_member(
        &self,
        round: &mut Round,
        at: usize,
        wait: Option<Duration>,
    ) -> Result<(), Error> {
        self.check_interrupt()?;
        let options = self.options.of_member(self.deadline.is_none());
        round.outcomes[at] = match self.members.locks[at].acquire(wait, &options) {
            Ok(Some(guard)) => {
                self.members.set_unresponsive(at, None);
                round.first.get_or_insert_with(|| self.clock.now());
                round.guards[at] = Some(guard);
                MemberOutcome::Done
            }
            Ok(None) => {
                round.busy = Some(at);
                MemberOutcome::Busy
            }
            Err(error) if error.is_interrupted() => return Err(interrupted()),
            Err(error) => {
                if self.is_transient(at, &error) {
                    self.members
                        .set_unresponsive(at, Some(self.clock.now() + UNRESPONSIVE_FOR));
                    round.unavailable = Some(at);
                } else {
                    round.refused[at] = true;
                }
                MemberOutcome::Failed(error)
            }
        };
        Ok(())
    }

    /// Returns whether this member's failure is transient: its store does not answer, and the
    /// request may be repeated; or too few replicas confirm, and no policy is to fail at once.
    fn is_transient(&self, at: usize, error: &Error) -> bool {
        let retries = |lock: &SingleLock| {
            let policy = self
                .options
                .replication
                .unwrap_or(lock.engine.replication());
            policy.insufficient() != OnInsufficientReplicas::Fail
        };
        let locks = || self.members.composite().parts[at].single_locks();
        error.is_unavailable() && !error.is_final()
            || error.is_insufficient_replicas() && locks().into_iter().all(retries)
    }

    /// Returns whether the round has acquired enough locks. First extends leases that would end too
    /// early. Fails if the round took longer than the requested lease is valid.
    fn is_complete(&self, round: &mut Round) -> Result<bool, Error> {
        let need = self.members.required();
        if round.count().taken < need {
            return Ok(false);
        }
        if let Some(lease) = self.lease {
            round.restart_lease(lease, |at, error| self.is_transient(at, error));
        }
        let good = round
            .guards
            .iter()
            .flatten()
            .filter(|guard| guard.is_valid())
            .count();
        if good >= need {
            return Ok(true);
        }
        let took = self.clock.now().since(round.began);
        match self.lease {
            // The round took longer than the lease is valid, and another round would probably do
            // so, too.
            Some(lease) if took >= lease.validity() => Err(Error::unavailable(format!(
                "taking them all took {took:.1?}, and a lease of {lease} is good for {:.1?} only: \
                they were released; ask for a longer lease",
                lease.validity()
            ))),
            // A lock was lost during the round, because it was deleted or its server failed; or its
            // lease could not be extended.
            _ => {
                round.drop_lost();
                Ok(false)
            }
        }
    }

    /// Returns whether the deadline has passed, so that the acquisition ends with the result
    /// "busy". Fails if too many members refuse, or if too few answer until the deadline or the
    /// outage limit.
    fn is_over(&mut self, round: &Round) -> Result<bool, Error> {
        let (count, spare) = (round.count(), self.members.spare());
        if count.refused > spare {
            return Err(self.error(round, "they cannot be taken together"));
        }
        let now = self.clock.now();
        let is_late = self.deadline.is_some_and(|deadline| now >= deadline);
        // Enough members answered to know that the lock is busy: other holders hold too many
        // members, or the members that answered would be enough if they were free.
        if count.busy > spare || count.taken + count.busy >= self.members.required() {
            self.outage = None;
            return Ok(is_late);
        }
        let (since, _) = *self.outage.get_or_insert((round.began, OUTAGE_PAUSES));
        let limit = self.deadline.unwrap_or_else(|| since + self.outage_limit());
        if now >= limit {
            return Err(self.error(round, "not enough of them could be asked"));
        }
        Ok(false)
    }

    /// Returns how long an acquisition without a deadline tolerates an outage: the shortest outage
    /// limit of the members' clients.
    fn outage_limit(&self) -> Duration {
        let locks = self.members.composite().single_locks();
        let limits = locks.into_iter().map(|lock| lock.engine.outage_limit());
        limits.min().unwrap_or_default()
    }

    /// Makes the error of a failed acquisition, with the result of each member in the last round.
    fn error(&self, round: &Round, what: &str) -> Error {
        let results = self.members.results(round.outcomes.clone());
        let is_refusal = round.count().refused > self.members.spare();
        // If so many members refused that the others are not enough, the error has the worst kind
        // of the members that refused. Otherwise it is "unavailable" if any store was unavailable,
        // and "insufficient replicas" if none was.
        let decided = |(at, result): (usize, &MemberResult)| {
            let counts = if is_refusal {
                round.refused[at]
            } else {
                result.error().is_some_and(Error::is_unavailable)
            };
            counts.then(|| result.clone())
        };
        let decided: Vec<_> = results.iter().enumerate().filter_map(decided).collect();
        let kind = if decided.is_empty() {
            ErrorKind::InsufficientReplicas
        } else {
            worst_kind(&decided)
        };
        Error::from_members(kind, what, "was taken and given back", results)
    }

    /// Pauses after a failed round. If the round held locks, the pause is random: otherwise two
    /// threads that each hold one lock and try the lock of the other could fail in step for ever.
    /// If too few members answered, the next round also waits for the back-off: otherwise a store
    /// whose requests fail at once would be queried without a pause.
    fn pause(&mut self, held_for: Option<Duration>, began: Moment) {
        let asks_again = self
            .outage
            .as_mut()
            .map(|(_, pauses)| began + pauses.next());
        let tries_again = held_for.map(|held_for| {
            let longest =
                (held_for * 2).max(SHORTEST_PAUSE) * 2u32.pow(self.patience.failed_rounds().min(6));
            self.patience.round_failed();
            self.clock.now() + longest.min(LONGEST_PAUSE).mul_f64(fastrand::f64())
        });
        let Some(until) = asks_again.max(tries_again) else {
            return;
        };
        let until = self.deadline.map_or(until, |deadline| until.min(deadline));
        // An interrupt raises the signal and so ends the pause.
        let _woken: Woken = self.clock.wait(self.signal, until);
    }
}

fn interrupted() -> Error {
    Error::new(
        ErrorKind::Interrupted,
        "the wait was interrupted: the locks taken so far were released",
    )
}

impl Round {
    fn new(members: usize, began: Moment) -> Self {
        let mut guards = Vec::new();
        guards.resize_with(members, || None);
        let outcomes = vec![MemberOutcome::NotAsked; members];
        let refused = vec![false; members];
        Self {
            began,
            first: None,
            guards,
            outcomes,
            busy: None,
            unavailable: None,
            refused,
        }
    }

    fn count(&self) -> Count {
        let mut count = Count::default();
        for (outcome, is_refused) in self.outcomes.iter().zip(&self.refused) {
            match outcome {
                MemberOutcome::Done => count.taken += 1,
                MemberOutcome::Busy => count.busy += 1,
                MemberOutcome::Failed(_) if *is_refused => count.refused += 1,
                MemberOutcome::Failed(_) => count.unavailable += 1,
                MemberOutcome::NotAsked => {}
            }
        }
        count
    }

    /// Returns whether the round has failed for a reason that the members not yet tried cannot
    /// change.
    fn is_decided(&self, need: usize) -> bool {
        let Count {
            taken,
            busy,
            unavailable,
            refused,
        } = self.count();
        let spare = self.outcomes.len() - need;
        let is_lost = busy + unavailable + refused > spare;
        let not_asked = self.outcomes.len() - taken - busy - unavailable - refused;
        let is_busy = busy > spare || taken + busy >= need;
        let is_out = refused > spare || taken + busy + not_asked < need;
        is_lost && (is_busy || is_out)
    }

    /// Extends each lease of which more than a tenth has passed since its grant, because the
    /// requested lease counts from the end of the acquisition.
    fn restart_lease(&mut self, lease: LeaseTime, is_transient: impl Fn(usize, &Error) -> bool) {
        let enough = lease.validity().mul_f64(0.9);
        for at in 0..self.guards.len() {
            let short = self.guards[at].take_if(|guard| guard.remaining() < enough);
            let Some(short) = short else { continue };
            match short.restart_lease(lease) {
                Err(error) if error.is_lost() => self.set_lost(at),
                // If the store cannot extend leases, the guard keeps its old lease.
                Err(error) if !error.is_unsupported() => {
                    self.refused[at] = !is_transient(at, &error);
                    self.outcomes[at] = MemberOutcome::Failed(error);
                    self.unavailable = Some(at);
                }
                _ => self.guards[at] = Some(short),
            }
        }
    }

    fn drop_lost(&mut self) {
        for at in 0..self.guards.len() {
            if self.guards[at].take_if(|guard| !guard.is_valid()).is_some() {
                self.set_lost(at);
            }
        }
    }

    /// Records that this lock was lost while the others were acquired. It counts as busy, so that
    /// the next round waits for it.
    fn set_lost(&mut self, at: usize) {
        self.outcomes[at] = MemberOutcome::Busy;
        self.busy = Some(at);
    }

    /// Releases the locks in the reverse order of the members. Returns how long before `now` the
    /// first lock was acquired; `None` if the round acquired no lock.
    fn release_all(&mut self, now: Moment) -> Option<Duration> {
        for guard in self.guards.iter_mut().rev() {
            drop(guard.take());
        }
        self.first.map(|first| now.since(first))
    }
}
