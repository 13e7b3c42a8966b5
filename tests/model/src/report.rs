//! What the checks of all models share.

use stateright::{Checker, DiscoveryClassification, Model, Path};
use std::time::{Duration, Instant};

/// How long something takes, to be printed.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    #[allow(clippy::disallowed_methods, reason = "nothing hangs on it")]
    let began = Instant::now();
    let done = work();
    (done, began.elapsed())
}

pub(crate) type PathOf<M> = Path<<M as Model>::State, <M as Model>::Action>;

/// A property that does not hold, and how it comes to that.
pub(crate) fn fault<M>(checker: &impl Checker<M>) -> Option<(&'static str, PathOf<M>)>
where
    M: Model<State: Clone + PartialEq, Action: Clone + PartialEq>,
{
    let is_fault = |property: &&str| {
        matches!(
            checker.discovery_classification(property),
            DiscoveryClassification::Counterexample
        )
    };
    checker
        .discoveries()
        .into_iter()
        .find(|(property, _)| is_fault(property))
}
