//! [`ClassicFormat`]: the three algorithms as a wire format.

use super::commands::{CommandSequence, StepHook};
use super::counter::Counter;
use super::plain::Plain;
use super::progress::Progress;
use super::timestamp::Timestamp;
use crate::connection::ConnectionLike;
use crate::format::{WireFormat, mutexes_only};
use crate::keys::Keys;
use crate::wakeups::PollInterval;
use lock_core::backend::{
    Abilities, AcquisitionId, Answer, Attempt, Failure, LockInfo, Release, ReleaseOptions,
    ReplicaSupport, Waking,
};
use lock_core::{Error, LockKind, LockName, Moment, OwnerId};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// One of the algorithms, with the settings that it depends on.
#[derive(Debug)]
pub(super) struct ClassicFormat {
    pub(super) keys: Keys,
    pub(super) algorithm: Algorithm,
    pub(super) polls: PollInterval,
    pub(super) hook: Option<Arc<dyn StepHook>>,
    /// Attempts that may be sent on from one node to the next. `None` but on a cluster: where a
    /// server takes the place of another, what the former answered says nothing of the latter.
    pub(super) attempts: Option<Mutex<HashMap<OwnerId, Progress>>>,
}

#[derive(Debug)]
pub(super) enum Algorithm {
    Plain(Plain),
    Timestamp(Timestamp),
    Counter(Counter),
}

impl WireFormat for ClassicFormat {
    fn name(&self) -> &'static str {
        match self.algorithm {
            Algorithm::Plain(_) => "plain",
            Algorithm::Timestamp(_) => "timestamp",
            Algorithm::Counter(_) => "counter",
        }
    }

    fn keys(&self) -> &Keys {
        &self.keys
    }

    fn commands(&self) -> Vec<String> {
        let commands: &[&str] = match &self.algorithm {
            Algorithm::Plain(_) => &["set", "setnx", "expire", "strlen", "getex", "pttl", "del"],
            Algorithm::Timestamp(_) => &["setnx", "getrange", "get", "getset", "getex", "del"],
            Algorithm::Counter(_) => &["incr", "expire", "multi", "exec", "getex", "pttl", "del"],
        };
        commands.iter().map(|&command| command.to_owned()).collect()
    }

    fn reads_clients_clock(&self) -> bool {
        matches!(self.algorithm, Algorithm::Timestamp(_))
    }

    fn abilities(&self, _: ReplicaSupport) -> Abilities {
        let PollInterval { interval, jitter } = self.polls;
        Abilities::full()
            .renewable(false)
            .tokens(false)
            .waking(Waking::Polls { interval, jitter })
            .replication(ReplicaSupport::Never)
    }

    /// A transaction must not have other requests in between.
    fn needs_own_link(&self) -> bool {
        matches!(self.algorithm, Algorithm::Counter(Counter::Transaction))
    }

    fn acquire(
        &self,
        link: &mut dyn ConnectionLike,
        attempt: &Attempt<'_>,
        _: &dyn Fn(&str) -> bool,
        by: Moment,
    ) -> Result<Answer, Failure> {
        let (lease, interval) = (attempt.lease.duration(), self.polls.interval);
        if interval >= lease {
            return Err(Failure::NotSent(Error::configuration(format!(
                "a waiter asks every {interval:?}, and the lease of {lease:?} is no longer than \
                 that: set `poll` in `format={}` below it",
                self.name()
            ))));
        }
        let mut progress = self
            .attempts
            .as_ref()
            .map_or_else(Progress::default, |attempts| {
                attempts
                    .lock()
                    .get_mut(&attempt.owner)
                    .map(std::mem::take)
                    .unwrap_or_default()
            });
        let answer = self.go_on(
            link,
            attempt.name,
            &mut progress,
            by,
            |commands| match &self.algorithm {
                Algorithm::Plain(plain) => plain.acquire(commands, attempt),
                Algorithm::Timestamp(timestamp) => timestamp.acquire(commands, attempt),
                Algorithm::Counter(counter) => counter.acquire(commands, attempt),
            },
        );
        let Some(attempts) = &self.attempts else {
            return progress.settle(answer);
        };
        if let Some(known) = attempts.lock().get_mut(&attempt.owner) {
            *known = progress;
        }
        answer
    }

    fn release(
        &self,
        link: &mut dyn ConnectionLike,
        acquisition: &AcquisitionId,
        _: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure> {
        self.begin(link, &acquisition.name, by, |commands| {
            match &self.algorithm {
                Algorithm::Timestamp(timestamp) => timestamp.release(commands, acquisition),
                Algorithm::Plain(_) | Algorithm::Counter(_) => commands.delete(),
            }
        })
    }

    fn inspect(
        &self,
        link: &mut dyn ConnectionLike,
        name: &LockName,
        by: Moment,
    ) -> Result<LockInfo, Failure> {
        self.begin(link, name, by, |commands| match &self.algorithm {
            Algorithm::Plain(plain) => plain.inspect(commands),
            Algorithm::Timestamp(timestamp) => timestamp.inspect(commands),
            Algorithm::Counter(counter) => counter.inspect(commands),
        })
    }

    /// Only what looks like a lock of this format is deleted. It is looked at first, and may be
    /// another's by then: that is what these formats are like.
    fn force(
        &self,
        link: &mut dyn ConnectionLike,
        name: &LockName,
        by: Moment,
    ) -> Result<bool, Failure> {
        if self.inspect(link, name, by)?.holder.is_none() {
            return Ok(false);
        }
        let delete = |commands: &mut CommandSequence<'_>| commands.delete();
        Ok(self.begin(link, name, by, delete)? == Release::Freed)
    }
}

impl ClassicFormat {
    /// Makes an attempt of `owner`, which on a cluster goes on at the next node where it stood.
    pub(super) fn attempt(
        &self,
        owner: OwnerId,
        attempt: impl FnOnce() -> Result<Answer, Failure>,
    ) -> Result<Answer, Failure> {
        let Some(attempts) = &self.attempts else {
            return attempt();
        };
        attempts.lock().insert(owner, Progress::default());
        let outcome = attempt();
        let progress = attempts.lock().remove(&owner);
        progress.unwrap_or_default().settle(outcome)
    }

    fn begin<T>(
        &self,
        link: &mut dyn ConnectionLike,
        name: &LockName,
        by: Moment,
        commands: impl FnOnce(&mut CommandSequence<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.go_on(link, name, &mut Progress::default(), by, commands)
    }

    fn go_on<T>(
        &self,
        link: &mut dyn ConnectionLike,
        name: &LockName,
        progress: &mut Progress,
        by: Moment,
        commands: impl FnOnce(&mut CommandSequence<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if name.kind() != LockKind::Mutex {
            return Err(mutexes_only(self.name()));
        }
        let (key, hook) = (self.keys.lock(name), self.hook.as_deref());
        commands(&mut CommandSequence::new(
            link, name, &key, by, hook, progress,
        ))
    }
}
