//! The line: threads of a client that wait for permits of one semaphore queue here, so that only
//! the first thread sends attempts. Otherwise each release would make all waiting threads send an
//! attempt.
//!
//! The line is the client's local lock of this name, which no thread holds. Each number of permits
//! has its own line, so requests for different numbers do not wait for each other.

use super::Wait;
use super::attempt::Granted;
use super::local_wait::Queued;
use crate::engine::holder::Holder;
use crate::engine::queue::{Entered, LocalLock, Scope, WaiterGuard};
use crate::error::Error;
use std::sync::Arc;

impl Wait<'_> {
    /// Returns the line for this number of permits, if there is one.
    pub(super) fn line(&self) -> Option<Arc<LocalLock>> {
        let (engine, name) = (self.engine, &self.lock.name);
        let has_line = name.profile().contends_in_line;
        has_line
            .then(|| engine.find_local_lock(name, Scope::CLIENT))
            .flatten()
    }

    /// Acquires permits at once if they are free and no other thread waits for this number of
    /// permits. Otherwise queues in the line.
    pub(super) fn contend_in_line(
        &mut self,
        waiter: &WaiterGuard<'_>,
        holder: &Holder,
    ) -> Result<Option<Granted>, Error> {
        let (engine, name) = (self.engine, &self.lock.name);
        if self.line().is_none_or(|line| line.waiting() == 0) {
            self.asks_once = true;
            let granted = self.contend(waiter)?;
            self.asks_once = false;
            if granted.is_some() || self.plan.is_late(engine.clock.now()) {
                return Ok(granted);
            }
        }
        let line = engine.local_lock(name, Scope::CLIENT)?;
        let request = || self.plan.request(holder, self.signal);
        let Entered::Queued(mut place) = line.enter(engine, None, true, request)? else {
            return Ok(None);
        };
        match self.queue(&mut place, holder)? {
            Queued::Mine => {
                let granted = self.contend(&place)?;
                // A line has no current acquisition. So record the time of the answer: otherwise
                // the waiters behind could not see at their deadline that the store has answered.
                place.answered(engine.clock.now());
                Ok(granted)
            }
            Queued::Handed(_) | Queued::Late => Ok(None),
        }
    }
}
