//! Taking several locks: rounds, each of which waits for one lock with empty hands, and then tries
//! the others or has little patience with them.

use super::held::Several;
use super::members::{Leaf, Members, worst};
use crate::clock::{Clock, Moment, Signal, Woken};
use crate::error::{Error, ErrorKind, MemberOutcome, MemberResult};
use crate::guard::LockGuard;
use crate::interrupt::Registration;
use crate::lease::{Lease, LeaseTime};
use crate::options::LockOptions;
use crate::replication::OnInsufficientReplicas;
use std::sync::Arc;
use std::time::Duration;

/// The longest that a majority waits for one of its members before it looks at the others again.
const LONGEST_SHARE: Duration = Duration::from_secs(1);

/// The shortest: below it a wait is no more than a try.
const SHORTEST_SHARE: Duration = Duration::from_millis(10);

/// After so many rounds that gave something back, tries wait for a moment, too: at first for up to
/// the shortest of these, doubled each time, and never for longer than the longest.
const ROUNDS_OF_TRIES: u32 = 3;
const SHORTEST_PATIENCE: Duration = Duration::from_millis(1);
const LONGEST_PATIENCE: Duration = Duration::from_millis(100);

/// For how long a majority does without a member that could not be asked, where the others are
/// enough.
const AILING: Duration = Duration::from_secs(5);

/// The pause after locks were taken and given back: up to twice what taking them took, but not
/// below and not above these, doubled for each such round before.
const SHORTEST_PAUSE: Duration = Duration::from_micros(200);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Takes the locks as `options` say; `None` if they were busy until the end of the wait.
pub(super) fn take(members: &Members, options: &LockOptions) -> Result<Option<LockGuard>, Error> {
    let signal = Arc::new(Signal::new());
    // The members' own waits miss an interrupt that fires between two of them, and is reset.
    let interrupt = options.interrupt.as_ref().map(|interrupt| interrupt.register(&signal));
    Taking::new(members, options, &signal, interrupt.as_ref())?.run()
}

/// One thread's attempt to take several locks.
struct Taking<'a> {
    members: &'a Members,
    options: &'a LockOptions,
    clock: Arc<dyn Clock>,
    signal: &'a Arc<Signal>,
    interrupt: Option<&'a Registration<'a>>,
    /// `None`: wait for ever.
    deadline: Option<Moment>,
    /// The lease that all must have in the end, if it is one that ends by itself.
    lease: Option<LeaseTime>,
    /// How many rounds took something and gave it back.
    given_back: u32,
    /// Since when too many members could not be asked.
    outage: Option<Moment>,
}

/// What has come of a round so far.
struct Round {
    began: Moment,
    /// When the first lock was taken.
    first: Option<Moment>,
    guards: Vec<Option<LockGuard>>,
    outcomes: Vec<MemberOutcome>,
    /// Which was found busy last, and which could not be asked.
    busy: Option<usize>,
    unavailable: Option<usize>,
    /// Which failed in a way that does not pass.
    refused: Vec<bool>,
}

/// How many members came to what.
#[derive(Default)]
struct Count {
    taken: usize,
    busy: usize,
    unavailable: usize,
    refused: usize,
}

impl<'a> Taking<'a> {
    fn new(
        members: &'a Members,
        options: &'a LockOptions,
        signal: &'a Arc<Signal>,
        interrupt: Option<&'a Registration<'a>>,
    ) -> Result<Self, Error> {
        let clock = members.group().clock();
        let lease = match options.lease {
            Some(Lease::Fixed(time)) => Some(LeaseTime::new(time)?),
            Some(Lease::Watched { .. }) | None => None,
        };
        let deadline = options.wait.map(|wait| clock.now() + wait);
        let (given_back, outage) = (0, None);
        Ok(Self { members, options, clock, signal, interrupt, deadline, lease, given_back, outage })
    }

    fn run(mut self) -> Result<Option<LockGuard>, Error> {
        // Of all of them, one must be waited for in any case; of a majority perhaps none.
        let mut next = (self.members.spare() == 0).then(|| self.members.order[0]);
        loop {
            let mut round = self.round(next)?;
            if self.is_enough(&mut round)? {
                let guards = std::mem::take(&mut round.guards);
                return Ok(Some(LockGuard::several(Several::new(
                    Arc::clone(self.members.group()),
                    guards,
                ))));
            }
            let held_for = round.let_go(self.clock.now());
            self.check_interrupt()?;
            if self.is_over(&round)? {
                return Ok(None);
            }
            next = round.busy.or(round.unavailable);
            self.pause(held_for);
            self.check_interrupt()?;
        }
    }

