//! [`Replication`]: the policy for the replicas that must confirm a grant and its renewals.

use crate::time::lease::LeaseTime;
use std::fmt;
use std::time::Duration;

/// The policy for how many replicas must confirm a grant, and every renewal, before it counts.
///
/// A Redis master replies before its replicas have received the write. If the master fails then, a
/// replica that lacks the write may be promoted and grant the lock again. Under a policy other than
/// `off`, a grant counts only when the required number of replicas has confirmed it, and only then
/// does a renewal extend the [validity](crate::LockGuard::remaining). The exceptions are
/// [`OnInsufficientReplicas::Accept`] and
/// [`keep_unconfirmed_renewals`](Self::keep_unconfirmed_renewals).
///
/// | policy | writes that survive the loss of the master |
/// |---|---|
/// | [`off`](Self::off) | those that the promoted replica happens to have received |
/// | [`replicas(k)`](Self::replicas) | every grant, if a replica that confirmed it is promoted |
/// | [`all`](Self::all) | every grant, if a replica that was listed as up is promoted |
///
/// If there are more than `k` replicas, one that did not confirm may be promoted. `all` means every
/// replica that Sentinel (or the slot map of a cluster) lists and does not mark as down at the time
/// of the attempt. If there are none, the grant does not count. `all` has a gap: a replica that was
/// down may return and be promoted before it has caught up, and then lacks the grant. If `k` is the
/// number of all replicas, there is no such gap, but nothing is granted while a replica is down. A
/// single server does not know how many replicas it should have, so `all` is refused there.
///
/// A replica whose clock is ahead of its master's clock ends leases too early after its promotion.
/// If the clocks can be read, the lock's validity is shorter by the largest such difference. A
/// replica whose clock is ahead by more than a third of the lease does not count: with `all`
/// nothing is granted while there is such a replica, and with a number one more confirmation is
/// required for each such replica.
///
/// The confirmations are counted by Redis' [`WAIT`](https://redis.io/docs/latest/commands/wait/),
/// which returns how many replicas have received all writes of this connection, in memory and not
/// on disk. That makes the loss of a lock less likely, but it does not make a master and its
/// replicas one consistent store. Replicas do not confirm a release. If a failover loses the
/// release, the next holder waits for at most one more lease.
///
/// In comparison, Redisson (`checkLockSyncedSlaves`, 4.0) waits for all connected replicas, but
/// accepts *one* confirmation, or none if no replica is connected. If a `WAIT` gets no reply,
/// Redisson repeats it on another connection, where its result says nothing about the write.
///
/// # Examples
///
/// ```
/// # extern crate lock_core as distlock;
/// use distlock::LockOptions;
/// use distlock::config::{OnInsufficientReplicas, Replication};
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
    /// The timeout in whole milliseconds, the unit of the store. A `u32`, so that the policy is
    /// small enough to be copied.
    pub(crate) millis: u32,
    pub(crate) on_insufficient_replicas: OnInsufficientReplicas,
    keeps_unconfirmed: bool,
}

/// The number of replicas that must confirm.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Replicas {
    /// None: the request does not wait for replicas.
    Off,
    /// At least this number of replicas.
    AtLeast(u32),
    /// Every replica that the store lists and does not mark as down. There must be at least one.
    All,
}

/// The reaction if too few replicas confirm a grant or a renewal in time.
///
/// With `Retry` and `Fail`, such a grant is rolled back: the client releases the lock in the store.
/// If the store does not confirm this release, the client repeats it in the background. A renewal
/// with too few confirmations is repeated, and does not extend the validity.
/// ([`Replication::keep_unconfirmed_renewals`] changes this.)
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum OnInsufficientReplicas {
    /// Roll the grant back, and retry until the wait ends; then fail. `try_lock`, which does not
    /// wait, makes one attempt; `lock()` gives up after the `outage_limit`. This is the default, so
    /// that the restart of a replica is tolerated as well as the restart of a server.
    #[default]
    Retry,
    /// Roll the grant back and fail at once with
    /// [`Error::is_insufficient_replicas`](crate::Error::is_insufficient_replicas).
    Fail,
    /// Keep the grant, as without a policy, and emit
    /// [`Event::InsufficientReplicasAccepted`](crate::Event::InsufficientReplicasAccepted).
    /// Renewals are accepted in the same way.
    Accept,
}

impl Replication {
    /// The default time to wait for the confirmations of replicas, as in Redisson
    /// (`slavesSyncTimeout`).
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

    /// Makes the policy that requires no confirmation.
    #[must_use]
    pub const fn off() -> Self {
        Self::new(Replicas::Off)
    }

