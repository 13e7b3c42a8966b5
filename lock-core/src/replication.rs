//! [`Replication`]: how many replicas must have a write before it counts, and [`InsufficientReplicas`]: that they have not.

use crate::lease::LeaseTime;
use std::fmt;
use std::time::Duration;

/// How many replicas must have confirmed a grant, and every renewal, before it counts.
///
/// A store with replicas answers before they have the write. If it fails then, one that has not got
/// it takes its place, and grants the lock again. Under a policy a grant counts only when so many
/// replicas have said that they have it, and a renewal extends the
/// [validity](crate::LockGuard::remaining) only then.
///
/// | policy | what survives the loss of the master |
/// |---|---|
/// | [`off`](Self::off) | what the replica that takes over happened to have |
/// | [`replicas(k)`](Self::replicas) | every grant, if one of those that confirmed takes over. Nobody sees to it that it is one of them: of more than `k` replicas another may |
/// | [`all`](Self::all) | every grant, whichever takes over of those that were not held for down. One that was, comes back and takes over before it has caught up, has not got it: a number has no such gap, and grants nothing while one is away |
///
/// "All" means every replica that Sentinel (or the slot map of a cluster) lists and does not hold
/// for down, at the time of the attempt; none at all is too few acknowledgements. One server on its
/// own does not know how many it should have, and a replica that is gone is one that it forgets:
/// there a number is needed, and `all` is refused.
///
/// What is waited for is Redis' [`WAIT`](https://redis.io/docs/latest/commands/wait/): it says how
/// many replicas have everything that this connection wrote so far, in their memory, not on their
/// disks. It makes the loss of a lock less likely, and does not make a master and its replicas one
/// consistent store. A release is not confirmed: losing one delays the next holder, by a lease at
/// most.
///
/// Redisson (`checkLockSyncedSlaves`, 4.0) waits for as many as are connected and is content with
/// *one* of them, takes none connected for all, and repeats a `WAIT` whose answer was lost on
/// another connection, where it says nothing about the write.
///
/// # Examples
///
/// ```
/// # extern crate lock_core as distlock;
/// use distlock::{LockOptions, OnInsufficientReplicas, Replication};
/// use std::time::Duration;
///
/// let replication = Replication::replicas(2)
///     .timeout(Duration::from_millis(300))
///     .on_insufficient_replicas(OnInsufficientReplicas::Fail);
/// let options = LockOptions::new().replication(replication);
/// # let _ = options;
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replication {
    pub(crate) replicas: Replicas,
    /// Whole milliseconds, which is what a store counts in; and so a policy is small enough to be
    /// copied into every holding.
    pub(crate) millis: u32,
    pub(crate) on_insufficient_replicas: OnInsufficientReplicas,
    keeps_unconfirmed: bool,
}

/// How many replicas.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Replicas {
    /// None: nobody is waited for.
    Off,
    /// At least so many.
    AtLeast(u32),
    /// Every one that the store lists and does not hold for down, and at least one.
    All,
}

/// What to do when too few replicas confirmed in time.
///
/// Whatever it is, a grant that does not count is taken back first: the store has said that the
/// lock is free again, or, if it cannot be asked, that is tried on in the background.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum OnInsufficientReplicas {
    /// Take it back, and try again for as long as the wait goes on; then an error. The default,
    /// because a wait says how long the caller can do without the lock, whatever keeps it away: a
    /// replica that restarts is put up with like a server that does. Without a wait (`try_lock`)
    /// there is one attempt; `lock()`, which waits for ever, gives up after the `outage_limit`.
    #[default]
    Retry,
    /// Take it back, and say so at once:
    /// [`Error::is_insufficient_replicas`](crate::Error::is_insufficient_replicas).
    Fail,
    /// Keep it, and tell it as an event
    /// ([`Event::InsufficientReplicasAccepted`](crate::Event::InsufficientReplicasAccepted)): the
    /// lock is held like one without a policy. The same for renewals.
    Accept,
}

impl Replication {
    /// How long replicas are given by default: Redisson's `slavesSyncTimeout`.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1);

