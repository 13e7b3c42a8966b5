//! Read-write locks: a lock as Redisson's `RReadWriteLock` stores it.
//!
//! Under the lock's name is a hash: the field `mode`, which is `read` or `write`; a field `owner`
//! with a hold count for each reader; and `owner:write` for the writer. Each hold of a reader has a
//! key that lasts as long as its lease; the hash lasts as long as the longest lease. So the hold of
//! a dead reader ends although others renew the hash: a writer that finds readers has those deleted
//! whose keys are gone. A key of this library says that a writer waits, and keeps new readers out.
//!
//! The waiters of a fair read-write lock are in the queue of the fair lock of its name. A writer is
//! named there as in the hash, and no key keeps readers out.

use super::readers::{
    CHANNEL, Field, INSPECT, LEFT, PURGE, Purged, WRITER, hold, names_beside, waiting_writer,
};
use super::{KindFormat, ScriptCall, fair, renewal};
use crate::connection::{Reply, Text};
use crate::keys;
use crate::lua::Script;
use crate::protocol::exchange::Exchange;
use crate::protocol::label::Labels;
use crate::protocol::owned::OwnedFormat;
use crate::protocol::remaining;
use lock_core::backend::{
    AcquisitionId, Answer, Attempt, Failure, Grant, HolderInfo, LockInfo, ReleaseOptions, Tokens,
    WAITER_PRESENCE,
};
use lock_core::{FencingToken, LockName, OwnerId, TokenRange};

/// The format of [`LockKind::Read`](lock_core::LockKind::Read), or of the readers of a fair lock.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) is_fair: bool,
}

/// The format of [`LockKind::Write`](lock_core::LockKind::Write), or of the writer of a fair lock.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) is_fair: bool,
}

/// The most times that an attempt of a writer is repeated after it has ended holds of dead readers.
const MOST_PURGES: usize = 16;

static ACQUIRE_READ: Script = script!("acquire_read":
    "redisson/take", "read_write/waiting", "read_write/unordered", "read_write/sweep",
    "read_write/acquire_read"
);
static ACQUIRE_READ_FAIR: Script = script!("acquire_read":
    "redisson/take", "timestamp", "fair/queue", "fair/enter", "fair/turn", "fair/reader",
    "read_write/sweep", "read_write/acquire_read"
)
.with_names_beside(names_beside_fair);
static RELEASE_READ: Script =
    script!("release_read": "tell", "read_write/settle", "read_write/release_read");
/// For a store without slots: also ends some holds of other readers that died.
static RELEASE_READ_SWEEPING: Script = script!("release_read":
    "tell", "read_write/settle", "read_write/sweep", "read_write/swept", "read_write/release_read"
);
static RENEW_READ: Script =
    script!("renew_read": "tell", "read_write/settle", "read_write/renew_read");
static ACQUIRE_WRITE: Script = script!("acquire":
    "redisson/look",
    "redisson/take",
    "read_write/compete",
    "read_write/take",
    "read_write/waiting",
    "read_write/readers",
    "read_write/tells",
    "timestamp",
    "grant",
    "read_write/attempt",
    "read_write/acquire"
);
static ACQUIRE_WRITE_FAIR: Script = script!("acquire":
    "redisson/look",
    "redisson/take",
    "fair/compete",
    "read_write/take",
    "read_write/readers",
    "fair/readers",
    "timestamp",
    "grant",
    "fair/queue",
    "fair/enter",
    "fair/acquire"
)
.with_names_beside(names_beside_fair);
/// Ends the hold of a reader or of the writer.
static RELEASE_FAIR: Script = script!("close":
    "redisson/look",
    "redisson/take",
    "fair/compete",
    "read_write/take",
    "read_write/pass",
    "timestamp",
    "fair/queue",
    "redisson/gone",
    "fair/gone",
    "tell",
    "fair/tell",
    "read_write/settle",
    "read_write/sweep",
    "fair/sweeps",
    "read_write/close",
    "fair/free_reader",
    "read_write/free_writer"
)
.with_names_beside(names_beside_fair);
static RELEASE_WRITE: Script = script!("close":
    "redisson/look",
    "read_write/gone",
    "redisson/take",
    "read_write/compete",
    "read_write/take",
    "read_write/pass",
    "tell",
    "read_write/close",
    "read_write/free_writer"
);
/// Creates a script that ends all holds, with these files before `force.lua`.
macro_rules! force_script {
    ($($file:literal),+) => {
        script!("force":
            "redisson/holder", "tell", "unlink", $($file),+, "read_write/force_old", "read_write/free_all"
        )
    };
}
static FORCE: Script = force_script!("read_write/force");
static FORCE_READERS: Script = force_script!("read_write/only_readers");
static FORCE_FAIR: Script =
    force_script!("timestamp", "fair/queue", "fair/force").with_names_beside(names_beside_fair);