    /// Makes the policy that requires the confirmation of at least `count` replicas. Zero is
    /// refused: as a configuration error if the policy is a setting of the client, and as misuse if
    /// the policy is in the options of an acquisition.
    #[must_use]
    pub const fn replicas(count: u32) -> Self {
        Self::new(Replicas::AtLeast(count))
    }

    /// Makes the policy that requires the confirmation of every replica that the store lists and
    /// does not mark as down. There must be at least one such replica.
    #[must_use]
    pub const fn all() -> Self {
        Self::new(Replicas::All)
    }

    /// Sets how long a request waits for confirmations, rounded up to whole milliseconds. Default:
    /// 1 s. Less than 1 ms, and more than
    /// [`Config::LONGEST_TIMEOUT`](crate::Config::LONGEST_TIMEOUT), is refused when the policy is
    /// used. The client waits for at most a third of the lease, so that most of the lease is left
    /// after the confirmation.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        // Less than 1 ms becomes zero, which is refused when the policy is used, because `WAIT`
        // takes zero as "for ever". An overflow becomes `u32::MAX`, which is refused as too long.
        let millis = match timeout.as_nanos() {
            0..1_000_000 => 0,
            nanos => nanos.div_ceil(1_000_000),
        };
        self.millis = u32::try_from(millis).unwrap_or(u32::MAX);
        self
    }

    /// Sets the reaction if too few replicas confirm. Default: [`OnInsufficientReplicas::Retry`].
    #[must_use]
    pub const fn on_insufficient_replicas(
        mut self,
        on_insufficient_replicas: OnInsufficientReplicas,
    ) -> Self {
        self.on_insufficient_replicas = on_insufficient_replicas;
        self
    }

    /// Sets whether a renewal with too few confirmations extends the validity of a confirmed grant.
    /// By default it does not, and the lock is lost when the last confirmed lease ends. With
    /// [`OnInsufficientReplicas::Accept`], every renewal extends the validity, whatever this
    /// setting.
    ///
    /// With this setting, a replica that was down may be promoted without the renewals, and grant
    /// the lock again while it is held. A master of Redis Cluster without replicas does not need
    /// this setting: its renewals count if most masters confirm that it has no replica, because
    /// then no replica can be promoted.
    #[must_use]
    pub const fn keep_unconfirmed_renewals(mut self, keep: bool) -> Self {
        self.keeps_unconfirmed = keep;
        self
    }

    /// Returns whether renewals with too few confirmations extend the validity.
    #[must_use]
    pub const fn keeps_unconfirmed_renewals(&self) -> bool {
        self.keeps_unconfirmed
    }

    /// Returns how many replicas must confirm.
    #[must_use]
    pub const fn count(&self) -> Replicas {
        self.replicas
    }

    /// Returns how long a request waits for confirmations.
    #[must_use]
    pub const fn time(&self) -> Duration {
        Duration::from_millis(self.millis as u64)
    }

    /// Returns the reaction if too few replicas confirm.
    #[must_use]
    pub const fn insufficient(&self) -> OnInsufficientReplicas {
        self.on_insufficient_replicas
    }

    /// Returns whether this policy requires no confirmation.
    #[must_use]
    pub const fn is_off(&self) -> bool {
        matches!(self.replicas, Replicas::Off)
    }

    /// Returns an error message if the number of replicas is invalid.
    pub(crate) fn wrong_count(&self) -> Option<String> {
        (self.replicas == Replicas::AtLeast(0)).then(|| {
            "replicas 0 would confirm nothing: give it at least 1, or say `off`".to_owned()
        })
    }

    /// Returns how much longer a request under this policy may take than one without a policy.
    pub(crate) fn patience(&self) -> Duration {
        if self.is_off() {
            Duration::ZERO
        } else {
            self.time()
        }
    }

    /// Returns the policy with a timeout of at most a third of this lease.
    pub(crate) fn within(mut self, lease: LeaseTime) -> Self {
        let third = u32::try_from(lease.as_millis() / 3).unwrap_or(u32::MAX);
        self.millis = self.millis.min(third.max(1));
        self
    }

    /// Returns whether the acquisition of a lock under this policy is enough for a nested hold that
    /// requests the policy `inner`.
    pub(crate) fn covers(&self, inner: &Self) -> bool {
        let enough = match (self.replicas, inner.replicas) {
            (_, Replicas::Off) => return true,
            (Replicas::All, Replicas::All | Replicas::AtLeast(1)) => true,
            (Replicas::AtLeast(ours), Replicas::AtLeast(wanted)) => ours >= wanted,
            _ => false,
        };
        let accepts = self.on_insufficient_replicas == OnInsufficientReplicas::Accept;
        let may_keep = !self.keeps_unconfirmed || inner.keeps_unconfirmed;
        enough
            && may_keep
            && (!accepts || inner.on_insufficient_replicas == OnInsufficientReplicas::Accept)
    }
}

