//! [`ReplicaSet`]: the replicas of a store under test.

use super::subject::Seen;
use crate::name::LockName;

/// The replicas of a store under test.
pub trait ReplicaSet {
    /// Returns their number, at least one.
    fn count(&self) -> u32;

    /// Pauses the first `replicas` of them: when this returns they apply and confirm no writes. The
    /// others resume, and catch up soon. The store must still count paused ones as replicas.
    fn hold_back(&self, replicas: u32);

    /// Inspects the lock on this replica, counted from zero, which must not be paused.
    fn probe(&self, replica: u32, lock: &LockName) -> Seen;
}
