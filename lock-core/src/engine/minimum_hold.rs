//! [`MinimumHold`]: a lock that stays busy for a time from its grant on, even after its release.

use super::Engine;
use crate::backend::owner::OwnerId;
use crate::backend::{KeptLock, ReleaseOptions};
use crate::call::options::LockOptions;
use crate::error::{Error, ErrorKind};
use crate::name::LockName;
use crate::time::Moment;
use crate::time::lease::LeaseTime;
use std::time::Duration;

/// The end of a minimum hold, and the owner to which the lock passes if it is released earlier.
#[derive(Clone, Copy)]
pub(super) struct MinimumHold {
    owner: OwnerId,
    until: Moment,
}

impl MinimumHold {
    /// Extends a minimum hold to `until`, and never shortens it. If there is none, starts one for a
    /// new owner.
    pub(super) fn prolong(
        hold: &mut Option<Self>,
        until: Moment,
        new_owner: impl FnOnce() -> OwnerId,
    ) {
        let owner = hold.map_or_else(new_owner, |hold| hold.owner);
        let until = hold.map_or(until, |hold| hold.until.max(until));
        *hold = Some(Self { owner, until });
    }

    /// Changes the options of a release at `now`, so that the lock passes to the owner of the
    /// minimum hold for the remaining time.
    pub(super) fn apply_to(self, options: ReleaseOptions, now: Moment) -> ReleaseOptions {
        let time = LeaseTime::of_rest(self.until.since(now));
        options.kept(time.map(|time| KeptLock::new(self.owner, time)))
    }
}

impl LockOptions {
    /// Checks the minimum hold in the options against each of these locks, and returns it.
    ///
    /// # Errors
    ///
    /// See [`Engine::minimum_hold`].
    pub(crate) fn minimum_hold<'a>(
        &self,
        of: impl Iterator<Item = (&'a Engine, &'a LockName)>,
    ) -> Result<Option<LeaseTime>, Error> {
        let Some(time) = self.at_least else {
            return Ok(None);
        };
        let times = of.map(|(engine, name)| engine.minimum_hold(name, time));
        times.reduce(Result::and).transpose()
    }
}

impl Engine {
    /// Checks that this lock can be held for at least `time`.
    ///
    /// # Errors
    ///
    /// If several owners may hold this lock, if the store cannot keep a lock busy after its
    /// release, if `time` exceeds the store's longest lease, or if `time` is not a valid lease.
    /// Also if this is a write lock, and the calling thread holds the read lock of the same name.
    pub(crate) fn minimum_hold(&self, name: &LockName, time: Duration) -> Result<LeaseTime, Error> {
        if name.profile().shared {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "what several holders share is not kept after its release: leave `at_least` out",
            ));
        }
        if self.is_read_here(name) {
            return Err(beside_reads());
        }
        if !self.abilities.renewable {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "this wire format does not know who holds a lock, so it cannot keep one after its \
                 release: leave `at_least` out, or choose a format with owners",
            ));
        }
        match self.abilities.longest_lease {
            Some(longest) if time > longest => Err(Error::misuse(format!(
                "a lock cannot be kept for at least {time:?}: this store grants no lease of more \
                 than {longest:?}"
            ))),
            _ => LeaseTime::new(time),
        }
    }
}

/// Returns the error of a minimum hold on a write lock whose thread also holds the read lock.
pub(super) fn beside_reads() -> Error {
    Error::misuse(
        "a write lock with a shortest time cannot be read beside: the store would keep it for as \
         long as the reads go on; leave `at_least` out, or read after it",
    )
}