    /// Waits for one lock, if it says which, and tries the others.
    fn round(&self, wait_for: Option<usize>) -> Result<Round, Error> {
        let order = &self.members.order;
        let start = order.iter().position(|at| Some(*at) == wait_for).unwrap_or_default();
        let mut round = Round::new(order.len(), self.clock.now());
        let mut order: Vec<_> = order.iter().cycle().skip(start).take(order.len()).collect();
        // What hangs would cost each taking a command time-out: it comes last, and not at all if
        // the others are enough.
        order.sort_by_key(|at| self.is_ailing(**at) && Some(**at) != wait_for);
        for &at in order {
            if round.count().taken >= self.members.need() && self.is_ailing(at) {
                break;
            }
            let wait = if Some(at) == wait_for { self.share() } else { Some(self.patience()) };
            self.ask(&mut round, at, wait)?;
            if round.is_decided(self.members.need()) {
                break;
            }
        }
        Ok(round)
    }

    /// How long a try may take. None at first. But where others keep the queues of several locks
    /// from ever being empty, no try ever finds one free; so after some rounds in vain it waits for
    /// its turn, with what it has in its hand, for a moment. Of two that do so crosswise one gives
    /// up before the other, because the moments are random.
    fn patience(&self) -> Duration {
        let Some(doublings) = self.given_back.checked_sub(ROUNDS_OF_TRIES) else {
            return Duration::ZERO;
        };
        let longest = (SHORTEST_PATIENCE * 2u32.pow(doublings.min(10))).min(LONGEST_PATIENCE);
        let moment = longest.mul_f64(0.5 + fastrand::f64() / 2.0);
        let left = self.deadline.map(|deadline| deadline.since(self.clock.now()));
        left.map_or(moment, |left| left.min(moment))
    }

    fn is_ailing(&self, at: usize) -> bool {
        self.members.spare() > 0 && self.members.is_ailing(at, self.clock.now())
    }

    /// How long to wait for one lock. `None`: for ever.
    fn share(&self) -> Option<Duration> {
        let left = self.deadline.map(|deadline| deadline.since(self.clock.now()));
        if self.members.spare() == 0 {
            return left; // without this one there is nothing to be had
        }
        let Some(left) = left else { return Some(LONGEST_SHARE) };
        let members = u32::try_from(self.members.locks.len()).unwrap_or(u32::MAX);
        Some((left / members).clamp(SHORTEST_SHARE, LONGEST_SHARE).min(left))
    }

    /// The error of the whole wait, if the interrupt has ended it.
    fn check_interrupt(&self) -> Result<(), Error> {
        self.interrupt.map_or(Ok(()), Registration::check).map_err(|_| interrupted())
    }

    fn ask(&self, round: &mut Round, at: usize, wait: Option<Duration>) -> Result<(), Error> {
        self.check_interrupt()?;
        let options = LockOptions { wait, ..self.options.clone() };
        round.outcomes[at] = match self.members.locks[at].acquire(&options) {
            Ok(Some(guard)) => {
                self.members.set_ailing(at, None);
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
                if self.may_pass(at, &error) {
                    self.members.set_ailing(at, Some(self.clock.now() + AILING));
                    round.unavailable = Some(at);
                } else {
                    round.refused[at] = true;
                }
                MemberOutcome::Failed(error)
            }
        };
        Ok(())
    }

    /// Whether this member's failure is one that may pass: its store cannot be asked, or its
    /// replicas do not confirm, where the policy is to try that again.
    fn may_pass(&self, at: usize, error: &Error) -> bool {
        let retries = |leaf: &Leaf| {
            let policy = self.options.replication.unwrap_or(leaf.engine.replication());
            policy.insufficient() != OnInsufficientReplicas::Fail
        };
        let leaves = || self.members.group().parts[at].leaves();
        error.is_unavailable()
            || error.is_insufficient_replicas() && leaves().into_iter().all(retries)
    }

    /// Whether the round has taken enough, and all of it is good for as long as was asked for.
    fn is_enough(&self, round: &mut Round) -> Result<bool, Error> {
        let need = self.members.need();
        if round.count().taken < need {
            return Ok(false);
        }
        if let Some(lease) = self.lease {
            round.lease_again(lease, |at, error| self.may_pass(at, error));
        }
        let good = round.guards.iter().flatten().filter(|guard| guard.is_valid()).count();
        if good >= need {
            return Ok(true);
        }
        let took = self.clock.now().since(round.began);
        match self.lease {
            // Time alone has ended them, and will do so again.
            Some(lease) if took >= lease.validity() => Err(Error::unavailable(format!(
                "taking them all took {took:.1?}, and a lease of {lease} is good for {:.1?} only: \
                they were given back; ask for a longer lease",
                lease.validity()
            ))),
            // Some of it was lost meanwhile: deleted, or its server was not there.
            _ => {
                round.drop_what_was_lost();
                Ok(false)
            }
        }
    }

    /// Whether it ends here without the lock: at the deadline, for want of members that can be
    /// asked, or because some refuse.
    fn is_over(&mut self, round: &Round) -> Result<bool, Error> {
        let (count, spare) = (round.count(), self.members.spare());
        if count.refused > spare {
            return Err(self.error(round, "they cannot be taken together"));
        }
        let now = self.clock.now();
        let is_late = self.deadline.is_some_and(|deadline| now >= deadline);
        // Somebody else has so many that the others are not enough; or those who have them are all
        // that is in the way.
        if count.busy > spare || count.taken + count.busy >= self.members.need() {
            self.outage = None;
            return Ok(is_late);
        }
        let since = *self.outage.get_or_insert(round.began);
        let limit = self.deadline.unwrap_or_else(|| since + self.outage_limit());
        if now >= limit {
            return Err(self.error(round, "not enough of them could be asked"));
        }
        Ok(false)
    }

