//! [`ClassicFormat`]: early lock formats, which do not say who holds a lock.
//!
//! - `commands`: the commands of an algorithm about one lock, in sequence
//! - [`plain`], [`timestamp`], [`counter`]: one algorithm each
//! - `progress`: the replies that an attempt of several commands has received so far
//! - `rules`: [`ClassicRules`], the restrictions of a store with such locks
//! - `settings`: the settings of these formats in `format=`
//!
//! Each format has known races (`docs/ALGORITHMS.md`). The formats are supported for programs that
//! still use them.

mod commands;
mod counter;
mod plain;
mod progress;
mod rules;
mod settings;
#[cfg(test)]
mod tests;
mod timestamp;

pub use commands::StepHook;
pub(crate) use rules::ClassicRules;

use super::exchange::Exchange;
use super::{Format, FormatKind, mutexes_only};
use crate::keys::Keys;
use crate::wakeups::PollInterval;
use commands::{CommandSequence, Stop};
use counter::Counter;
use lock_core::backend::{
    Abilities, AcquisitionId, Answer, Attempt, Failure, LockInfo, Release, ReplicaSupport, Waking,
};
use lock_core::{Config, Context, Error, LockKind, LockName, OwnerId};
use parking_lot::Mutex;
use plain::Plain;
use progress::Progress;
use std::collections::HashMap;
use std::sync::Arc;
use timestamp::Timestamp;

/// A format of one of the algorithms, with the settings that it depends on.
#[derive(Debug)]
pub(crate) struct ClassicFormat {
    pub(super) keys: Keys,
    algorithm: Algorithm,
    polls: PollInterval,
    hook: Option<Arc<dyn StepHook>>,
    /// The attempts that may continue on another node; `None` except on a cluster. Elsewhere
    /// another server may replace the server, and replies of the former server say nothing about
    /// the new one.
    attempts: Option<Mutex<HashMap<OwnerId, Progress>>>,
}

#[derive(Debug)]
enum Algorithm {
    Plain(Plain),
    Timestamp(Timestamp),
    Counter(Counter),
}

impl Format {
    /// Reads the format that `config` names, without `ClassicRules`, so that a test can show what
    /// these rules prevent. `hook` is notified of the steps of a format of this module.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] where there is no such format.
    pub fn bare(
        config: &Config,
        context: &Context,
        hook: Arc<dyn StepHook>,
    ) -> Result<Self, Error> {
        match settings::read_classic_format(config, context, Some(hook))? {
            Some(format) => Ok(Self(Arc::new(FormatKind::Classic(format)))),
            None => Self::of(config),
        }
    }
}

/// An algorithm: sends commands until it has a result or needs a reply.
type Steps<'a, T> = Box<dyn Fn(&mut CommandSequence<'_>) -> Result<T, Stop> + 'a>;

