//! [`RestartGrace`]: no lock is granted on a server that was started a moment ago, because it may
//! have forgotten locks that it granted before the start. If the grace time is not shorter than the
//! longest lease, the leases of those locks end before the server grants locks again.

use crate::connection::{Dialer, Identity};
use lock_core::Error;
use lock_core::backend::{Answer, Failure, RetryCause};
use std::sync::Arc;
use std::time::Duration;

/// The time after a server's start in which it grants no lock; see the [module](self).
#[derive(Debug)]
pub(super) struct RestartGrace {
    /// The setting; zero: off.
    time: Duration,
    dialer: Arc<Dialer>,
}

impl RestartGrace {
    pub(super) fn new(time: Duration, dialer: Arc<Dialer>) -> Self {
        Self { time, dialer }
    }

    /// Returns the answer "paused" if the server of the current connection may not grant locks yet.
    ///
    /// # Errors
    ///
    /// [`Failure::Refused`] if the server does not say how long it has been running.
    pub(super) fn refusal(&self) -> Result<Option<Answer>, Failure> {
        if self.time.is_zero() {
            return Ok(None);
        }
        let server = self.dialer.server();
        let now = self.dialer.clock().now();
        let Some(age) = self
            .dialer
            .identity()
            .and_then(|identity| Identity::age(identity, now))
        else {
            return Err(Failure::Refused(Error::configuration(format!(
                "{server} does not say since when it runs, which `restart_grace` needs to know: \
                 allow `INFO` there (`+info`), or leave that setting out"
            ))));
        };
        let left = self.time.saturating_sub(age);
        Ok((!left.is_zero()).then(|| {
            let why = format!(
                "{server} was started {age:.0?} ago, and grants locks in {left:.0?} \
                 (`restart_grace={:?}`): what it granted before may be held still",
                self.time
            );
            let cause = RetryCause::Paused {
                why: Error::unavailable(why),
                may_end_sooner: false,
            };
            Answer::Retry {
                cause,
                after: Some(left),
                new_owner: false,
            }
        }))
    }
}