    /// How long to put up with an outage where the wait has no end: as long as the least patient
    /// member.
    fn outage_limit(&self) -> Duration {
        let leaves = self.members.group().leaves();
        let limits = leaves.into_iter().map(|leaf| leaf.engine.outage_limit());
        limits.min().unwrap_or_default()
    }

    /// The error of a round, with what came of each member. Of what was refused, if that decided
    /// it.
    fn error(&self, round: &Round, what: &str) -> Error {
        let results = self.members.results(round.outcomes.clone());
        let is_refusal = round.count().refused > self.members.spare();
        // Of what may pass a store that cannot be asked counts for more than one that was, and has
        // too few replicas.
        let decided = |(at, result): (usize, &MemberResult)| {
            let counts = if is_refusal {
                round.refused[at]
            } else {
                result.error().is_some_and(Error::is_unavailable)
            };
            counts.then(|| result.clone())
        };
        let decided: Vec<_> = results.iter().enumerate().filter_map(decided).collect();
        let kind =
            if decided.is_empty() { ErrorKind::InsufficientReplicas } else { worst(&decided) };
        Error::from_members(kind, what, "was taken and given back", results)
    }

    /// After something was given back: leaves it to whoever wants it, for a random time. Without
    /// that two that hold one each, and try the other's, could do so in step for ever.
    fn pause(&mut self, held_for: Option<Duration>) {
        let Some(held_for) = held_for else { return };
        let longest = (held_for * 2).max(SHORTEST_PAUSE) * 2u32.pow(self.given_back.min(6));
        self.given_back += 1;
        let pause = longest.min(LONGEST_PAUSE).mul_f64(fastrand::f64());
        let until = self.clock.now() + pause;
        let until = self.deadline.map_or(until, |deadline| until.min(deadline));
        // An interrupt raises the signal.
        let _woken: Woken = self.clock.wait(self.signal, until);
    }
}

fn interrupted() -> Error {
    Error::new(ErrorKind::Interrupted, "the wait was interrupted: what was taken is given back")
}

impl Round {
    fn new(members: usize, began: Moment) -> Self {
        let mut guards = Vec::new();
        guards.resize_with(members, || None);
        let outcomes = vec![MemberOutcome::NotAsked; members];
        let refused = vec![false; members];
        Self { began, first: None, guards, outcomes, busy: None, unavailable: None, refused }
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

    /// Whether it is lost, and known why: whoever is asked yet makes no difference.
    fn is_decided(&self, need: usize) -> bool {
        let Count { taken, busy, unavailable, refused } = self.count();
        let spare = self.outcomes.len() - need;
        let is_lost = busy + unavailable + refused > spare;
        let not_asked = self.outcomes.len() - taken - busy - unavailable - refused;
        let is_busy = busy > spare || taken + busy >= need;
        let is_out = refused > spare || taken + busy + not_asked < need;
        is_lost && (is_busy || is_out)
    }

    /// A lease counts from before a lock was asked for, and that of the whole ends with the first:
    /// where taking the later ones has cost more than a tenth of it, those taken before get it
    /// anew.
    fn lease_again(&mut self, lease: LeaseTime, may_pass: impl Fn(usize, &Error) -> bool) {
        let enough = lease.validity().mul_f64(0.9);
        for at in 0..self.guards.len() {
            let short = self.guards[at].take_if(|guard| guard.remaining() < enough);
            let Some(short) = short else { continue };
            match short.lease_again(lease) {
                Err(error) if error.is_lost() => self.lost(at),
                // Where a lease cannot be extended it is as long as it is.
                Err(error) if !error.is_unsupported() => {
                    self.refused[at] = !may_pass(at, &error);
                    self.outcomes[at] = MemberOutcome::Failed(error);
                    self.unavailable = Some(at);
                }
                _ => self.guards[at] = Some(short),
            }
        }
    }

    fn drop_what_was_lost(&mut self) {
        for at in 0..self.guards.len() {
            if self.guards[at].take_if(|guard| !guard.is_valid()).is_some() {
                self.lost(at);
            }
        }
    }

    /// What was taken here was lost before the others were: it is somebody else's now, or free.
    fn lost(&mut self, at: usize) {
        self.outcomes[at] = MemberOutcome::Busy;
        self.busy = Some(at);
    }

    /// Gives back what was taken, the last first, and says for how long it was held; `None` if
    /// there was nothing.
    fn let_go(&mut self, now: Moment) -> Option<Duration> {
        for guard in self.guards.iter_mut().rev() {
            drop(guard.take());
        }
        self.first.map(|first| now.since(first))
    }
}
