//! [`Redisson`]: a lock as Redisson's `RLock` has it, and what can be done with it on one link.
//!
//! Under the lock's name stands a hash of one field, `owner -> 1`, whose TTL is the lease; `0` on the lock's channel
//! says that it was released. Redisson counts re-entries in the value; ours are counted locally, so it is always 1.

use crate::keys::{self, Keys};
use crate::link::{Ask, Heard, Server, SharedLink};
use crate::refusal::{self, Asked};
use crate::reply::{Reply, ServerError};
use crate::script::{ACQUIRE, CLOSE, FORCE, INSPECT, RELEASE, RENEW, Run, Script};
use crate::subscriber::Channels;
use crate::text::Text;
use lock_core::backend::{
    Abilities, Answer, Attempt, Closing, Doubt, Failure, Grant, HolderInfo, LockInfo, Receipt,
    Release, Released, Renewal, Renewing, TenureId, Tokens,
};
use lock_core::{
    Config, Error, FencingToken, LockName, Moment, OwnerText, TokenPolicy, TokenRange,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The wire format, with the settings that it depends on.
#[derive(Debug)]
pub struct Redisson {
    pub(crate) keys: Keys,
    pub(crate) policy: TokenPolicy,
    /// A tombstone lives at least this long: a request may be under way for as long as a command may take, and the
    /// lease that it asks for may be shorter.
    shortest_tombstone: Duration,
    /// Whether keys may be in different slots, and so on different nodes.
    has_slots: bool,
    /// Whether releases are told on sharded channels. Settled before anything is asked, and then left so: who waits and
    /// who releases must mean the same.
    sharded: AtomicBool,
}

/// What a grant with more than one token is remembered by.
pub(crate) struct SetAside {
    pub(crate) last: FencingToken,
}

impl Redisson {
    /// How long a token counter is kept after the time it stands for. Longer than any two of a failover's servers have
    /// clocks that differ.
    const KEEP: Duration = Duration::from_secs(24 * 60 * 60);
    pub(crate) const KEEP_MILLIS: u64 = Self::KEEP.as_secs() * 1_000;
    /// With the settings in `config`, which was checked.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        Self {
            keys: Keys::new(config.prefix()),
            policy: config.tokens(),
            shortest_tombstone: config.command_timeout() * 2,
            has_slots: false,
            sharded: AtomicBool::new(false),
        }
    }

    /// The same for a cluster: no two keys are named in one request that may live in different slots, or one of which may
    /// have moved on before the other.
    #[must_use]
    pub fn on_cluster(mut self) -> Self {
        self.has_slots = true;
        self
    }

    /// From now on releases are told on sharded channels, which only the nodes of a slot hear of, or on plain ones.
    pub fn use_sharded_channels(&self, sharded: bool) {
        self.sharded.store(sharded, Ordering::Relaxed);
    }

    /// The slot that everything of a lock lives in.
    #[must_use]
    pub fn slot(&self, name: &LockName) -> u16 {
        keys::slot(&self.keys.lock(name))
    }

    /// The command that publishes.
    fn publish(&self) -> &'static [u8] {
        match self.channels() {
            Channels::Plain => b"PUBLISH",
            Channels::Sharded => b"SPUBLISH",
        }
    }

    /// The kind of the channels.
    pub(crate) fn channels(&self) -> Channels {
        if self.sharded.load(Ordering::Relaxed) { Channels::Sharded } else { Channels::Plain }
    }

    /// What a store of this format can do.
    #[must_use]
    pub fn abilities(&self) -> Abilities {
        Abilities::full().tokens(self.policy != TokenPolicy::Off)
    }

    /// The channel on which releases of `name` are told.
    pub(crate) fn channel(&self, name: &LockName) -> String {
        keys::channel(&self.keys.lock(name))
    }

    /// See [`Backend::acquire`](lock_core::Backend::acquire).
    pub(crate) fn acquire(
        &self,
        link: &mut dyn Ask,
        attempt: &Attempt<'_>,
        by: Moment,
    ) -> Result<Answer, Failure> {
        if let Tokens::Propose { .. } = attempt.tokens {
            return self.propose(link, attempt, None, by)?.into_answer(link.server());
        }
        let key = self.keys.lock(attempt.name);
        let (token, tombstone) = (keys::token(&key), keys::tombstone(&key, &attempt.owner));
        let (mode, reserve) = self.tokens(attempt.tokens)?;
        let (lease, owner) = (Text::number(attempt.lease.as_millis()), Text::owner(attempt.owner));
        let (keep, set_aside) = (Text::number(Self::KEEP_MILLIS), Text::number(reserve.into()));
        let reply = run(
            &ACQUIRE,
            link,
            &key,
            &[key.as_bytes(), token.as_bytes(), tombstone.as_bytes()],
            &[lease.as_bytes(), owner.as_bytes(), mode, keep.as_bytes(), set_aside.as_bytes()],
            by,
        )?;
        match &reply {
            // No token: those are never less than the server's time. Asked for one, it is not the answer to this.
            Reply::Int(1) if mode == b"0" => Ok(Answer::Granted(Grant::new(None))),
            Reply::Int(first @ 2..) if mode != b"0" => {
                let tokens = token_range(*first, reserve);
                let tokens = tokens.ok_or_else(|| unexpected(link, &ACQUIRE))?;
                let grant = Grant::new(Some(tokens));
                Ok(Answer::Granted(if reserve == 0 {
                    grant
                } else {
                    grant.receipt(Receipt::new(SetAside { last: tokens.last() }))
                }))
            }
            Reply::Array(items) => match items[..] {
                [Reply::Int(0), Reply::Int(pttl)] => Ok(Answer::Busy(remaining(pttl))),
                _ => Err(unexpected(link, &ACQUIRE)),
            },
            _ => Err(unexpected(link, &ACQUIRE)),
        }
    }

    /// How the script is told which tokens to make.
    fn tokens(&self, tokens: Tokens) -> Result<(&'static [u8], u32), Failure> {
        match (self.policy, tokens) {
            (TokenPolicy::Off, _) | (_, Tokens::None) => Ok((b"0", 0)),
            (TokenPolicy::Expire, Tokens::Assign { reserve }) => Ok((b"1", reserve)),
            (TokenPolicy::Keep, Tokens::Assign { reserve }) => Ok((b"2", reserve)),
            (policy, tokens) => Err(Failure::NotSent(Error::new(
                lock_core::ErrorKind::Unsupported,
                format!("one Redis server cannot make {tokens:?} with {policy:?}"),
            ))),
        }
    }

    /// See [`Backend::release`](lock_core::Backend::release).
    pub(crate) fn release(
        &self,
        link: &mut dyn Ask,
        tenure: &TenureId,
        closing: Closing,
        by: Moment,
    ) -> Result<Release, Failure> {
        self.closing(tenure, closing, |script, key, keys, arguments| {
            let reply = run(script, link, key, keys, arguments, by)?;
            released(&reply).ok_or_else(|| unexpected(link, script))
        })
    }

    /// See [`Backend::submit_release`](lock_core::Backend::submit_release). `lingers` says whether our own subscription to a
    /// channel is one that nobody needs any more.
    pub(crate) fn submit_release(
        &self,
        link: &SharedLink,
        tenure: &TenureId,
        closing: Closing,
        by: Moment,
        lingers: impl FnOnce(&str) -> bool + Send + 'static,
        done: Released,
    ) {
        self.closing(tenure, closing, |script, key, keys, arguments| {
            let (server, key) = (Arc::clone(link.server()), key.to_owned());
            script.submit(link, keys, arguments, by, move |outcome| {
                let mut heard = Heard::Sense;
                done(outcome.and_then(|reply| {
                    if let Reply::Error(error) = &reply {
                        return Err(refusal::refused(&server, error, &Asked::Script(script, &key)));
                    }
                    let release = released(&reply).ok_or_else(|| {
                        heard = Heard::Nonsense;
                        strange(&server, script)
                    })?;
                    Ok(less_ours(release, || lingers(&keys::channel(&key))))
                }));
                heard
            });
        });
    }

    /// Puts together what is sent to end a holding: the script, the lock's key, all keys, and the arguments.
    fn closing<T>(
        &self,
        tenure: &TenureId,
        closing: Closing,
        send: impl FnOnce(&'static Script, &str, &[&[u8]], &[&[u8]]) -> T,
    ) -> T {
        let key = self.keys.lock(&tenure.name);
        let (channel, owner) = (keys::channel(&key), Text::owner(tenure.owner));
        let told = [owner.as_bytes(), channel.as_bytes(), self.publish()];
        // Without a receipt there is no telling whether the counter is still where our grant left it.
        let unused = closing
            .last_used
            .zip(tenure.receipt.get::<SetAside>())
            .filter(|(used, aside)| *used < aside.last);
        let tombstone = match closing.doubt {
            Doubt::Clean => Duration::ZERO,
            _ => tenure.lease.duration().max(self.shortest_tombstone),
        };
        if unused.is_none() && tombstone.is_zero() {
            return send(&RELEASE, &key, &[key.as_bytes()], &told);
        }
        let (token, closed) = (keys::token(&key), keys::tombstone(&key, &tenure.owner));
        let lifetime = Text::of(tombstone.as_millis());
        let numbers = unused.map(|(used, aside)| [used, aside.last].map(Text::of));
        let [used, aside] = match &numbers {
            Some(numbers) => numbers.each_ref().map(Text::as_bytes),
            None => [b"".as_slice(); 2],
        };
        let [owner, channel, publish] = told;
        send(
            &CLOSE,
            &key,
            &[key.as_bytes(), token.as_bytes(), closed.as_bytes()],
            &[owner, channel, publish, used, aside, lifetime.as_bytes()],
        )
    }

    /// Renews all of `batch` in one request. The answers are as many and in the same order.
    pub(crate) fn renew(
        &self,
        link: &mut dyn Ask,
        batch: &[Renewing],
        by: Moment,
    ) -> Result<Vec<Result<Renewal, Failure>>, Failure> {
        let keys: Vec<_> = batch.iter().map(|one| self.keys.lock(&one.tenure.name)).collect();
        let arguments: Vec<_> = batch
            .iter()
            .flat_map(|Renewing { tenure, .. }| {
                [Text::number(tenure.lease.as_millis()), Text::owner(tenure.owner)]
            })
            .collect();
        let key_words: Vec<_> = keys.iter().map(|key| key.as_bytes()).collect();
        let words: Vec<_> = arguments.iter().map(Text::as_bytes).collect();
        if self.has_slots {
            return Ok(renew_apart(link, &key_words, &words, by));
        }
        let first = keys.first().map_or("", |key| key);
        let reply = run(&RENEW, link, first, &key_words, &words, by)?;
        if matches!(reply, Reply::Int(1)) {
            return Ok(vec![Ok(Renewal::Extended); batch.len()]);
        }
        let Some(answers) = reply.as_array().filter(|answers| answers.len() == batch.len()) else {
            return Err(unexpected(link, &RENEW));
        };
        let renewals = answers.iter().zip(&keys).map(|(answer, key)| renewed(link, answer, key));
        Ok(renewals.collect())
    }

    /// See [`Backend::inspect`](lock_core::Backend::inspect).
    pub(crate) fn inspect(
        &self,
        link: &mut dyn Ask,
        name: &LockName,
        by: Moment,
    ) -> Result<LockInfo, Failure> {
        let key = self.keys.lock(name);
        let reply = run(&INSPECT, link, &key, &[key.as_bytes()], &[], by)?;
        match reply.as_array() {
            Some([Reply::Int(-2)]) => Ok(LockInfo::FREE),
            Some([Reply::Int(pttl), Reply::Bulk(owner), Reply::Bulk(holds), ..]) => {
                let holds = std::str::from_utf8(holds).ok().and_then(|holds| holds.parse().ok());
                Ok(LockInfo::held(HolderInfo::new(
                    OwnerText::new(&String::from_utf8_lossy(owner)),
                    remaining(*pttl),
                    holds.unwrap_or(1),
                )))
            }
            _ => Err(unexpected(link, &INSPECT)),
        }
    }

    /// See [`Backend::force_release`](lock_core::Backend::force_release).
    pub(crate) fn force(
        &self,
        link: &mut dyn Ask,
        name: &LockName,
        by: Moment,
    ) -> Result<bool, Failure> {
        let key = self.keys.lock(name);
        let channel = keys::channel(&key);
        let told = [channel.as_bytes(), self.publish()];
        match run(&FORCE, link, &key, &[key.as_bytes()], &told, by)? {
            Reply::Int(1) => Ok(true),
            Reply::Int(0) => Ok(false),
            _ => Err(unexpected(link, &FORCE)),
        }
    }
}