static FORCE_READERS_FAIR: Script = force_script!(
    "timestamp",
    "fair/queue",
    "read_write/only_readers",
    "fair/force"
)
.with_names_beside(names_beside_fair);

fn names_beside_fair(key: &str) -> Vec<String> {
    vec![hold(key, "0", 1), fair::queue(key)]
}

/// Returns the name of a writer's field in the hash.
fn writer(owner: OwnerId) -> String {
    format!("{owner}{WRITER}")
}

impl Read {
    fn acquire_script(&self) -> &'static Script {
        if self.is_fair {
            &ACQUIRE_READ_FAIR
        } else {
            &ACQUIRE_READ
        }
    }
}

impl Write {
    /// Returns the key that notes waiting writers: the queue of a fair lock, or a key for one
    /// writer.
    fn companion(&self, key: &str) -> String {
        if self.is_fair {
            fair::queue(key)
        } else {
            waiting_writer(key)
        }
    }
}

impl KindFormat for Read {
    fn channel(&self, key: &str) -> String {
        keys::channel(CHANNEL, key)
    }

    fn queue(&self, key: &str) -> Option<String> {
        self.is_fair.then(|| fair::queue(key))
    }

    /// Returns false for a fair lock: a report would wake all waiters in the queue.
    fn is_tracked(&self) -> bool {
        !self.is_fair
    }

