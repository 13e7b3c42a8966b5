//! Fair locks: the lock is stored as a mutex, with the queue of its waiters in a companion key.
//!
//! The queue is this library's own, and not that of Redisson's `RFairLock`: `docs/INTEROP.md` says
//! why.

use super::{KindFormat, ScriptCall, renewal};
use crate::connection::{Batch, Text};
use crate::keys;
use crate::lua::Script;
use crate::protocol::exchange::Exchange;
use crate::protocol::owned::OwnedFormat;
use crate::protocol::redisson::CHANNEL;
use lock_core::LockName;
use lock_core::backend::{AcquisitionId, Answer, Attempt, Failure, ReleaseOptions};
use std::num::NonZeroU32;

/// The format of [`LockKind::Fair`](lock_core::LockKind::Fair).
#[derive(Debug)]
pub(super) struct Fair;

static ACQUIRE: Script = script!("acquire":
    "redisson/look",
    "redisson/take",
    "redisson/tells",
    "timestamp",
    "grant",
    "fair/queue",
    "fair/enter",
    "fair/acquire"
);
static CLOSE: Script = script!("close":
    "redisson/look",
    "redisson/gone",
    "redisson/take",
    "pass",
    "timestamp",
    "grant",
    "fair/queue",
    "fair/gone",
    "fair/pass",
    "tell",
    "close",
    "endings/fair"
);
static RELEASE: Script = script!("release":
    "redisson/look",
    "redisson/gone",
    "redisson/take",
    "timestamp",
    "grant",
    "fair/queue",
    "fair/gone",
    "tell",
    "release",
    "endings/fair"
);
static FORCE: Script = script!("force":
    "redisson/holder",
    "timestamp",
    "fair/queue",
    "tell",
    "fair/force",
    "force",
    "endings/usual"
);

/// Returns the key of the queue of waiters, for fair locks of any kind.
pub(super) fn queue(key: &str) -> String {
    keys::channel("distlock_queue", key)
}

/// Returns the time for which the owner of this attempt stays in a queue, in milliseconds.
pub(super) fn presence(attempt: &Attempt<'_>) -> Text {
    let presence = attempt.waits.then_some(attempt.presence);
    Text::millis(presence.unwrap_or_default())
}

fn names_beside(key: &str) -> Vec<String> {
    vec![queue(key)]
}

impl KindFormat for Fair {
    /// Returns the channel of the mutex, for all waiters that are not in the queue.
    fn channel(&self, key: &str) -> String {
        keys::channel(CHANNEL, key)
    }

    fn queue(&self, key: &str) -> Option<String> {
        Some(queue(key))
    }

    /// Returns false: a report would wake all waiters, or cause a read for each of them.
    fn is_tracked(&self) -> bool {
        false
    }

    fn scripts(&self) -> &'static [&'static Script] {
        static ALL: [&Script; 4] = [&ACQUIRE, &RELEASE, &CLOSE, &FORCE];
        &ALL
    }

    fn acquire<'a>(
        &'static self,
        format: &'a OwnedFormat,
        attempt: &'a Attempt<'a>,
        _is_tracked: &'a dyn Fn(&str) -> bool,
    ) -> Result<Exchange<'a, Answer>, Failure> {
        let key = format.keys.lock(attempt.name);
        let request = format.acquire_request(attempt, &key)?;
        // A release grants the lock directly only if it reaches no waiters outside the queue. If it
        // did not count all such waiters, they would never get the lock.
        let direct = attempt
            .direct
            .filter(|_| request.reserve == Some(0) && format.counts_all());
        let (queue, presence) = (queue(&key), presence(attempt));
        let direct = Text::number(direct.map_or(0, NonZeroU32::get).into());
        let [lock, counter, tombstone] = request.keys(&key);
        let keys = [lock, counter, tombstone, queue.as_bytes()];
        let mut arguments: Vec<_> = request.arguments().collect();
        arguments.splice(2..2, [presence.as_bytes(), direct.as_bytes()]);
        let (batch, reserve) = (Batch::script(&ACQUIRE, &keys, &arguments), request.reserve);
        Ok(Exchange::send(batch, move |received| {
            format.acquired(received, &ACQUIRE, reserve, attempt.name, || false)
        }))
    }

    fn release(
        &self,
        format: &OwnedFormat,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
    ) -> ScriptCall {
        let request = format.release_request(acquisition, options);
        let queue = queue(&request.key);
        if !request.is_plain() {
            return request.queued(&CLOSE, queue);
        }
        let keys = vec![
            request.key.to_string(),
            keys::token_counter(&request.key),
            queue,
        ];
        ScriptCall::new(&RELEASE, keys, &request.told())
    }

    fn renew(&self, format: &OwnedFormat, acquisition: &AcquisitionId) -> ScriptCall {
        renewal(
            format,
            acquisition,
            Text::owner(acquisition.owner).as_bytes(),
        )
    }

    fn force(&self, format: &OwnedFormat, name: &LockName) -> ScriptCall {
        let key = format.keys.lock(name);
        let channel = self.channel(&key);
        let keys = vec![key.to_string(), queue(&key)];
        ScriptCall::new(&FORCE, keys, &[channel.as_bytes(), format.publish()])
    }
}

#[cfg(test)]
mod tests {
    use super::{ACQUIRE, CLOSE, FORCE, RELEASE};
    use crate::protocol::Format;
    use lock_core::Config;
    use lock_core::backend::WAITER_PRESENCE;

    #[test]
    fn presence_that_the_queue_does_not_note_is_the_default() {
        let presence = format!("PRESENCE = {}\n", WAITER_PRESENCE.as_millis());
        for script in [&ACQUIRE, &RELEASE, &CLOSE, &FORCE] {
            assert!(
                script.source.contains(&presence),
                "queue.lua lacks {presence}"
            );
        }
    }

    #[test]
    fn release_grants_nothing_where_it_cannot_count_who_listens() {
        let config = Config::from_url("redis://h").unwrap();
        let format = Format::of(&config).unwrap();
        let counts_all = || format.owned("count").unwrap().counts_all();
        assert!(counts_all());
        format.use_slots();
        assert!(!counts_all(), "a cluster's plain channels");
        format.use_sharded_channels(true);
        assert!(counts_all());
    }
}