/// The default policy is [`Replication::off`].
impl Default for Replication {
    fn default() -> Self {
        Self::off()
    }
}

/// Prints the number as in a URL: `off`, `2`, `all`.
impl fmt::Display for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::AtLeast(count) => count.fmt(f),
            Self::All => f.write_str("all"),
        }
    }
}

/// The number of confirmations that a write got, and the number that it needed, for a write that
/// got too few.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InsufficientReplicas {
    acknowledged: Option<u32>,
    needed: u32,
    ahead: u32,
}

impl InsufficientReplicas {
    /// Makes the numbers for a write that `acknowledged` of the `needed` replicas confirmed.
    #[must_use]
    pub fn new(acknowledged: u32, needed: u32) -> Self {
        Self {
            acknowledged: Some(acknowledged),
            needed,
            ahead: 0,
        }
    }

    /// Makes the numbers for a write for which the store did not report in time how many of the
    /// `needed` replicas confirmed.
    #[must_use]
    pub fn unanswered(needed: u32) -> Self {
        Self {
            acknowledged: None,
            needed,
            ahead: 0,
        }
    }

    /// Sets how many replicas do not count, because their clocks are too far ahead of the master's
    /// clock.
    #[must_use]
    pub fn clocks_ahead(mut self, count: u32) -> Self {
        self.ahead = count;
        self
    }

    /// Returns how many replicas do not count, because their clocks are more than a third of the
    /// lease ahead of the master's clock. For each of them, one more replica had to confirm.
    #[must_use]
    pub fn ahead(&self) -> u32 {
        self.ahead
    }

    /// Returns how many replicas confirmed; `None` if the store did not report it in time.
    #[must_use]
    pub fn acknowledged(&self) -> Option<u32> {
        self.acknowledged
    }

    /// Returns how many replicas the policy requires, without the additional ones for
    /// [`ahead`](Self::ahead); zero if the policy requires all replicas and none is up.
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
                write!(
                    f,
                    "the store did not say in time how many of {needed} have it"
                )
            }
        }?;
        match self.ahead {
            0 => Ok(()),
            ahead => write!(
                f,
                "; {ahead} with a clock more than a third of the lease ahead of the master's do \
                 not count: set those clocks right"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replica_timeout_is_bounded_and_at_most_a_third_of_lease() {
        let lease = |millis| LeaseTime::new(Duration::from_millis(millis)).unwrap();
        let policy = Replication::all().timeout(Duration::from_micros(1_001));
        assert_eq!(policy.time(), Duration::from_millis(2));
        let policy = Replication::all();
        assert_eq!(
            policy.within(lease(30_000)).time(),
            Replication::DEFAULT_TIMEOUT
        );
        assert_eq!(policy.within(lease(300)).time(), Duration::from_millis(100));
        assert_eq!(policy.within(lease(5)).time(), Duration::from_millis(1));
        assert_eq!(policy.within(lease(LeaseTime::MAX_MILLIS)), policy);
    }

    #[test]
    fn invalid_policy_is_refused_and_covered_policy_accepted() {
        assert!(
            Replication::replicas(0)
                .wrong_count()
                .unwrap()
                .contains("`off`")
        );
        assert_eq!(Replication::off().wrong_count(), None);
        let (one, two, all) = (
            Replication::replicas(1),
            Replication::replicas(2),
            Replication::all(),
        );
        assert!(two.covers(&one) && !one.covers(&two));
        assert!(all.covers(&one) && !all.covers(&two) && !two.covers(&all) && all.covers(&all));
        assert!(Replication::off().covers(&Replication::off()) && !Replication::off().covers(&one));
        let lax = two.on_insufficient_replicas(OnInsufficientReplicas::Accept);
        assert!(!lax.covers(&two) && two.covers(&lax) && lax.covers(&lax));
        let kept = two.keep_unconfirmed_renewals(true);
        assert!(!kept.covers(&two) && two.covers(&kept) && kept.covers(&kept));
    }

    #[test]
    fn insufficient_replicas_prints_both_numbers() {
        assert!(
            InsufficientReplicas::new(1, 2)
                .to_string()
                .contains("1 of 2")
        );
        assert!(
            InsufficientReplicas::unanswered(2)
                .to_string()
                .contains("did not say in time")
        );
        assert!(InsufficientReplicas::new(0, 0).to_string().contains("none"));
        let ahead = InsufficientReplicas::new(1, 1).clocks_ahead(1).to_string();
        assert!(
            ahead.contains("1 of 1") && ahead.contains("1 with a clock"),
            "{ahead}"
        );
    }
}