    fn scripts(&self) -> &'static [&'static Script] {
        static ALL: [&Script; 5] = [
            &ACQUIRE_READ,
            &RELEASE_READ,
            &RELEASE_READ_SWEEPING,
            &RENEW_READ,
            &FORCE_READERS,
        ];
        static FAIR: [&Script; 3] = [&ACQUIRE_READ_FAIR, &RELEASE_FAIR, &FORCE_READERS_FAIR];
        if self.is_fair { &FAIR } else { &ALL }
    }

    fn acquire<'a>(
        &'static self,
        format: &'a OwnedFormat,
        attempt: &'a Attempt<'a>,
        is_tracked: &'a dyn Fn(&str) -> bool,
    ) -> Result<Exchange<'a, Answer>, Failure> {
        let key = format.keys.lock(attempt.name);
        let (lease, owner) = (
            Text::number(attempt.lease.as_millis()),
            Text::owner(attempt.owner),
        );
        let mut keys = vec![
            key.to_string(),
            hold(&key, owner.as_str(), 1),
            keys::tombstone(&key, &owner),
            keys::token_counter(&key),
        ];
        let beside = attempt.beside.map(writer).unwrap_or_default();
        let mut words = vec![lease.as_bytes(), owner.as_bytes(), beside.as_bytes()];
        let (script, presence) = (self.acquire_script(), fair::presence(attempt));
        if self.is_fair {
            keys.push(fair::queue(&key));
            words.extend([format.publish(), presence.as_bytes()]);
        } else {
            keys.extend(format.writers_first.then(|| waiting_writer(&key)));
        }
        let batch = ScriptCall::new(script, keys, &words).batch();
        Ok(Exchange::send(batch, move |received| {
            match received.reply() {
                Reply::Int(1) => return Exchange::done(Answer::Granted(Grant::new(None))),
                Reply::Bulk(token) => {
                    let wants_token = attempt.tokens != Tokens::None && format.has_tokens();
                    let token = std::str::from_utf8(token)
                        .ok()
                        .and_then(|token| token.parse().ok());
                    let token = token.filter(|_| wants_token).map(FencingToken::new);
                    let range = token.and_then(|token| TokenRange::new(token, token));
                    return Exchange::done(Answer::Granted(Grant::new(range)));
                }
                Reply::Array(items) => {
                    if let [Reply::Int(0), Reply::Int(pttl)] = items[..] {
                        let busy = format.busy_kind(attempt.name, pttl, is_tracked);
                        // A writer of Redisson publishes nothing if it continues as a reader, so
                        // other readers poll. Readers in a queue poll often enough.
                        return busy.map(|busy| match busy {
                            Answer::Busy(left) if !self.is_fair => {
                                Answer::Busy(left.map(|left| left.min(WAITER_PRESENCE)))
                            }
                            other => other,
                        });
                    }
                }
                _ => {}
            }
            Exchange::Done(Err(received.unexpected(script)))
        }))
    }

    fn release(
        &self,
        format: &OwnedFormat,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
    ) -> ScriptCall {
        let key = format.keys.lock(&acquisition.name);
        let owner = Text::owner(acquisition.owner);
        if self.is_fair {
            let hold = hold(&key, owner.as_str(), 1);
            let mut call = release_fair(format, acquisition, options);
            call.keys.insert(3, hold);
            let sweeps = if format.has_slots() { b"0" } else { b"1" };
            call.arguments.push(sweeps.to_vec());
            return call;
        }
        let lifetime = format
            .tombstone_lifetime(acquisition, options)
            .map(Text::millis);
        let mut keys = vec![key.to_string(), hold(&key, owner.as_str(), 1)];
        keys.extend(lifetime.is_some().then(|| keys::tombstone(&key, &owner)));
        let channel = self.channel(&key);
        let mut words = vec![owner.as_bytes(), channel.as_bytes(), format.publish()];
        words.extend(lifetime.as_ref().map(Text::as_bytes));
        let script = if format.has_slots() {
            &RELEASE_READ
        } else {
            &RELEASE_READ_SWEEPING
        };
        ScriptCall::new(script, keys, &words)
    }

    fn renew(&self, format: &OwnedFormat, acquisition: &AcquisitionId) -> ScriptCall {
        let key = format.keys.lock(&acquisition.name);
        let lease = Text::number(acquisition.lease.as_millis());
        let (owner, channel) = (Text::owner(acquisition.owner), self.channel(&key));
        let words = [
            lease.as_bytes(),
            owner.as_bytes(),
            channel.as_bytes(),
            format.publish(),
        ];
        ScriptCall::new(
            &RENEW_READ,
            vec![key.to_string(), hold(&key, owner.as_str(), 1)],
            &words,
        )
    }

    fn inspect<'a>(
        &'static self,
        format: &'a OwnedFormat,
        name: &LockName,
        labels: Labels,
    ) -> Exchange<'a, LockInfo> {
        format.inspect_read_write(name, labels)
    }

    fn verify<'a>(
        &'static self,
        format: &'a OwnedFormat,
        acquisition: &'a AcquisitionId,
    ) -> Exchange<'a, Option<HolderInfo>> {
        let key = format.keys.lock(&acquisition.name);
        let reader = Field {
            name: acquisition.owner.to_string(),
            holds: 1,
        };
        let keys = vec![key.to_string(), hold(&key, &reader.name, 1)];
        let left = format.left(keys, Some(&reader.name), &[]);
        left.map(move |(left, _)| {
            let own = left.filter(|left| left.iter().all(|left| *left != -2));
            own.map(|left| reader.info(left.into_iter().filter_map(remaining).min()))
        })
    }

    fn force(&self, format: &OwnedFormat, name: &LockName) -> ScriptCall {
        if self.is_fair {
            return force(&FORCE_READERS_FAIR, format, name, Some(fair::queue));
        }
        force(&FORCE_READERS, format, name, None)
    }
}

/// Returns the call of a script that ends all holds, or those of readers.
fn force(
    script: &'static Script,
    format: &OwnedFormat,
    name: &LockName,
    companion: Option<fn(&str) -> String>,
) -> ScriptCall {
    let key = format.keys.lock(name);
    let channel = keys::channel(CHANNEL, &key);
    let words = [channel.as_bytes(), format.publish(), b"many"];
    let companion = companion.map(|name| name(&key));
    let keys = std::iter::once(key.into_owned()).chain(companion);
    ScriptCall::new(script, keys.collect(), &words)
}

/// Returns the call that ends a hold of a fair lock, or the wait for one, without the words that
/// its kind adds.
fn release_fair(
    format: &OwnedFormat,
    acquisition: &AcquisitionId,
    options: ReleaseOptions,
) -> ScriptCall {
    let request = format.release_request(acquisition, options);
    let (queue, channel) = (
        fair::queue(&request.key),
        keys::channel(CHANNEL, &request.key),
    );
    let mut call = request.queued(&RELEASE_FAIR, queue);
    call.arguments[1] = channel.into_bytes();
    call
}