    const fn new(replicas: Replicas) -> Self {
        let millis = Self::DEFAULT_TIMEOUT.as_millis() as u32;
        Self {
            replicas,
            millis,
            on_insufficient_replicas: OnInsufficientReplicas::Retry,
            keeps_unconfirmed: false,
        }
    }

    /// Nobody is waited for.
    #[must_use]
    pub const fn off() -> Self {
        Self::new(Replicas::Off)
    }

    /// At least `count` replicas must confirm. Zero is refused when the lock is asked for.
    #[must_use]
    pub const fn replicas(count: u32) -> Self {
        Self::new(Replicas::AtLeast(count))
    }

    /// Every replica must confirm that the store lists and does not hold for down, and at least
    /// one.
    #[must_use]
    pub const fn all() -> Self {
        Self::new(Replicas::All)
    }

    /// How long they are given, in whole milliseconds. Never more than a third of the lease, so
    /// that most of it is left when it is confirmed. Default: 1 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        // Rounded up, but for what is less than one: zero milliseconds are "for ever" to Redis, and
        // refused, as is what does not fit.
        let millis = match timeout.as_nanos() {
            0..1_000_000 => 0,
            nanos => nanos.div_ceil(1_000_000),
        };
        self.millis = u32::try_from(millis).unwrap_or(u32::MAX);
        self
    }

    /// What to do when too few confirmed. Default: [`OnInsufficientReplicas::Retry`].
    #[must_use]
    pub const fn on_insufficient_replicas(
        mut self,
        on_insufficient_replicas: OnInsufficientReplicas,
    ) -> Self {
        self.on_insufficient_replicas = on_insufficient_replicas;
        self
    }

    /// Whether a lock that was granted with its replicas stays valid by renewals that they do not
    /// confirm. Default: no; it is lost when the lease ends that they confirmed last.
    ///
    /// Where it does, a replica that was away may be promoted without the renewals, and grant the
    /// lock again while it is held. On Redis Cluster no setting is needed while the master has no
    /// replica at all: then none can be promoted.
    #[must_use]
    pub const fn keep_unconfirmed_renewals(mut self, keep: bool) -> Self {
        self.keeps_unconfirmed = keep;
        self
    }

    /// Whether unconfirmed renewals count.
    #[must_use]
    pub const fn keeps_unconfirmed_renewals(&self) -> bool {
        self.keeps_unconfirmed
    }

    /// How many must confirm.
    #[must_use]
    pub const fn count(&self) -> Replicas {
        self.replicas
    }

    /// How long they are given.
    #[must_use]
    pub const fn time(&self) -> Duration {
        Duration::from_millis(self.millis as u64)
    }

    /// What is done when too few confirmed.
    #[must_use]
    pub const fn insufficient(&self) -> OnInsufficientReplicas {
        self.on_insufficient_replicas
    }

    /// Whether nobody is waited for.
    #[must_use]
    pub const fn is_off(&self) -> bool {
        matches!(self.replicas, Replicas::Off)
    }

    /// What is wrong with the number, if anything.
    pub(crate) fn wrong_count(&self) -> Option<String> {
        (self.replicas == Replicas::AtLeast(0)).then(|| {
            "replicas 0 would confirm nothing: give it at least 1, or say `off`".to_owned()
        })
    }

    /// What is wrong with the time, if anything.
    pub(crate) fn wrong_time(&self) -> Option<String> {
        let longest = crate::Config::LONGEST_TIMEOUT;
        let is_good = (Duration::from_millis(1)..=longest).contains(&self.time());
        (!is_good).then(|| {
            format!("replication_timeout {:?} is not between 1ms and {longest:?}", self.time())
        })
    }

    /// How much longer than any other request one under this policy may take.
    pub(crate) fn patience(&self) -> Duration {
        if self.is_off() { Duration::ZERO } else { self.time() }
    }

    /// The same for a holding with this lease.
    pub(crate) fn within(mut self, lease: LeaseTime) -> Self {
        let third = u32::try_from(lease.as_millis() / 3).unwrap_or(u32::MAX);
        self.millis = self.millis.min(third.max(1));
        self
    }

    /// Whether a holding under this policy is one that `inner` may be content with.
    pub(crate) fn covers(&self, inner: &Self) -> bool {
        let enough = match (self.replicas, inner.replicas) {
            (_, Replicas::Off) => return true,
            (Replicas::All, Replicas::All | Replicas::AtLeast(1)) => true,
            (Replicas::AtLeast(ours), Replicas::AtLeast(wanted)) => ours >= wanted,
            _ => false,
        };
        let accepts = self.on_insufficient_replicas == OnInsufficientReplicas::Accept;
        enough && (!accepts || inner.on_insufficient_replicas == OnInsufficientReplicas::Accept)
    }
}

