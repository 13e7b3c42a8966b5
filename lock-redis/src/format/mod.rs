//! [`Format`]: what stands under a lock's key, what is asked to take, keep and free it, and what can be done with it. One
//! file for each, beside its Lua:
//!
//! - [`redisson`]: a hash of one field, as Redisson's `RLock`; the default
//! - [`token`]: a string, as most others write it: `SET key token NX PX lease`
//! - [`plain`], [`timestamp`], [`counter`]: the algorithms of the past, which do not know their owner
//!
//! Those that know their owner have the same scripts ([`owned`]); the others send commands one after the other
//! ([`unowned`]). Whose waiters a release wakes besides our own is a setting of `token` ([`wakes`]).

mod counter;
mod found;
mod owned;
mod plain;
mod polls;
mod progress;
mod redisson;
mod spec;
mod timestamp;
mod token;
mod unowned;
mod wakes;

pub(crate) use owned::{Owned, SetAside, Shape};
pub(crate) use polls::Polls;
pub use progress::Progress;
pub(crate) use redisson::REDISSON;
pub(crate) use token::TOKEN;
pub use unowned::Stops;
#[cfg(test)]
pub(crate) use wakes::{PYTHON_REDIS_LOCK, SPRING_INTEGRATION};

use crate::connection::{ConnectionLike, Server, SharedConnection};
use crate::keys;
use crate::neighbour::Neighbour;
use crate::pubsub::ChannelKind;
use crate::quorum_node::{MarkerRequest, ServerState};
use crate::quorum_node::{ProposalReply, VoteTerms};
use crate::refusal::{self, Asked};
use crate::reply::{Reply, ServerError};
use crate::script::Script;
use lock_core::backend::{
    Abilities, AcquisitionId, Answer, Attempt, Failure, LockInfo, OnReleased, Release,
    ReleaseOptions, Renewal, RenewalRequest, ReplicaSupport,
};
use lock_core::{
    Config, Context, Error, ErrorKind, FencingToken, LockName, Moment, TokenRange, WarningKind,
};
use std::sync::Arc;
use std::time::Duration;
use unowned::Unowned;

/// The option that names it, with the settings that it has behind its name: `token,poll=10ms`, or
/// `token,wakes=python-redis-lock`, by which releases wake that library's waiters, too. All of them: `docs/INTEROP.md`.
pub const OPTION: &str = "format";

/// A wire format, with the settings that it depends on.
#[derive(Debug)]
pub struct Format(Kind);

#[derive(Debug)]
enum Kind {
    Owned(Owned),
    Unowned(Unowned),
}

impl Format {
    /// The one that `config` names, which was checked.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] where it names none that there is, or asks it for something that it does not know.
    pub fn of(config: &Config, context: &Context) -> Result<Self, Error> {
        spec::read(config, context).map(Self)
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match &self.0 {
            Kind::Owned(format) => format.shape.name,
            Kind::Unowned(format) => format.name(),
        }
    }

