//! Helpers that the checks of all models share.

use stateright::{Checker, DiscoveryClassification, Model, Path};
use std::time::{Duration, Instant};

/// Runs `work`, and returns its result and the time that it took, which is only printed.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    #[allow(clippy::disallowed_methods, reason = "nothing hangs on it")]
    let began = Instant::now();
    let done = work();
    (done, began.elapsed())
}

pub(crate) type PathOf<M> = Path<<M as Model>::State, <M as Model>::Action>;

/// Returns a property that does not hold, with a path to a state that violates it.
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
