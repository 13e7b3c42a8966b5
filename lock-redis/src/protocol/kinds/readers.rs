//! The keys of a read-write lock, and its holders: their owners, the remaining times of their
//! holds, and the end of the holds of dead readers.

use super::ScriptCall;
use crate::connection::Reply;
use crate::keys;
use crate::lua::Script;
use crate::protocol::exchange::{Exchange, Received, Replies};
use crate::protocol::label::{self, Labels};
use crate::protocol::owned::OwnedFormat;
use crate::protocol::{FOR_EVER, busy_from_pttl, remaining};
use lock_core::backend::{Answer, HolderInfo, LockInfo, Readers};
use lock_core::{LockName, OwnerText};
use std::time::Duration;

/// The largest number of readers whose holds one request reads, which bounds the request.
pub(super) const MOST_READERS: usize = 100;
/// The largest number of holds that one request reads. Redisson counts re-entries as holds.
const MOST_HOLDS: usize = 1_000;

pub(super) const CHANNEL: &str = "redisson_rwlock";
/// The suffix of a writer's field name, after the owner.
pub(super) const WRITER: &str = ":write";

pub(super) static PURGE: Script = script!("purge":
    "timestamp", "tell", "queue_of", "queue", "let_next_in", "leave", "give_up",
    "read_write/settle", "read_write/purge"
);
pub(super) static INSPECT: Script = script!("inspect_rw":
    "redisson/holder", "redisson/gone", "timestamp", "queue", "read_write/inspect_rw"
);
pub(super) static LEFT: Script = script!("left": "read_write/left");

/// Returns the key of a reader's hold.
pub(super) fn hold(key: &str, reader: &str, number: usize) -> String {
    keys::behind(key, &format!("{reader}:rwlock_timeout:{number}"))
}

pub(super) fn names_beside(key: &str) -> Vec<String> {
    vec![hold(key, "0", 1), keys::queue(key)]
}

/// A holder, as a field of the hash.
pub(super) struct Field {
    pub(super) name: String,
    pub(super) holds: u64,
}

impl Field {
    /// Reads the fields in a script's reply.
    pub(super) fn all(words: &[Reply]) -> Vec<Self> {
        let text = |word: &Reply| Some(std::str::from_utf8(word.as_bytes()?).ok()?.to_owned());
        let pairs = words.chunks_exact(2).filter_map(|pair| {
            Some(Self {
                name: text(&pair[0])?,
                holds: text(&pair[1])?.parse().ok()?,
            })
        });
        pairs.collect()
    }

    fn is_writer(&self) -> bool {
        self.name.ends_with(WRITER)
    }

    pub(super) fn info(&self, remaining: Option<Duration>) -> HolderInfo {
        let owner = self.name.strip_suffix(WRITER).unwrap_or(&self.name);
        HolderInfo::new(OwnerText::new(owner), remaining, self.holds)
    }
}

/// Readers of a lock, each with the keys of its holds.
struct Holds {
    fields: Vec<(Field, Vec<String>)>,
    /// True if no field was left out.
    is_all: bool,
}

impl Holds {
    fn new(key: &str, fields: Vec<Field>) -> Self {
        let count = fields.len();
        let mut left = MOST_HOLDS;
        let fields: Vec<_> = fields
            .into_iter()
            .filter(|field| !field.is_writer())
            .take(MOST_READERS)
            .filter_map(|field| {
                let holds = usize::try_from(field.holds)
                    .ok()
                    .filter(|holds| *holds <= left)?;
                left -= holds;
                let keys = (1..=holds)
                    .map(|number| hold(key, &field.name, number))
                    .collect();
                Some((field, keys))
            })
            .collect();
        Self {
            is_all: fields.len() == count,
            fields,
        }
    }

    fn keys(&self, key: &str) -> Vec<String> {
        let holds = self
            .fields
            .iter()
            .flat_map(|(_, keys)| keys.iter().cloned());
        std::iter::once(key.to_owned()).chain(holds).collect()
    }
}