/// Renews each key by a script of its own, all in one write: of two keys in one script either might be in another slot, or
/// have moved to another node already. That costs the server 0.5 ms for a hundred, where one script for all costs 0.3.
fn renew_apart(
    link: &mut dyn Ask,
    keys: &[&[u8]],
    arguments: &[&[u8]],
    by: Moment,
) -> Vec<Result<Renewal, Failure>> {
    let runs = keys.chunks(1).zip(arguments.chunks(2));
    let runs: Vec<_> = runs.map(|(keys, arguments)| Run { keys, arguments }).collect();
    let (replies, outcome) = RENEW.run_many(link, &runs, by);
    let mut renewals = Vec::with_capacity(keys.len());
    for (reply, key) in replies.iter().zip(keys) {
        let key = String::from_utf8_lossy(key);
        renewals.push(match reply {
            Reply::Int(1) => Ok(Renewal::Extended),
            Reply::Array(answers) if answers.len() == 1 => renewed(link, &answers[0], &key),
            Reply::Error(error) => {
                let asked = Asked::Script(&RENEW, &key);
                Err(refused(link, error, &asked))
            }
            _ => Err(unexpected(link, &RENEW)),
        });
    }
    if let Err(error) = outcome {
        renewals.resize(keys.len(), Err(Failure::from(error)));
    }
    renewals
}