/// [`Replication::off`].
impl Default for Replication {
    fn default() -> Self {
        Self::off()
    }
}

/// As it stands in a URL: `off`, `2`, `all`.
impl fmt::Display for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::AtLeast(count) => count.fmt(f),
            Self::All => f.write_str("all"),
        }
    }
}

/// That too few replicas confirmed a write in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InsufficientReplicas {
    acknowledged: Option<u32>,
    needed: u32,
}

impl InsufficientReplicas {
    /// So many of those that were needed.
    #[must_use]
    pub fn new(acknowledged: u32, needed: u32) -> Self {
        Self { acknowledged: Some(acknowledged), needed }
    }

    /// The store granted it, and did not say in time how many replicas have it.
    #[must_use]
    pub fn unanswered(needed: u32) -> Self {
        Self { acknowledged: None, needed }
    }

    /// How many confirmed; `None` if the store did not say in time.
    #[must_use]
    pub fn acknowledged(&self) -> Option<u32> {
        self.acknowledged
    }

    /// How many were needed; zero if all were, and there is none.
    #[must_use]
    pub fn needed(&self) -> u32 {
        self.needed
    }
}

impl fmt::Display for InsufficientReplicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.acknowledged, self.needed) {
            (_, 0) => f.write_str("there is none that could"),
            (Some(acknowledged), needed) => write!(f, "{acknowledged} of {needed} did in time"),
            (None, needed) => {
                write!(f, "the store did not say in time how many of {needed} have it")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_replicas_are_given_is_never_for_ever_and_never_most_of_the_lease() {
        let lease = |millis| LeaseTime::new(Duration::from_millis(millis)).unwrap();
        let policy = Replication::all().timeout(Duration::from_micros(1_001));
        assert_eq!(policy.time(), Duration::from_millis(2));
        let policy = Replication::all();
        assert_eq!(policy.within(lease(30_000)).time(), Replication::DEFAULT_TIMEOUT);
        assert_eq!(policy.within(lease(300)).time(), Duration::from_millis(100));
        assert_eq!(policy.within(lease(5)).time(), Duration::from_millis(1));
        assert_eq!(policy.within(lease(LeaseTime::MAX_MILLIS)), policy);
    }

    #[test]
    fn nonsense_is_refused_and_what_is_covered_is_not_asked_for_again() {
        assert!(Replication::replicas(0).wrong_count().unwrap().contains("`off`"));
        for time in [Duration::MAX, Duration::ZERO, Duration::from_nanos(999_999)] {
            let wrong = Replication::all().timeout(time).wrong_time().unwrap();
            assert!(wrong.contains("between"), "{wrong}");
        }
        assert_eq!(Replication::off().wrong_count().or(Replication::all().wrong_time()), None);
        let (one, two, all) =
            (Replication::replicas(1), Replication::replicas(2), Replication::all());
        assert!(two.covers(&one) && !one.covers(&two));
        assert!(all.covers(&one) && !all.covers(&two) && !two.covers(&all) && all.covers(&all));
        assert!(Replication::off().covers(&Replication::off()) && !Replication::off().covers(&one));
        let lax = two.on_insufficient_replicas(OnInsufficientReplicas::Accept);
        assert!(!lax.covers(&two) && two.covers(&lax) && lax.covers(&lax));
    }

    #[test]
    fn insufficient_replicas_says_how_many_of_how_many() {
        assert!(InsufficientReplicas::new(1, 2).to_string().contains("1 of 2"));
        assert!(InsufficientReplicas::unanswered(2).to_string().contains("did not say in time"));
        assert!(InsufficientReplicas::new(0, 0).to_string().contains("none"));
    }
}