/// The state of a lock after the holds of dead readers were ended.
pub(super) struct Purged {
    /// True if the lock is free, or if holds were ended and there are more readers, which may be
    /// dead as well.
    pub(super) may_be_free: bool,
    /// The longest remaining time of the other holds in milliseconds, if it is known.
    pub(super) last: Option<i64>,
}

impl OwnedFormat {
    /// Returns the answer for a busy lock with this `PTTL`. For a key without expiry, first checks
    /// that the key holds a lock.
    pub(super) fn busy_kind<'a>(&'a self, name: &'a LockName, pttl: i64) -> Exchange<'a, Answer> {
        let busy = busy_from_pttl(pttl);
        if pttl == FOR_EVER {
            return self.inspect(name, Labels::LeftOut).map(move |_| busy);
        }
        Exchange::done(busy)
    }

    /// Ends those holds of these readers whose leases are over.
    pub(super) fn purge<'a>(&self, key: &str, fields: Vec<Field>) -> Exchange<'a, Purged> {
        let readers = Holds::new(key, fields);
        let channel = keys::channel(CHANNEL, key);
        let counts: Vec<_> = readers
            .fields
            .iter()
            .map(|it| it.0.holds.to_string())
            .collect();
        let pairs = readers.fields.iter().zip(&counts);
        let pairs = pairs.flat_map(|(it, count)| [it.0.name.as_bytes(), count.as_bytes()]);
        let words: Vec<_> = [channel.as_bytes(), self.publish()]
            .into_iter()
            .chain(pairs)
            .collect();
        let batch = ScriptCall::new(&PURGE, readers.keys(key), &words).batch();
        let is_all = readers.is_all;
        Exchange::call(batch, move |received| match received.reply().as_array() {
            Some([Reply::Int(free), Reply::Int(last), Reply::Int(ended)]) => Ok(Purged {
                may_be_free: *free == 1 || (*ended == 1 && !is_all),
                last: Some(*last).filter(|last| is_all && *last >= 0),
            }),
            _ => Err(received.unexpected(&PURGE)),
        })
    }

