//! Read-write locks: a lock as Redisson's `RReadWriteLock` stores it.
//!
//! Under the lock's name is a hash: the field `mode`, which is `read` or `write`; a field `owner`
//! with a hold count for each reader; and `owner:write` for the writer. Each hold of a reader has a
//! key that lasts as long as its lease; the hash lasts as long as the longest lease. So the hold of
//! a dead reader ends although other readers renew the hash: a writer that finds readers deletes
//! the fields of readers whose keys are gone.
//!
//! Readers and writers wait in the queue of the mutex of the same name, because mutex, readers and
//! writer exclude each other. In the queue, a writer is called `owner:write` if the lock is fair,
//! and otherwise its client's ID and `:write`. A waiting writer of a fair lock, or of any lock with
//! `writers_first`, keeps new readers out: they wait behind the writer in the queue. Otherwise a
//! reader joins other readers before a waiting writer.

use super::readers::{CHANNEL, Field, INSPECT, LEFT, PURGE, Purged, WRITER, hold, names_beside};
use super::{KindFormat, ScriptCall, owner_or_client, renewal};
use crate::connection::{Batch, Reply, Text};
use crate::keys;
use crate::lua::Script;
use crate::protocol::exchange::{Exchange, Received};
use crate::protocol::label::Labels;
use crate::protocol::owned::{AcquireRequest, OwnedFormat};
use crate::protocol::remaining;
use lock_core::backend::{
    AcquisitionId, Answer, Attempt, Failure, Grant, HolderInfo, LockInfo, ReleaseOptions, Tokens,
    WAITER_PRESENCE,
};
use lock_core::{FencingToken, LockKind, LockName, OwnerId, TokenRange};

/// The format of [`LockKind::Read`], and of the readers of a fair lock.
#[derive(Debug)]
pub(super) struct Read;

/// The format of [`LockKind::Write`], and of the writer of a fair lock.
#[derive(Debug)]
pub(super) struct Write;

/// The largest number of times that an attempt of a writer is repeated after it has ended holds of
/// dead readers.
const MOST_PURGES: usize = 16;

/// Creates a script of readers, which follows the functions of the wait queue. The end of a
/// reader's hold grants the lock to no waiter, but notifies the next one (`turns` is "free"). So
/// only a script that acquires needs the functions that grant.
macro_rules! of_readers {
    ($name:literal: $([$($grants:literal),+])? $($file:literal),+) => {
        script!($name:
            "timestamp", $($($grants,)+)? "tell", "queue_of", "queue", "let_next_in", "leave",
            "enter", "give_up", $($file),+
        )
    };
}
/// Creates a script of a writer, which ends with these files. The end of a writer's hold may grant
/// the mutex of the name to its next waiter.
macro_rules! of_writer {
    ($name:literal: $($file:literal),+) => {
        script!($name:
            "redisson/look", "redisson/drop", "redisson/gone", "redisson/take", "read_write/take",
            "timestamp", "grant", "tell", "queue_of", "queue", "let_next_in", "leave", "enter",
            "give_up", $($file),+
        )
    };
}
/// Creates a script that ends all holds. These files precede its last part.
macro_rules! force {
    ($($file:literal),*) => {
        of_writer!("force":
            "redisson/holder", "unlink", "read_write/free", $($file,)* "force", "endings/writer"
        )
    };
}
static ACQUIRE_READ: Script = of_readers!("acquire_read":
    ["redisson/take", "grant"] "read_write/sweep", "read_write/acquire_read"
);
static RELEASE_READ: Script =
    of_readers!("release_read": "read_write/settle", "read_write/release_read");
/// For a store without slots: also ends some holds of other readers that died.
static RELEASE_READ_SWEEPING: Script = of_readers!("release_read":
    "read_write/settle", "read_write/sweep", "read_write/swept", "read_write/release_read"
);
static RENEW_READ: Script = of_readers!("renew_read": "read_write/settle", "read_write/renew_read");
static ACQUIRE_WRITE: Script = of_writer!(
    "acquire": "acquire", "read_write/tells", "attempt", "endings/busy"
);
static RELEASE_WRITE: Script = of_writer!("close":
    "unlink", "read_write/free", "read_write/pass", "close", "endings/writer"
);
static FORCE: Script = force!();
static FORCE_READERS: Script = force!("read_write/only_readers");