/// An attempt of a writer, which ends holds of dead readers.
struct WriterAttempt<'a> {
    format: &'a OwnedFormat,
    attempt: &'a Attempt<'a>,
    is_tracked: &'a dyn Fn(&str) -> bool,
    call: ScriptCall,
    reserve: Option<u32>,
    round: usize,
}

impl<'a> WriterAttempt<'a> {
    fn exchange(self) -> Exchange<'a, Answer> {
        Exchange::send(self.call.batch(), move |received| {
            let Self {
                format,
                attempt,
                is_tracked,
                ..
            } = self;
            let (pttl, fields) = match received.reply().as_array() {
                Some([Reply::Int(0), Reply::Int(pttl), Reply::Array(readers)]) => {
                    (*pttl, Field::all(readers))
                }
                _ => {
                    let (script, reserve) = (self.call.script, self.reserve);
                    let is_tracked = || is_tracked(&format.keys.lock(attempt.name));
                    return format.acquired(received, script, reserve, attempt, is_tracked);
                }
            };
            if fields.is_empty() {
                return format.busy_kind(attempt.name, pttl, is_tracked);
            }
            let key = format.keys.lock(attempt.name);
            format
                .purge(&key, fields)
                .then(move |purged| self.after_purge(pttl, &purged))
        })
    }

    fn after_purge(self, pttl: i64, purged: &Purged) -> Exchange<'a, Answer> {
        let left = match *purged {
            Purged {
                may_be_free: true, ..
            } if self.round < MOST_PURGES => {
                let round = self.round + 1;
                return Self { round, ..self }.exchange();
            }
            // A waiter tries again at once.
            Purged {
                may_be_free: true, ..
            } => 0,
            Purged {
                last: Some(last), ..
            } if pttl < 0 => last,
            Purged {
                last: Some(last), ..
            } => last.min(pttl),
            Purged { last: None, .. } => pttl,
        };
        let (name, is_tracked) = (self.attempt.name, self.is_tracked);
        self.format.busy_kind(name, left, is_tracked)
    }
}

impl KindFormat for Write {
    fn channel(&self, key: &str) -> String {
        keys::channel(CHANNEL, key)
    }

    fn queue(&self, key: &str) -> Option<String> {
        self.is_fair.then(|| fair::queue(key))
    }

    /// Returns false for a fair lock: a report would wake all waiters in the queue.
    fn is_tracked(&self) -> bool {
        !self.is_fair
    }

    /// Returns no keys, because [`Read`] names them.
    fn names_beside(&self, _key: &str) -> Vec<String> {
        Vec::new()
    }

