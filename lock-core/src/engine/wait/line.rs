//! Threads of a client that wait for permits of one semaphore stand in line, so that one of them
//! asks the store: each release would otherwise make all of them ask.
//!
//! The line is the local lock of the client, which is held by no thread. Those that want another
//! number of permits stand in another line: none waits for them.

use super::Wait;
use super::attempt::Granted;
use super::local_wait::Queued;
use crate::engine::holder::Holder;
use crate::engine::queue::{Entered, Scope, WaiterGuard};
use crate::error::Error;

impl Wait<'_> {
    /// Takes permits at once if no thread waits for as many, and they are free; otherwise in line.
    pub(super) fn contend_in_line(
        &mut self,
        waiter: &WaiterGuard<'_>,
        holder: &Holder,
    ) -> Result<Option<Granted>, Error> {
        let (engine, name) = (self.engine, &self.lock.name);
        let line = engine.find_local_lock(name, Scope::CLIENT);
        if line.is_none_or(|line| line.waiting() == 0) {
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
                // No acquisition in this line says so: followers at their deadline wait for it.
                place.answered(engine.clock.now());
                Ok(granted)
            }
            Queued::Handed(_) | Queued::Late => Ok(None),
        }
    }
}
