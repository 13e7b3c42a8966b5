//! [`Again`]: releases that nobody waits for and that were sent to the wrong node. They go where they belong on a thread
//! of their own, which is there for as long as there are any.

use crate::route::Router;
use lock_core::Moment;
use lock_core::backend::{AcquisitionId, Failure, OnReleased, Release, ReleaseOptions};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

/// See the [module's text](self).
#[derive(Clone, Default)]
pub(crate) struct Again(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    running: bool,
}

/// One release.
pub(crate) struct Job {
    pub(crate) router: Router,
    pub(crate) acquisition: AcquisitionId,
    pub(crate) closing: ReleaseOptions,
    pub(crate) by: Moment,
    pub(crate) done: OnReleased,
    /// What the wrong node said: that it is elsewhere, or the answer of one who serves the slot no longer.
    pub(crate) said: Result<Release, Failure>,
}

impl Again {
    /// Has it sent. Does not wait for anything.
    pub(crate) fn send(&self, job: Job) {
        let mut state = self.0.lock();
        state.jobs.push_back(job);
        if state.running {
            return;
        }
        let again = self.clone();
        let spawned =
            thread::Builder::new().name("distlock-again".to_owned()).spawn(move || again.run());
        state.running = spawned.is_ok();
        if state.running {
            return;
        }
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        for job in jobs {
            (job.done)(job.said);
        }
    }

    fn run(&self) {
        loop {
            let mut state = self.0.lock();
            let Some(job) = state.jobs.pop_front() else {
                state.running = false; // under the lock: whoever sends next starts another
                return;
            };
            drop(state);
            let Job { router, acquisition, closing, by, done, said } = job;
            // What is done with the answer is not ours, and must not end the others.
            let _panicked = catch_unwind(AssertUnwindSafe(|| {
                done(match (said, router.release(&acquisition, closing, by)) {
                    // It was freed before its slot moved.
                    (Ok(freed), Ok(Release::Gone)) => Ok(freed),
                    (_, outcome) => outcome,
                });
            }));
        }
    }
}