    fn scripts(&self) -> &'static [&'static Script] {
        static ALL: [&Script; 6] = [
            &ACQUIRE_WRITE,
            &RELEASE_WRITE,
            &PURGE,
            &FORCE,
            &INSPECT,
            &LEFT,
        ];
        static FAIR: [&Script; 2] = [&ACQUIRE_WRITE_FAIR, &FORCE_FAIR];
        if self.is_fair { &FAIR } else { &ALL }
    }

    fn acquire<'a>(
        &'static self,
        format: &'a OwnedFormat,
        attempt: &'a Attempt<'a>,
        is_tracked: &'a dyn Fn(&str) -> bool,
    ) -> Result<Exchange<'a, Answer>, Failure> {
        let key = format.keys.lock(attempt.name);
        let request = format.acquire_request(attempt, &key)?;
        let owner = writer(attempt.owner);
        let mut keys = request.keys(&key).to_vec();
        let mut words: Vec<_> = request.arguments().collect();
        words[1] = owner.as_bytes();
        let (companion, presence) = (self.companion(&key), fair::presence(attempt));
        let script = if self.is_fair {
            keys.push(companion.as_bytes());
            words.splice(2..2, [presence.as_bytes(), b"0"]);
            &ACQUIRE_WRITE_FAIR
        } else {
            let shows = format.writers_first && attempt.waits;
            keys.extend(shows.then_some(companion.as_bytes()));
            &ACQUIRE_WRITE
        };
        let keys = keys.iter().map(|key| String::from_utf8_lossy(key).into());
        let call = ScriptCall::new(script, keys.collect(), &words);
        let attempt = WriterAttempt {
            format,
            attempt,
            is_tracked,
            call,
            reserve: request.reserve,
            round: 0,
        };
        Ok(attempt.exchange())
    }

    fn release(
        &self,
        format: &OwnedFormat,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
    ) -> ScriptCall {
        let key = format.keys.lock(&acquisition.name);
        let mut call = if self.is_fair {
            release_fair(format, acquisition, options)
        } else {
            let request = format.release_request(acquisition, options);
            request.queued(&RELEASE_WRITE, waiting_writer(&key))
        };
        call.arguments[0].extend_from_slice(WRITER.as_bytes());
        call.arguments[1] = self.channel(&key).into_bytes();
        if let Some(kept) = call.arguments.get_mut(6) {
            kept.extend_from_slice(WRITER.as_bytes());
        }
        call.arguments.extend(self.is_fair.then(|| b"0".to_vec()));
        call
    }

    fn renew(&self, format: &OwnedFormat, acquisition: &AcquisitionId) -> ScriptCall {
        renewal(format, acquisition, writer(acquisition.owner).as_bytes())
    }

    fn inspect<'a>(
        &'static self,
        format: &'a OwnedFormat,
        name: &LockName,
        labels: Labels,
    ) -> Exchange<'a, LockInfo> {
        format.inspect_read_write(name, labels)
    }

    fn verify<'a>(
        &'static self,
        format: &'a OwnedFormat,
        acquisition: &'a AcquisitionId,
    ) -> Exchange<'a, Option<HolderInfo>> {
        let key = format.keys.lock(&acquisition.name).into_owned();
        let writer = Field {
            name: writer(acquisition.owner),
            holds: 1,
        };
        let left = format.left(vec![key], Some(&writer.name), &[]);
        left.map(move |(left, _)| {
            left.map(|left| writer.info(left.into_iter().filter_map(remaining).min()))
        })
    }

    fn force(&self, format: &OwnedFormat, name: &LockName) -> ScriptCall {
        let (script, companion): (_, fn(&str) -> String) = match self.is_fair {
            true => (&FORCE_FAIR, fair::queue),
            false => (&FORCE, waiting_writer),
        };
        force(script, format, name, Some(companion))
    }
}

#[cfg(test)]
mod tests {
    use super::super::format_of;
    use super::super::readers::MOST_READERS;
    use super::*;
    use crate::protocol::settings;
    use lock_core::{ClientId, Config, LeaseTime, LockKind};
    use std::time::Duration;

    #[test]
    fn script_keeps_readers_out_for_the_presence_of_a_waiter() {
        let presence = format!("PRESENCE = {}\n", WAITER_PRESENCE.as_millis());
        for script in [&ACQUIRE_READ, &ACQUIRE_WRITE, &INSPECT] {
            assert!(
                script.source.contains(&presence),
                "waiting.lua lacks {presence}"
            );
        }
    }

    #[test]
    fn renewal_of_a_fair_lock_is_that_of_the_other() {
        let config = Config::from_url("redis://h").unwrap();
        let format = settings::read_owned_format(&config).unwrap();
        let lease = LeaseTime::new(Duration::from_secs(30)).unwrap();
        let owner = OwnerId::new(ClientId::random(), 7);
        let renewal = |kind| {
            let name = LockName::new("x").unwrap().of_kind(kind);
            let held = AcquisitionId::new(name, owner, lease, Default::default());
            let call = format_of(kind).unwrap().renew(&format, &held);
            (
                call.script.name,
                call.script.number(),
                call.keys,
                call.arguments,
            )
        };
        for (kind, fair) in [
            (LockKind::Read, LockKind::FairRead),
            (LockKind::Write, LockKind::FairWrite),
        ] {
            assert_eq!(renewal(kind), renewal(fair));
        }
    }

    #[test]
    fn scripts_name_one_reader_more_than_are_looked_at() {
        // One field is `mode`.
        for script in [&ACQUIRE_WRITE, &ACQUIRE_WRITE_FAIR, &INSPECT] {
            let count = format!("'HRANDFIELD', key, {}, ", MOST_READERS + 2);
            let count = [count.replace("key", "KEYS[1]"), count];
            assert!(
                count.iter().any(|it| script.source.contains(it)),
                "{}",
                script.name
            );
        }
    }
}