    /// Whose waiters its releases wake besides our own, as its setting `wakes=` names them.
    #[must_use]
    pub fn wakes(&self) -> Option<&'static str> {
        self.woken().map(Neighbour::name)
    }

    /// Whether releases must be told on plain channels, because others listen there who know no sharded ones.
    #[must_use]
    pub fn needs_plain_channels(&self) -> bool {
        self.woken() == Some(Neighbour::SpringIntegration)
    }

    fn woken(&self) -> Option<Neighbour> {
        match &self.0 {
            Kind::Owned(format) => format.shape.wakes(),
            Kind::Unowned(_) => None,
        }
    }

    /// The same, with somebody who is told of every step between two commands, and may hold it up there: for showing what
    /// can happen in between. Formats that take one step have none.
    #[must_use]
    pub fn stopping(self, stops: Arc<dyn Stops>) -> Self {
        Self(match self.0 {
            Kind::Unowned(format) => Kind::Unowned(format.stopping(stops)),
            owned => owned,
        })
    }

    /// The same for a cluster: no two keys are named in one request that may live in different slots, or one of which may
    /// have moved on before the other.
    #[must_use]
    pub fn on_cluster(self) -> Self {
        Self(match self.0 {
            Kind::Owned(format) => Kind::Owned(format.on_cluster()),
            unowned => unowned,
        })
    }

    /// From now on releases are told on sharded channels, which only the nodes of a slot hear of, or on plain ones.
    pub fn use_sharded_channels(&self, sharded: bool) {
        if let Kind::Owned(format) = &self.0 {
            format.use_sharded_channels(sharded);
        }
    }

    /// The slot that everything of a lock lives in.
    #[must_use]
    pub fn slot(&self, name: &LockName) -> u16 {
        keys::slot(&match &self.0 {
            Kind::Owned(format) => format.keys.lock(name),
            Kind::Unowned(format) => format.keys.lock(name),
        })
    }

    /// What a store of this format can do, where replicas can be asked in this way.
    #[must_use]
    pub fn abilities(&self, replication: ReplicaSupport) -> Abilities {
        match &self.0 {
            Kind::Owned(format) => format.abilities().replication(replication),
            Kind::Unowned(format) => format.abilities(),
        }
    }

    /// Whether it says whose a lock is.
    pub(crate) fn knows_owners(&self) -> bool {
        matches!(self.0, Kind::Owned(_))
    }

    /// Whether its attempts must go on a link with nobody else's commands in between.
    pub(crate) fn is_exclusive(&self) -> bool {
        matches!(&self.0, Kind::Unowned(format) if format.is_exclusive())
    }

    /// This one, where it must know its owner: for stores that cannot do without.
    fn owned(&self, what: &str) -> Result<&Owned, Failure> {
        match &self.0 {
            Kind::Owned(format) => Ok(format),
            Kind::Unowned(format) => Err(Failure::NotSent(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "the format `{}` does not say who holds a lock, so it cannot {what}",
                    format.name()
                ),
            ))),
        }
    }

    /// The kind of the channels on which releases are told.
    pub(crate) fn channels(&self) -> ChannelKind {
        match &self.0 {
            Kind::Owned(format) => format.channels(),
            Kind::Unowned(_) => ChannelKind::Plain,
        }
    }

    /// How often a waiter asks again, where releases are not told.
    pub(crate) fn polls(&self) -> Polls {
        match &self.0 {
            Kind::Owned(format) => format.polls(),
            Kind::Unowned(format) => format.polls,
        }
    }

    /// The channel on which releases of `name` are told; none where nobody tells.
    pub(crate) fn channel(&self, name: &LockName) -> Result<String, Failure> {
        self.owned("tell of releases").map(|format| format.channel(name))
    }

    /// See [`Backend::acquire`](lock_core::Backend::acquire). Goes on where `progress` says.
    pub(crate) fn acquire(
        &self,
        link: &mut dyn ConnectionLike,
        attempt: &Attempt<'_>,
        progress: &mut Progress,
        by: Moment,
    ) -> Result<Answer, Failure> {
        match &self.0 {
            Kind::Owned(format) => format.acquire(link, attempt, by),
            Kind::Unowned(format) => format.acquire(link, attempt, progress, by),
        }
    }

    /// See [`Backend::release`](lock_core::Backend::release).
    pub(crate) fn release(
        &self,
        link: &mut dyn ConnectionLike,
        acquisition: &AcquisitionId,
        closing: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure> {
        match &self.0 {
            Kind::Owned(format) => format.release(link, acquisition, closing, by),
            Kind::Unowned(format) => format.release(link, acquisition, by),
        }
    }

    /// See [`Backend::submit_release`](lock_core::Backend::submit_release). `lingers` says whether our own subscription to a
    /// channel is one that nobody needs any more.
    pub(crate) fn submit_release(
        &self,
        link: &SharedConnection,
        acquisition: &AcquisitionId,
        closing: ReleaseOptions,
        by: Moment,
        lingers: impl FnOnce(&str) -> bool + Send + 'static,
        done: OnReleased,
    ) {
        match &self.0 {
            Kind::Owned(format) => {
                format.submit_release(link, acquisition, closing, by, lingers, done);
            }
            Kind::Unowned(format) => {
                done(link.exchange(by, |link| format.release(link, acquisition, by)));
            }
        }
    }

    /// Renews all of `batch` in one request. The answers are as many and in the same order.
    pub(crate) fn renew(
        &self,
        link: &mut dyn ConnectionLike,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Result<Vec<Result<Renewal, Failure>>, Failure> {
        self.owned("be renewed")?.renew(link, batch, by)
    }

    /// See [`Backend::inspect`](lock_core::Backend::inspect).
    pub(crate) fn inspect(
        &self,
        link: &mut dyn ConnectionLike,
        name: &LockName,
        by: Moment,
    ) -> Result<LockInfo, Failure> {
        match &self.0 {
            Kind::Owned(format) => format.inspect(link, name, by),
            Kind::Unowned(format) => format.inspect(link, name, by),
        }
    }

    /// See [`Backend::force_release`](lock_core::Backend::force_release).
    pub(crate) fn force(
        &self,
        link: &mut dyn ConnectionLike,
        name: &LockName,
        by: Moment,
    ) -> Result<bool, Failure> {
        match &self.0 {
            Kind::Owned(format) => format.force(link, name, by),
            Kind::Unowned(format) => format.force(link, name, by),
        }
    }

    /// See [`Owned::propose`].
    pub(crate) fn propose(
        &self,
        link: &mut dyn ConnectionLike,
        attempt: &Attempt<'_>,
        terms: &VoteTerms<'_>,
        by: Moment,
    ) -> Result<ProposalReply, Failure> {
        self.owned("stand on a quorum")?.propose(link, attempt, Some(terms), by)
    }

    /// See [`Owned::mark`].
    pub(crate) fn mark(
        &self,
        link: &mut dyn ConnectionLike,
        run_id: &str,
        step: &MarkerRequest<'_>,
        by: Moment,
    ) -> Result<ServerState, Failure> {
        self.owned("stand on a quorum")?.mark(link, run_id, step, by)
    }

    /// The key of a quorum node's marker.
    #[must_use]
    pub fn marker_key(&self) -> String {
        self.owned("stand on a quorum").map(|format| format.keys.marker()).unwrap_or_default()
    }

    /// For how long a counter of tokens is kept.
    #[must_use]
    pub fn keep(&self) -> Duration {
        match &self.0 {
            Kind::Owned(format) => format.keep(),
            Kind::Unowned(_) => Duration::ZERO,
        }
    }
}

/// Runs a script; an error that it answers with is a refusal.
pub(crate) fn run(
    script: &'static Script,
    link: &mut dyn ConnectionLike,
    key: &str,
    keys: &[&[u8]],
    arguments: &[&[u8]],
    by: Moment,
) -> Result<Reply, Failure> {
    match script.run(link, keys, arguments, by)? {
        Reply::Error(error) => {
            let failure = refused(link, &error, &Asked::Script(script, key));
            Err(found::named(link, failure, key, by))
        }
        reply => Ok(reply),
    }
}

/// The failure of a request that was answered with an error. A connection to a replica is of no use: its server may have
/// been the master when it was made, and the server's name may stand for another one by now.
pub(crate) fn refused(
    link: &mut dyn ConnectionLike,
    answer: &ServerError,
    asked: &Asked<'_>,
) -> Failure {
    let failure = refusal::refused(link.server(), answer, asked);
    if refusal::is_by_a_replica(failure.error()) {
        link.close_with(failure.error());
    }
    failure
}

/// The server answered, but not as our script does. If questions and answers are out of step, so are the next ones.
pub(crate) fn unexpected(link: &mut dyn ConnectionLike, script: &Script) -> Failure {
    link.close();
    strange(link.server(), &format!("the script `{}`", script.name()))
}

pub(crate) fn strange(server: &Server, asked: &str) -> Failure {
    Failure::Unknown(server.garbage(&format!("not one that {asked} gives")))
}

/// What a script that releases says, which was told to publish on this channel. So many who may wait it could not count.
pub(crate) fn released(
    server: &Server,
    channels: ChannelKind,
    channel: impl FnOnce() -> String,
    reply: &Reply,
    unseen: u32,
) -> Option<Release> {
    match reply {
        Reply::Int(0) => Some(Release::Gone),
        Reply::Int(more @ 1..) => {
            server.is_served(WarningKind::NotPublished, channel);
            let told = u32::try_from(more - 1).unwrap_or(u32::MAX);
            Some(Release::FreedFor(told.saturating_add(unseen)))
        }
        Reply::Array(parts) => match &parts[..] {
            // Freed, and no client was told: so it is not known how many wait.
            [Reply::Int(1..), Reply::Bulk(why)] => {
                let why = ServerError::parse(&String::from_utf8_lossy(why));
                unpublished(server, &why, channels, &channel());
                Some(Release::Freed)
            }
            _ => None,
        },
        _ => None,
    }
}

/// Tells that releases cannot be published.
pub(crate) fn unpublished(
    server: &Server,
    why: &ServerError,
    channels: ChannelKind,
    channel: &str,
) {
    let asked = |channel| Asked::Publish(channels.publish(), channel);
    let cause = refusal::cause_on_channel(server, why, channel, asked);
    server.warn_of(WarningKind::NotPublished, cause, || {
        let cause = refusal::explain(server, why, &asked(channel));
        format!(
            "releases on {server} are not told to those who wait, who ask again and again instead: {cause} ({why})"
        )
    });
}

/// Without our own subscription, if that only `lingers`: nobody of this client waits there any more.
pub(crate) fn less_ours(release: Release, lingers: impl FnOnce() -> bool) -> Release {
    match release {
        Release::FreedFor(told @ 1..) if lingers() => Release::FreedFor(told - 1),
        release => release,
    }
}

/// What PTTL says of a key that has no expiry.
pub(crate) const FOR_EVER: i64 = -1;

/// Somebody else has it, and this is what PTTL says of the key; -2 is what an owner hears that is closed.
pub(crate) fn taken(pttl: i64) -> Answer {
    if pttl == FOR_EVER { Answer::BusyWithoutExpiry(None) } else { Answer::Busy(remaining(pttl)) }
}

/// What PTTL says: -1 is "for ever", -2 "not there".
pub(crate) fn remaining(pttl: i64) -> Option<Duration> {
    u64::try_from(pttl).ok().map(Duration::from_millis)
}

/// The token `first` and those that were set aside behind it.
pub(crate) fn token_range(first: i64, reserve: u32) -> Option<TokenRange> {
    let first = u64::try_from(first).ok().filter(|first| *first > 0)?;
    let last = first.checked_add(u64::from(reserve))?;
    TokenRange::new(FencingToken::new(first), FencingToken::new(last))
}