/// Returns the name of a writer's field in the hash.
fn writer(owner: OwnerId) -> String {
    format!("{owner}{WRITER}")
}

impl Read {
    /// Returns the call that takes the lock. With a `queue`, the call does not take the lock while
    /// a waiter in the queue goes first.
    fn acquire_call(
        format: &OwnedFormat,
        attempt: &Attempt<'_>,
        queue: Option<String>,
    ) -> ScriptCall {
        let key = format.keys.lock(attempt.name);
        let lease = Text::number(attempt.lease.as_millis());
        let owner = Text::owner(attempt.owner);
        let wait = queue.as_ref().and_then(|_| format.wait(attempt, &owner));
        let beside = attempt.beside.map(writer).unwrap_or_default();
        let before = match (attempt.name.kind().is_queued(), format.writers_first) {
            (false, false) => "free",
            (false, true) if !attempt.waits => "writers",
            _ => "all",
        };
        let mut keys = vec![
            key.to_string(),
            hold(&key, owner.as_str(), 1),
            keys::tombstone(&key, &owner),
            keys::token_counter(&key),
        ];
        keys.extend(queue);
        let mut words = vec![
            lease.as_bytes(),
            owner.as_bytes(),
            beside.as_bytes(),
            format.publish(),
            before.as_bytes(),
        ];
        words.extend(wait.as_ref().map(|wait| wait.as_bytes()));
        ScriptCall::new(&ACQUIRE_READ, keys, &words)
    }

    /// Reads the reply of the script that takes the lock.
    fn acquired<'a>(
        format: &'a OwnedFormat,
        attempt: &'a Attempt<'a>,
        received: &mut Received<'_>,
    ) -> Exchange<'a, Answer> {
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
                    let busy = format.busy_kind(attempt.name, pttl);
                    // A writer of Redisson publishes nothing if it continues as a reader, so other
                    // readers poll. Readers of a fair lock poll often enough.
                    return busy.map(|busy| match busy {
                        Answer::Busy(left) if !attempt.name.kind().is_queued() => {
                            Answer::Busy(left.map(|left| left.min(WAITER_PRESENCE)))
                        }
                        other => other,
                    });
                }
            }
            _ => {}
        }
        Exchange::Done(Err(received.unexpected(&ACQUIRE_READ)))
    }
}

impl KindFormat for Read {
    fn channel(&self, key: &str) -> String {
        keys::channel(CHANNEL, key)
    }

    fn waiter(&self, _kind: LockKind, owner: &Text) -> String {
        owner.as_str().to_owned()
    }

    /// Returns false for a fair lock: a report would wake all waiters in the queue.
    fn is_tracked(&self, kind: LockKind) -> bool {
        !kind.is_queued()
    }

    fn scripts(&self) -> &'static [&'static Script] {
        static ALL: [&Script; 5] = [
            &ACQUIRE_READ,
            &RELEASE_READ,
            &RELEASE_READ_SWEEPING,
            &RENEW_READ,
            &FORCE_READERS,
        ];
        &ALL
    }

    fn acquire<'a>(
        &'static self,
        format: &'a OwnedFormat,
        attempt: &'a Attempt<'a>,
        _is_tracked: &'a dyn Fn(&str, bool) -> bool,
    ) -> Result<Exchange<'a, Answer>, Failure> {
        // If the lock is not fair, a try takes a free lock before all waiters. With
        // `writers_first`, a try does not join other readers while a writer waits for them.
        let queue = match format.writers_first {
            true => format.queue(attempt.name),
            false => format.queue_before(attempt),
        };
        let call = Self::acquire_call(format, attempt, queue);
        let read = move |received: &mut Received<'_>| Self::acquired(format, attempt, received);
        let again = move || {
            let call = Self::acquire_call(format, attempt, None);
            Exchange::send(call.batch(), read)
        };
        Ok(format.send_with_queue(call.batch(), again, read))
    }

    fn release(
        &self,
        format: &OwnedFormat,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
    ) -> ScriptCall {
        let key = format.keys.lock(&acquisition.name);
        let owner = Text::owner(acquisition.owner);
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
        force(&FORCE_READERS, format, name)
    }
}

