//! [`HandoffChain`]: the acquisitions that follow each other on one grant, and their tokens.

use crate::backend::ReleaseOptions;
use crate::backend::token::{FencingToken, TokenRange};
use crate::name::LockName;
use crate::observe::event::Event;
use crate::observe::event_queue::Events;

/// The position of an acquisition among those that were handed from thread to thread on one grant.
#[derive(Clone, Copy)]
pub(super) struct HandoffChain {
    /// The number of earlier acquisitions on the grant.
    before: u32,
    /// The number of unused tokens that the store reserved for the grant, all larger than the
    /// tokens used so far.
    reserved: u32,
}

impl HandoffChain {
    /// Makes the position of the first acquisition on a grant with these tokens.
    pub(super) fn of(tokens: Option<TokenRange>) -> Self {
        let reserved = tokens.map_or(0, |tokens| tokens.reserved());
        Self {
            before: 0,
            reserved,
        }
    }

    /// Returns the next token and position; `None` if no token is left.
    pub(super) fn next(self, token: Option<FencingToken>) -> Option<(Option<FencingToken>, Self)> {
        let (token, reserved) = match token {
            Some(token) => {
                let next = FencingToken::new(token.get() + 1);
                (Some(next), self.reserved.checked_sub(1)?)
            }
            None => (None, 0),
        };
        let before = self.before + 1;
        Some((token, Self { before, reserved }))
    }

    /// Returns the options for the release of an owner whose last used token is `used`.
    pub(super) fn release_options(
        self,
        unknown_outcome: bool,
        used: Option<FencingToken>,
    ) -> ReleaseOptions {
        if unknown_outcome {
            // The store answers a repeated attempt with a range that it computes backwards from the
            // counter. Another lock on the same counter may have raised the counter in between, so
            // the range may not be this owner's: give no token back.
            return ReleaseOptions::WITH_TOMBSTONE;
        }
        match used {
            Some(used) if self.reserved > 0 => ReleaseOptions::WITHOUT_TOMBSTONE.last_used(used),
            _ => ReleaseOptions::WITHOUT_TOMBSTONE,
        }
    }

    /// Emits an event for the earlier holds on the grant, after the store has reported to the
    /// holder of `token` that the lock is gone. The earlier holders may have lost the lock too,
    /// although their releases returned `Ok`.
    pub(super) fn tell_lost(self, events: &Events, lock: &LockName, token: Option<FencingToken>) {
        let holds = self.before;
        if holds == 0 {
            return;
        }
        let tokens = token.and_then(|token| {
            let earlier = |by| token.get().checked_sub(by).map(FencingToken::new);
            TokenRange::new(earlier(u64::from(holds))?, earlier(1)?)
        });
        events.emit(|| Event::HandedOnLost {
            lock: lock.clone(),
            holds,
            first: tokens.map(|tokens| tokens.first()),
            last: tokens.map(|tokens| tokens.last()),
        });
    }
}