impl ClassicFormat {
    /// Returns the format's name.
    pub(super) fn name(&self) -> &'static str {
        match self.algorithm {
            Algorithm::Plain(_) => "plain",
            Algorithm::Timestamp(_) => "timestamp",
            Algorithm::Counter(_) => "counter",
        }
    }

    /// Returns the commands for which a diagnosis checks the user's rights, as an access control
    /// list writes them.
    pub(super) fn commands(&self) -> Vec<String> {
        let of_form: &[&str] = match &self.algorithm {
            Algorithm::Plain(Plain::Set) => &["set", "pttl"],
            Algorithm::Plain(Plain::Commands) => &["setnx", "expire", "pttl"],
            Algorithm::Timestamp(timestamp) => timestamp.commands(),
            Algorithm::Counter(Counter::Transaction) => {
                &["multi", "exec", "incr", "expire", "pttl"]
            }
            Algorithm::Counter(_) => &["incr", "expire", "pttl"],
        };
        // Inspections, and forced releases, of all forms.
        let commands = of_form.iter().chain(&["strlen", "getex", "del"]);
        commands.map(|&command| command.to_owned()).collect()
    }

    /// Returns true if clients find out by their own clocks that a lease is over.
    pub(super) fn reads_clients_clock(&self) -> bool {
        matches!(self.algorithm, Algorithm::Timestamp(_))
    }

    pub(super) fn abilities(&self) -> Abilities {
        let PollInterval { interval, jitter } = self.polls;
        Abilities::full()
            .renewable(false)
            .tokens(false)
            .waking(Waking::Polls { interval, jitter })
            .replication(ReplicaSupport::Never)
    }

    /// Returns true for a transaction: on a shared connection, other requests would become part of
    /// it.
    pub(super) fn needs_own_connection(&self) -> bool {
        matches!(self.algorithm, Algorithm::Counter(Counter::Transaction))
    }

    /// Tries once to acquire a lock.
    pub(super) fn acquire<'a>(
        &'a self,
        attempt: &'a Attempt<'a>,
    ) -> Result<Exchange<'a, Answer>, Failure> {
        let (lease, interval) = (attempt.lease.duration(), self.polls.interval);
        if interval >= lease {
            return Err(Failure::NotSent(Error::configuration(format!(
                "a waiter asks every {interval:?}, and the lease of {lease:?} is no longer than \
                 that: set `poll` in `format={}` below it",
                self.name()
            ))));
        }
        let progress = self
            .attempts
            .as_ref()
            .map_or_else(Progress::default, |attempts| {
                attempts
                    .lock()
                    .get_mut(&attempt.owner)
                    .map(std::mem::take)
                    .unwrap_or_default()
            });
        self.begin(
            attempt.name,
            progress,
            Some(attempt.owner),
            Box::new(move |commands| match &self.algorithm {
                Algorithm::Plain(plain) => plain.acquire(commands, attempt),
                Algorithm::Timestamp(timestamp) => timestamp.acquire(commands, attempt),
                Algorithm::Counter(counter) => counter.acquire(commands, attempt),
            }),
        )
    }

    /// Ends a hold.
    pub(super) fn release<'a>(
        &'a self,
        acquisition: &'a AcquisitionId,
    ) -> Result<Exchange<'a, Release>, Failure> {
        let steps: Steps<'a, Release> = Box::new(move |commands| match &self.algorithm {
            Algorithm::Timestamp(timestamp) => timestamp.release(commands, acquisition),
            Algorithm::Plain(_) | Algorithm::Counter(_) => commands.delete(),
        });
        self.begin(&acquisition.name, Progress::default(), None, steps)
    }

    /// Reads the state of a lock.
    pub(super) fn inspect<'a>(
        &'a self,
        name: &LockName,
    ) -> Result<Exchange<'a, LockInfo>, Failure> {
        let steps: Steps<'a, LockInfo> = Box::new(|commands| match &self.algorithm {
            Algorithm::Plain(plain) => plain.inspect(commands),
            Algorithm::Timestamp(timestamp) => timestamp.inspect(commands),
            Algorithm::Counter(counter) => counter.inspect(commands),
        });
        self.begin(name, Progress::default(), None, steps)
    }

    /// Deletes the key if its value looks like a lock of this format. Another client may acquire
    /// the lock between this read and the `DEL`: these formats have that race.
    pub(super) fn force<'a>(&'a self, name: &'a LockName) -> Result<Exchange<'a, bool>, Failure> {
        Ok(self.inspect(name)?.then(move |info| {
            if info.holder.is_none() {
                return Exchange::done(false);
            }
            let steps: Steps<'a, Release> = Box::new(|commands| commands.delete());
            let deleted = self.begin(name, Progress::default(), None, steps);
            Exchange::from_result(deleted).map(|release| release == Release::Freed)
        }))
    }

    /// Returns the number of attempts under way that may continue on another node; `None` if none
    /// may.
    #[cfg(test)]
    pub(crate) fn attempts_under_way(&self) -> Option<usize> {
        Some(self.attempts.as_ref()?.lock().len())
    }

    /// Makes an attempt of `owner`. On a cluster, a redirected attempt continues where it stopped.
    pub(crate) fn attempt(
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

    /// Runs an algorithm from `progress` on. `owner` is set if this is an attempt to acquire the
    /// lock.
    fn begin<'a, T: 'a>(
        &'a self,
        name: &LockName,
        progress: Progress,
        owner: Option<OwnerId>,
        steps: Steps<'a, T>,
    ) -> Result<Exchange<'a, T>, Failure> {
        if name.kind() != LockKind::Mutex {
            return Err(mutexes_only(self.name()));
        }
        let run = AlgorithmRun {
            format: self,
            name: name.clone(),
            owner,
            steps,
            progress,
        };
        Ok(run.next())
    }
}

/// A run of an algorithm.
struct AlgorithmRun<'a, T> {
    format: &'a ClassicFormat,
    name: LockName,
    /// The owner, if this is an attempt.
    owner: Option<OwnerId>,
    steps: Steps<'a, T>,
    progress: Progress,
}

impl<'a, T: 'a> AlgorithmRun<'a, T> {
    /// Runs the algorithm with the replies received so far, up to the next reply that it needs.
    fn next(mut self) -> Exchange<'a, T> {
        let key = self.format.keys.lock(&self.name).into_owned();
        let hook = self.format.hook.as_deref();
        let mut commands = CommandSequence::new(&self.name, &key, hook, &mut self.progress);
        match (self.steps)(&mut commands) {
            Ok(result) => self.over(Ok(result)),
            Err(Stop::Failed(failure)) => self.over(Err(failure)),
            Err(Stop::Unexpected(command)) => {
                self.keep_progress();
                Exchange::Unexpected(command)
            }
            Err(Stop::Needs(step)) => step.exchange().then_with_outcome(move |reply| match reply {
                Ok(reply) => {
                    self.progress.add_reply(reply);
                    self.next()
                }
                Err(failure) => self.over(Err(failure)),
            }),
        }
    }

    /// Ends the run with this outcome. If this is an attempt that may continue on another node,
    /// [`ClassicFormat::attempt`] settles the outcome.
    fn over(self, outcome: Result<T, Failure>) -> Exchange<'a, T> {
        if self.owner.is_some() && self.format.attempts.is_none() {
            return Exchange::Done(self.progress.settle(outcome));
        }
        self.keep_progress();
        Exchange::Done(outcome)
    }

    /// Stores the progress, so that an attempt can continue from here on another node.
    fn keep_progress(self) {
        if let (Some(owner), Some(attempts)) = (self.owner, &self.format.attempts)
            && let Some(known) = attempts.lock().get_mut(&owner)
        {
            *known = self.progress;
        }
    }
}
