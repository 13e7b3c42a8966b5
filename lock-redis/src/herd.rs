//! [`Herd`]: many need the same thing done at the same time; one does it, and the others wait for what comes of it,
//! each within its own deadline.

use lock_core::backend::Failure;
use lock_core::{Clock, Moment, Signal};
use parking_lot::Mutex;
use std::sync::Arc;

/// Whoever needs it done. See the [module's text](self).
#[derive(Default)]
pub(crate) struct Herd(Mutex<State>);

#[derive(Default)]
struct State {
    /// Whether somebody does it.
    busy: bool,
    waiting: Vec<Arc<Waiting>>,
}

#[derive(Default)]
struct Waiting {
    signal: Arc<Signal>,
    verdict: Mutex<Option<Verdict>>,
}

/// What those who waited are told.
#[derive(Clone, Default)]
pub(crate) enum Verdict {
    /// Look again.
    #[default]
    Look,
    Failed(Failure),
}

/// What falls to one of them.
pub(crate) enum Turn<'a> {
    /// To do it. It may have been done just before, so look first.
    Mine(Doing<'a>),
    /// To hear what came of it.
    Told(Verdict),
    /// Neither, until its deadline.
    Late,
}

/// Somebody does it. When this ends, in whatever way - a panic, too - those who wait are told.
pub(crate) struct Doing<'a> {
    herd: &'a Herd,
    pub(crate) verdict: Verdict,
}

impl Herd {
    /// Does it, or waits until `by` for the one who does.
    pub(crate) fn join(&self, clock: &dyn Clock, by: Moment) -> Turn<'_> {
        let mut state = self.0.lock();
        if !state.busy {
            state.busy = true;
            return Turn::Mine(Doing { herd: self, verdict: Verdict::Look });
        }
        let waiting = Arc::new(Waiting::default());
        state.waiting.push(Arc::clone(&waiting));
        drop(state);
        clock.wait(&waiting.signal, by);
        self.0.lock().waiting.retain(|other| !Arc::ptr_eq(other, &waiting));
        // Told at the same moment as the deadline came: that counts.
        let told = waiting.verdict.lock().take();
        told.map_or(Turn::Late, Turn::Told)
    }
}

impl Drop for Doing<'_> {
    fn drop(&mut self) {
        let mut state = self.herd.0.lock();
        state.busy = false;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for waiting in waiting {
            *waiting.verdict.lock() = Some(self.verdict.clone());
            waiting.signal.raise();
        }
    }
}