/// What the script that renews says of one key.
fn renewed(link: &mut dyn Ask, answer: &Reply, key: &str) -> Result<Renewal, Failure> {
    match answer {
        Reply::Int(1) => Ok(Renewal::Extended),
        Reply::Int(0) => Ok(Renewal::Gone),
        answer => match answer.as_bytes() {
            Some(text) => {
                let error = ServerError::parse(&String::from_utf8_lossy(text));
                Err(refused(link, &error, &Asked::Script(&RENEW, key)))
            }
            None => Err(unexpected(link, &RENEW)),
        },
    }
}

/// Runs a script; an error that it answers with is a refusal.
pub(crate) fn run(
    script: &'static Script,
    link: &mut dyn Ask,
    key: &str,
    keys: &[&[u8]],
    arguments: &[&[u8]],
    by: Moment,
) -> Result<Reply, Failure> {
    match script.run(link, keys, arguments, by)? {
        Reply::Error(error) => Err(refused(link, &error, &Asked::Script(script, key))),
        reply => Ok(reply),
    }
}

/// The failure of a request that was answered with an error. A connection to a replica is of no use: its server may have
/// been the master when it was made, and the server's name may stand for another one by now.
fn refused(link: &mut dyn Ask, answer: &ServerError, asked: &Asked<'_>) -> Failure {
    let failure = refusal::refused(link.server(), answer, asked);
    if refusal::is_by_a_replica(failure.error()) {
        link.end_for(failure.error());
    }
    failure
}