    /// Reads the remaining times of the hash and of the other `keys`; `None` if the hash has no
    /// `field`. Also reads the values of the keys in `read`.
    pub(super) fn left<'a>(
        &self,
        keys: Vec<String>,
        field: Option<&str>,
        read: &[String],
    ) -> Exchange<'a, (Option<Vec<i64>>, Replies)> {
        let words: Vec<_> = field.iter().map(|field| field.as_bytes()).collect();
        let call = ScriptCall::new(&LEFT, keys, &words);
        Exchange::call(call.batch_with_reads(read), |received| {
            let times = received.reply().as_array().map(|times| {
                times.iter().filter_map(|time| match time {
                    Reply::Int(time) => Some(*time),
                    _ => None,
                })
            });
            let times: Option<Vec<_>> = times.map(Iterator::collect);
            let times = times.ok_or_else(|| received.unexpected(&LEFT))?;
            let found = received.take_replies().without_first();
            Ok((Some(times).filter(|times| !times.is_empty()), found))
        })
    }

    /// Reads the state of a read-write lock. See [`Backend::inspect`](lock_core::Backend::inspect).
    pub(super) fn inspect_read_write<'a>(
        &'a self,
        name: &LockName,
        labels: Labels,
    ) -> Exchange<'a, LockInfo> {
        let queue = self.queue(name).filter(|_| self.writers_first);
        self.inspect_with_queue(name, labels, queue)
    }

    /// Reads the state of a read-write lock, and whether a writer waits in `queue`.
    fn inspect_with_queue<'a>(
        &'a self,
        name: &LockName,
        labels: Labels,
        queue: Option<String>,
    ) -> Exchange<'a, LockInfo> {
        let key = self.keys.lock(name);
        let has_queue = queue.is_some();
        let mut keys = vec![key.to_string()];
        keys.extend(queue);
        let call = ScriptCall::new(&INSPECT, keys, &[]);
        let read = self.reads(labels, || vec![keys::label(&key)]);
        let (batch, asked) = (call.batch_with_reads(&read), name.clone());
        let read = move |received: &mut Received<'_>| {
            let replies = received.take_replies();
            let (reply, found) = (&replies[0], &replies[1..]);
            self.note_refusal(found);
            match ShownHolders::read(reply) {
                Some(shown) => self.inspect_holders(&asked, labels, shown, found),
                None => Exchange::Done(Err(received.unexpected(&INSPECT))),
            }
        };
        if !has_queue {
            return Exchange::send(batch, read);
        }
        let name = name.clone();
        let again = move || self.inspect_with_queue(&name, labels, None);
        self.send_with_queue(batch, again, read)
    }

    fn inspect_holders<'a>(
        &'a self,
        name: &LockName,
        labels: Labels,
        shown: ShownHolders,
        found: &[Reply],
    ) -> Exchange<'a, LockInfo> {
        let ShownHolders {
            pttl,
            holders,
            has_mode,
            waits,
            fields,
        } = shown;
        let key = self.keys.lock(name);
        let unread = move |info: LockInfo| info.readers(Readers::new(Vec::new(), waits));
        let is_read_lock = name.kind().is_reader();
        let writer = fields.iter().find(|field| !has_mode || field.is_writer());
        if let Some(writer) = writer.filter(|_| !is_read_lock) {
            let mut info = LockInfo::held(writer.info(remaining(pttl)));
            label::add(&mut info, found);
            return Exchange::done(unread(info));
        }
        if !has_mode {
            return Exchange::done(unread(LockInfo::FREE));
        }
        let others = writer.map_or(0, |_| 1);
        let readers = Holds::new(&key, fields);
        let of_readers = readers
            .fields
            .iter()
            .map(|(it, _)| keys::label_of(&key, &it.name));
        let read = self.reads(labels, || of_readers.collect());
        let left = self.left(readers.keys(&key), None, &read);
        left.map(move |(left, found)| {
            self.note_refusal(&found);
            let Some(left) = left else {
                return unread(LockInfo::FREE);
            };
            let mut times = left.into_iter();
            let whole = times.next().unwrap_or(pttl);
            let first = readers
                .fields
                .first()
                .map(|(field, _)| field.info(remaining(whole)));
            let mut alive = Vec::new();
            for (at, (field, keys)) in readers.fields.iter().enumerate() {
                if let Some(last) = times
                    .by_ref()
                    .take(keys.len())
                    .filter(|left| *left != -2)
                    .max()
                {
                    // A hold ends with the hash at the latest, if the hash expires.
                    let last = if whole < 0 { last } else { last.min(whole) };
                    let mut reader = field.info(remaining(last));
                    label::add_to(&mut reader, found.get(at));
                    alive.push(reader);
                }
            }
            let unseen = holders.saturating_sub(others + readers.fields.len() as u64);
            let count = alive.len() as u64 + unseen;
            let readers = Readers::new(alive, waits);
            let info = match readers.known.first() {
                Some(last) => LockInfo::held(last.clone()).holders(count),
                // All readers that were read are dead, and it is not known if the others are alive.
                None => match first.filter(|_| unseen > 0) {
                    Some(unknown) => LockInfo::held(unknown).holders(unseen),
                    None => LockInfo::FREE,
                },
            };
            info.readers(readers)
        })
    }
}

/// The reply of the script that inspects a read-write lock.
struct ShownHolders {
    pttl: i64,
    holders: u64,
    has_mode: bool,
    /// True if a writer waits.
    waits: bool,
    fields: Vec<Field>,
}

impl ShownHolders {
    fn read(reply: &Reply) -> Option<Self> {
        let (head, fields) = reply.as_array()?.split_at_checked(4)?;
        let [
            Reply::Int(pttl),
            Reply::Int(holders),
            Reply::Bulk(mode),
            waits,
        ] = head
        else {
            return None;
        };
        Some(Self {
            pttl: *pttl,
            holders: u64::try_from(*holders).unwrap_or(0),
            has_mode: !mode.is_empty(),
            waits: *waits == Reply::Int(1),
            fields: Field::all(fields),
        })
    }
}
