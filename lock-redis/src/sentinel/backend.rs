//! [`SentinelBackend`]: a master with replicas, as a store of locks: every request goes to the present master.

use super::council::{Council, Credentials};
use super::generations::{Generation, Generations};
use super::lookout::Alarm;
use super::member::Address;
use crate::format::Redisson;
use crate::node::{Node, NodeSettings, on};
use crate::reply::ServerError;
use crate::scheme;
use lock_core::backend::{
    Abilities, Answer, Attempt, Closing, Failure, Lane, LockInfo, Release, Released, Renewal,
    Renewing, Replicates, TenureId, Wake, Watch,
};
use lock_core::{Backend, Config, Context, Error, LockName, Moment};
use std::error::Error as _;
use std::fmt;
use std::sync::Arc;

/// The master of a name, as the sentinels say which one it is, and whichever it will be.
///
/// The sentinels are asked when the master is first needed, when one of them tells of a failover, and when a request
/// fails. Each master is a *generation* with connections of its own. What a generation has answered that is over by then
/// is not believed: a grant or a renewal there may be lost with it, so its outcome is unknown, and the engine asks the
/// new master. Watches move there, and whoever waits looks again.
///
/// Dropping it ends its threads and connections, without waiting for them.
pub struct SentinelBackend {
    generations: Arc<Generations>,
    alarm: Arc<Alarm>,
}

/// What an answer has done in the store.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    Nothing,
    Something,
}

impl SentinelBackend {
    /// How often one request is sent on to the next master, if it is another one each time.
    const MOVES: usize = 4;

    /// The master that `config` names, by the sentinels in it. Does not talk to them.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if the URL names no sentinels, or no master, or a setting contradicts another.
    pub fn new(config: &Config, context: &Context) -> Result<Self, Error> {
        config.check()?;
        let address = scheme::sentinels(config)?;
        let settings = NodeSettings::new(config, address.database, context)?;
        let credentials = Credentials { user: address.user, password: address.password };
        let alarm = Arc::new(Alarm::default());
        let given = address.sentinels.into_iter().map(|(host, port)| Address { host, port });
        let council =
            Council::new(&address.master, given, credentials, &settings, Arc::clone(&alarm))?;
        let format = Redisson::of(config);
        let generations = Generations::new(council, settings, format, Arc::clone(&alarm));
        Ok(Self { generations, alarm })
    }

    /// How many replicas must acknowledge now if all are to: those that the sentinels know and do not all hold for down.
    /// `None` as long as no sentinel has been heard.
    ///
    /// Never waits: it is what they said last, and they are asked once a second while this is called, and whenever one
    /// of them tells of a change.
    #[must_use]
    pub fn replicas(&self) -> Option<u32> {
        self.generations.replicas()
    }

    /// Asks the present master. If that failed and there is another one by now, or the answer came from one that is
    /// over, and nothing has happened in the store, asks that one.
    fn ask<T>(
        &self,
        by: Moment,
        mut request: impl FnMut(&Arc<Node>) -> Result<T, Failure>,
        effect: impl Fn(&T) -> Effect,
    ) -> Result<T, Failure> {
        let mut generation = self.generations.present(by)?;
        for _ in 1..Self::MOVES {
            match request(&generation.node) {
                Ok(answer) if self.generations.is_present(&generation) => return Ok(answer),
                Ok(answer) if effect(&answer) == Effect::Something => {
                    return Err(over(&generation));
                }
                Ok(_) => {}
                Err(failure) if !may_be_over(&failure) => return Err(failure),
                Err(failure @ Failure::Unknown(_)) => {
                    self.generations.doubt();
                    return Err(failure);
                }
                Err(failure) => {
                    if !self.generations.is_over(&generation, by) {
                        return Err(failure);
                    }
                }
            }
            generation = self.generations.present(by)?;
        }
        Err(Failure::NotSent(Error::unavailable("the master changes faster than it can be asked")))
    }
}

impl Backend for SentinelBackend {
    fn acquire(&self, attempt: &Attempt<'_>, by: Moment) -> Result<Answer, Failure> {
        let format = &self.generations.format;
        let effect = |answer: &Answer| match answer {
            Answer::Busy(_) => Effect::Nothing,
            _ => Effect::Something,
        };
        self.ask(by, |node| node.acquire(format, attempt, by), effect).map_err(on(attempt.name))
    }