/// The server answered, but not as our script does. If questions and answers are out of step, so are the next ones.
pub(crate) fn unexpected(link: &mut dyn Ask, script: &Script) -> Failure {
    link.condemn();
    strange(link.server(), script)
}

fn strange(server: &Server, script: &Script) -> Failure {
    let why = format!("not one that the script `{}` gives", script.name());
    Failure::Unknown(server.garbage(&why))
}

/// What a script that releases says.
fn released(reply: &Reply) -> Option<Release> {
    match reply {
        Reply::Int(0) => Some(Release::Gone),
        Reply::Int(more @ 1..) => {
            Some(Release::FreedFor(u32::try_from(more - 1).unwrap_or(u32::MAX)))
        }
        _ => None,
    }
}

/// Without our own subscription, if that only `lingers`: nobody of this client waits there any more.
pub(crate) fn less_ours(release: Release, lingers: impl FnOnce() -> bool) -> Release {
    match release {
        Release::FreedFor(told @ 1..) if lingers() => Release::FreedFor(told - 1),
        release => release,
    }
}

/// What PTTL says: -1 is "for ever"; -2, "not there", is what an owner hears that is closed.
pub(crate) fn remaining(pttl: i64) -> Option<Duration> {
    u64::try_from(pttl).ok().map(Duration::from_millis)
}

/// The token `first` and those that were set aside behind it.
pub(crate) fn token_range(first: i64, reserve: u32) -> Option<TokenRange> {
    let first = u64::try_from(first).ok().filter(|first| *first > 0)?;
    let last = first.checked_add(u64::from(reserve))?;
    TokenRange::new(FencingToken::new(first), FencingToken::new(last))
}