/// Returns the call of a script that ends all holds, or those of readers.
fn force(script: &'static Script, format: &OwnedFormat, name: &LockName) -> ScriptCall {
    let key = format.keys.lock(name);
    let channel = keys::channel(CHANNEL, &key);
    let turns = format.turns_of_all().unwrap_or_default();
    let words = [
        channel.as_bytes(),
        format.publish(),
        turns.as_bytes(),
        b"many",
    ];
    ScriptCall::new(script, vec![key.into_owned()], &words)
}

/// An attempt of a writer, which ends holds of dead readers.
#[derive(Clone, Copy)]
struct WriterAttempt<'a> {
    format: &'a OwnedFormat,
    attempt: &'a Attempt<'a>,
    is_tracked: &'a dyn Fn(&str, bool) -> bool,
    round: usize,
}

impl<'a> WriterAttempt<'a> {
    fn exchange(self) -> Exchange<'a, Answer> {
        let Self {
            format, attempt, ..
        } = self;
        let key = format.keys.lock(attempt.name);
        let request = match format.acquire_request(attempt, &key) {
            Ok(request) => request,
            Err(failure) => return Exchange::Done(Err(failure)),
        };
        let reserve = request.reserve;
        let batch = Self::batch(&request, &key, attempt.owner);
        let read = move |received: &mut Received<'_>| self.answered(received, reserve);
        if !request.has_queue() {
            return Exchange::send(batch, read);
        }
        let again = move || {
            let request = request.without_queue();
            let key = format.keys.lock(attempt.name);
            Exchange::send(Self::batch(&request, &key, attempt.owner), read)
        };
        format.send_with_queue(batch, again, read)
    }

    fn batch(request: &AcquireRequest, key: &str, owner: OwnerId) -> Batch {
        let owner = writer(owner);
        let mut words: Vec<_> = request.arguments().collect();
        words[1] = owner.as_bytes();
        Batch::script(&ACQUIRE_WRITE, &request.keys_with_queue(key), &words)
    }

    fn answered(self, received: &mut Received<'_>, reserve: Option<u32>) -> Exchange<'a, Answer> {
        let Self {
            format,
            attempt,
            is_tracked,
            ..
        } = self;
        let name = attempt.name;
        let (pttl, fields) = match received.reply().as_array() {
            Some(
                [
                    Reply::Int(0),
                    Reply::Int(pttl),
                    Reply::Array(readers),
                    Reply::Int(_),
                ],
            ) => (*pttl, Field::all(readers)),
            _ => {
                let is_tracked = |is_first| is_tracked(&format.keys.lock(name), is_first);
                return format.acquired(received, &ACQUIRE_WRITE, reserve, attempt, is_tracked);
            }
        };
        if fields.is_empty() {
            return format.busy_kind(name, pttl);
        }
        format
            .purge(&format.keys.lock(name), fields)
            .then(move |purged| self.after_purge(pttl, &purged))
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
        self.format.busy_kind(self.attempt.name, left)
    }
}

impl KindFormat for Write {
    fn channel(&self, key: &str) -> String {
        keys::channel(CHANNEL, key)
    }

    fn waiter(&self, kind: LockKind, owner: &Text) -> String {
        format!("{}{WRITER}", owner_or_client(kind, owner))
    }

    /// Returns false for a fair lock: a report would wake all waiters in the queue.
    fn is_tracked(&self, kind: LockKind) -> bool {
        !kind.is_queued()
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
        &ALL
    }

    fn acquire<'a>(
        &'static self,
        format: &'a OwnedFormat,
        attempt: &'a Attempt<'a>,
        is_tracked: &'a dyn Fn(&str, bool) -> bool,
    ) -> Result<Exchange<'a, Answer>, Failure> {
        let attempt = WriterAttempt {
            format,
            attempt,
            is_tracked,
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
        let request = format.release_request(acquisition, options);
        let channel = self.channel(&request.key);
        let mut call = request.closed_by(&RELEASE_WRITE);
        call.arguments[0].extend_from_slice(WRITER.as_bytes());
        call.arguments[1] = channel.into_bytes();
        if let Some(kept) = call.arguments.get_mut(6).filter(|kept| !kept.is_empty()) {
            kept.extend_from_slice(WRITER.as_bytes());
        }
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
        force(&FORCE, format, name)
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
        for script in [&ACQUIRE_WRITE, &INSPECT] {
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