    fn renew(&self, _: Lane, batch: &[Renewing], by: Moment) -> Vec<Result<Renewal, Failure>> {
        // Once, and not on to the next master: what hangs here shall not hang there, too. The engine comes again.
        let generation = match self.generations.present(by) {
            Ok(generation) => generation,
            Err(failure) => {
                let each = batch.iter().map(|one| Err(on(&one.tenure.name)(failure.clone())));
                return each.collect();
            }
        };
        let mut renewals = generation.node.renew(&self.generations.format, batch, by);
        if renewals.iter().any(|renewal| renewal.as_ref().is_err_and(may_be_over)) {
            self.generations.doubt();
        }
        // Also "gone": gone there, where it does not matter any more.
        if !self.generations.is_present(&generation) {
            renewals.iter_mut().filter(|renewal| renewal.is_ok()).for_each(|renewal| {
                *renewal = Err(over(&generation));
            });
        }
        renewals
    }

    fn release(&self, tenure: &TenureId, closing: Closing, by: Moment) -> Result<Release, Failure> {
        let format = &self.generations.format;
        self.ask(by, |node| node.release(format, tenure, closing, by), |_| Effect::Something)
            .map_err(on(&tenure.name))
    }

    fn submit_release(&self, tenure: &TenureId, closing: Closing, by: Moment, done: Released) {
        let generation = match self.generations.present(by) {
            Ok(generation) => generation,
            Err(failure) => return done(Err(on(&tenure.name)(failure))),
        };
        let (generations, node) = (Arc::downgrade(&self.generations), Arc::clone(&generation.node));
        let heard = Box::new(move |outcome: Result<Release, Failure>| {
            // If they are gone, so is the client, and nobody will ask another master.
            let Some(generations) = generations.upgrade() else { return done(outcome) };
            if outcome.as_ref().is_err_and(may_be_over) {
                generations.doubt();
            }
            match outcome {
                Ok(_) if !generations.is_present(&generation) => done(Err(over(&generation))),
                outcome => done(outcome),
            }
        });
        node.submit_release(&self.generations.format, tenure, closing, by, heard);
    }

    fn inspect(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure> {
        let format = &self.generations.format;
        self.ask(by, |node| node.inspect(format, name, by), |_| Effect::Nothing).map_err(on(name))
    }

    fn force_release(&self, name: &LockName, by: Moment) -> Result<bool, Failure> {
        let format = &self.generations.format;
        let effect = |freed: &bool| if *freed { Effect::Something } else { Effect::Nothing };
        self.ask(by, |node| node.force_release(format, name, by), effect).map_err(on(name))
    }

    fn watch(&self, name: &LockName, wake: Arc<dyn Wake>, by: Moment) -> Result<Watch, Failure> {
        let format = &self.generations.format;
        let moving = self.generations.watches.register(name, wake);
        // That it was asked for where the master is no longer is as good as if it had not been.
        self.ask(by, |node| moving.stand_on(node, format, by), |()| Effect::Nothing)
            .map_err(on(name))?;
        Ok(Watch::new(moving))
    }

    /// One for each generation: a master that hangs must not delay what is renewed on the next.
    fn lane(&self, _: &LockName) -> Lane {
        Lane::new(self.generations.number())
    }

    fn abilities(&self) -> Abilities {
        self.generations.format.abilities().replication(Replicates::Listed)
    }
}

impl Drop for SentinelBackend {
    fn drop(&mut self) {
        self.alarm.nudge();
    }
}

impl fmt::Debug for SentinelBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SentinelBackend")
            .field("generations", &self.generations)
            .finish_non_exhaustive()
    }
}

/// Whether this failure may mean that another server is master by now.
fn may_be_over(failure: &Failure) -> bool {
    let error = failure.error();
    let answer = error.source().and_then(|source| source.downcast_ref::<ServerError>());
    match (failure, answer) {
        (Failure::Refused(_), Some(answer)) => {
            // The last: it has too few replicas left, because it is cut off from them, or has been replaced.
            matches!(answer.code.as_str(), "READONLY" | "MASTERDOWN" | "LOADING" | "NOREPLICAS")
        }
        (Failure::Refused(_), None) => false,
        _ => error.is_unavailable(),
    }
}

/// What was done there may be lost with it.
fn over(generation: &Generation) -> Failure {
    Failure::Unknown(Error::unavailable(format!(
        "{} answered, and was not the master any more by then",
        generation.node.server()
    )))
}
