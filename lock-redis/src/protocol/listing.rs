//! Lists the locks of a server, and reads many locks at once.

use super::exchange::{Exchange, in_turn};
use super::kinds;
use super::label::{self, Labels};
use super::owned::{OwnedFormat, has_mode, info};
use super::script_call::add_reads;
use crate::connection::error_mapping::Asked;
use crate::connection::{Batch, Reply, Request, Text};
use crate::keys;
use crate::wakeups::ChannelKind;
use lock_core::backend::{Failure, LockInfo, LockPage, PagePosition, RENEW_BATCH};
use lock_core::{FencingToken, LockKind, LockName};

/// The number of keys that the server scans for a page. The scan occupies the server for some
/// hundred microseconds.
const KEYS_OF_A_PAGE: u64 = 1000;

/// The state of a lock, or the failure of its inspection.
type LockState = Result<LockInfo, Failure>;

/// The locks among some keys of a server.
#[derive(Debug)]
#[allow(
    clippy::exhaustive_structs,
    reason = "for the crate of the same workspace"
)]
pub struct NodePage {
    /// The held locks. A lock that could not be inspected, as in a slot that is moving, has the
    /// failure instead.
    pub locks: Vec<(LockName, Result<LockInfo, Failure>)>,
    /// The cursor of the next page; 0 after the last page.
    pub next: u64,
}

impl NodePage {
    /// Returns this page as a page of the store, where `part` names this server. Fails with the
    /// failure of the first lock that could not be inspected.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    pub fn into_page(self, part: &str) -> Result<LockPage, Failure> {
        let locks = self.locks.into_iter().map(|(name, info)| Ok((name, info?)));
        let next = (self.next != 0).then(|| PagePosition::new(part, self.next));
        Ok(LockPage::new(locks.collect::<Result<_, Failure>>()?, next))
    }
}

impl OwnedFormat {
    /// Lists the held locks among the next keys of this server that match `pattern`.
    pub(crate) fn list_locks<'a>(&'a self, pattern: &str, cursor: u64) -> Exchange<'a, NodePage> {
        self.scan(pattern, cursor).then(|(next, names)| {
            let batches: Vec<_> = names.chunks(RENEW_BATCH).map(<[_]>::to_vec).collect();
            let pages = in_turn(batches.into_iter(), |names| self.held_of(names));
            pages.map(move |pages| NodePage {
                locks: pages.into_iter().flatten().collect(),
                next,
            })
        })
    }

    /// Returns the held locks among these names, and the locks that could not be inspected.
    fn held_of(&self, names: Vec<LockName>) -> Exchange<'_, Vec<(LockName, LockState)>> {
        self.holders(names.clone()).then(|infos| {
            let is_lock = |info: &LockState| match info {
                Ok(info) => self.is_lock(info),
                Err(failure) => !failure.error().is_foreign_format(),
            };
            let found = names
                .into_iter()
                .zip(infos)
                .filter(|(_, info)| is_lock(info));
            let (names, infos): (Vec<_>, Vec<_>) = found.unzip();
            let infos = self.tell_more(&names, infos);
            infos.map(|infos| names.into_iter().zip(infos).collect())
        })
    }

    /// Reads the state of these locks, with the number of waiters, the largest token and the
    /// labels, as far as the server shows them.
    pub(crate) fn inspect_all<'a>(&'a self, names: &'a [LockName]) -> Exchange<'a, Vec<LockState>> {
        let all = in_turn(names.chunks(RENEW_BATCH), move |names| {
            let infos = self.holders(names.to_vec());
            infos.then(move |infos| self.tell_more(names, infos))
        });
        all.map(|all| all.into_iter().flatten().collect())
    }

    /// Returns true if the lock is held and its value looks like a lock.
    pub(super) fn is_lock(&self, info: &LockInfo) -> bool {
        info.holder.as_ref().is_some_and(self.dialect.is_lock)
    }

    /// Returns the cursor of the next page, and the names of those among the next keys that match
    /// `pattern` and have the type of a lock.
    fn scan<'a>(&'a self, pattern: &str, cursor: u64) -> Exchange<'a, (u64, Vec<LockName>)> {
        let (glob, cursor) = (self.keys.glob(pattern), Text::of(cursor));
        let count = Text::number(KEYS_OF_A_PAGE);
        let words: &[&[u8]] = &[
            b"SCAN",
            cursor.as_bytes(),
            b"MATCH",
            glob.as_bytes(),
            b"COUNT",
            count.as_bytes(),
            b"TYPE",
            self.dialect.key_type.as_bytes(),
        ];
        Exchange::call(
            Batch::from_requests(&[Request(&[words])]),
            move |received| {
                received.take_outcome()?;
                let reply = received.take_reply();
                if let Reply::Error(error) = &reply {
                    return Err(received.refused(error, &Asked::Command("SCAN", &glob)));
                }
                let page = match reply.as_array() {
                    Some([Reply::Bulk(next), Reply::Array(found)]) => {
                        let next = std::str::from_utf8(next)
                            .ok()
                            .and_then(|next| next.parse().ok());
                        next.map(|next| (next, found))
                    }
                    _ => None,
                };
                let Some((next, found)) = page else {
                    return Err(received.unexpected_to("SCAN"));
                };
                let key = |key: &Reply| self.keys.name(std::str::from_utf8(key.as_bytes()?).ok()?);
                Ok((next, found.iter().filter_map(key).collect()))
            },
        )
    }

    fn holders(&self, names: Vec<LockName>) -> Exchange<'_, Vec<LockState>> {
        if names
            .iter()
            .any(|name| kinds::format_of(name.kind()).is_some())
        {
            // Other kinds have their own scripts. They are rarely inspected, so they are inspected
            // one after the other.
            return in_turn(names.into_iter(), |name| {
                self.inspect(&name, Labels::LeftOut).caught()
            });
        }
        let script = &self.dialect.scripts.inspect;
        let mut batch = Batch::new();
        for name in &names {
            batch.add_script(script, &[self.keys.lock(name).as_bytes()], &[]);
        }
        let found = Exchange::call(batch, move |received| {
            received.take_outcome()?;
            let replies = received.take_replies();
            let mut found = Vec::with_capacity(names.len());
            for (place, (reply, name)) in replies.iter().zip(names).enumerate() {
                found.push(match (reply, info(reply)) {
                    (_, Some(info)) => Ok((info, has_mode(reply).then_some(name))),
                    (Reply::Error(error), _) => Err(received.refused_at(place, error)),
                    _ => return Err(received.unexpected(script)),
                });
            }
            Ok(found)
        });
        found.then(|found| {
            in_turn(found.into_iter(), |found| match found {
                // The readers of a read-write lock are read separately. If the user has no right to
                // that, or the slot is being moved, `info` suffices.
                Ok((info, Some(name))) => {
                    let readers = self
                        .inspect(&name.of_kind(LockKind::Write), Labels::LeftOut)
                        .caught();
                    readers.map(|readers| Ok(readers.unwrap_or(info)))
                }
                Ok((info, None)) => Exchange::done(Ok(info)),
                Err(failure) => Exchange::done(Err(failure)),
            })
        })
    }

    /// Adds the number of waiters, the largest token and the labels. What the server refuses to
    /// show stays unknown.
    fn tell_more(
        &self,
        names: &[LockName],
        mut infos: Vec<LockState>,
    ) -> Exchange<'_, Vec<LockState>> {
        if names.is_empty() {
            return Exchange::done(infos);
        }
        let channels: Vec<_> = names
            .iter()
            .map(|name| self.channels_of_all(name))
            .collect();
        let listeners: &[u8] = match self.channels() {
            ChannelKind::Plain => b"NUMSUB",
            ChannelKind::Sharded => b"SHARDNUMSUB",
        };
        let counters = names
            .iter()
            .map(|name| keys::token_counter(&self.keys.lock(name)));
        let counters: Vec<_> = counters.filter(|_| self.has_tokens()).collect();
        let of_holders = |(name, info): (&LockName, &Result<LockInfo, _>)| match info {
            Ok(info) if self.has_labels() => label::keys_of(&self.keys.lock(name), info),
            _ => Vec::new(),
        };
        let labels: Vec<_> = names.iter().zip(&infos).map(of_holders).collect();
        let queues: Vec<_> = names.iter().map(|name| self.queue(name)).collect();
        let mut pubsub: Vec<&[u8]> = vec![b"PUBSUB", listeners];
        pubsub.extend(channels.iter().flatten().map(String::as_bytes));
        let mut batch = Batch::from_requests(&[Request(&[&pubsub])]);
        for queue in queues.iter().flatten() {
            batch.add_command("ZCARD", queue.as_bytes(), &[]);
        }
        add_reads(&mut batch, &counters);
        labels
            .iter()
            .for_each(|labels| add_reads(&mut batch, labels));
        Exchange::call(batch, move |received| {
            received.take_outcome()?;
            let replies = received.take_replies();
            let (listeners, replies) = replies.split_first().unwrap_or((&Reply::Nil, &[]));
            let (queued, replies) =
                replies.split_at(queues.iter().flatten().count().min(replies.len()));
            self.note_refused_queue(queued);
            let mut queued = queued.iter();
            let (tokens, mut found) = replies.split_at(counters.len().min(replies.len()));
            self.note_refusal(found);
            let mut listeners = listeners.as_array().unwrap_or_default().chunks(2);
            for (at, info) in infos.iter_mut().enumerate() {
                let waiters = channels[at].iter().map(|_| match listeners.next() {
                    Some([_, Reply::Int(count)]) => u64::try_from(*count).ok(),
                    _ => None,
                });
                // Collected even for a lock with a failure, so that the next lock gets its own
                // counts.
                let counts: Vec<_> = waiters.collect();
                // Without a right to the queues, the waiters in them are not counted. Each waiter
                // is two members of a queue.
                let count = |reply: &Reply| match reply {
                    Reply::Int(count) => u64::try_from(*count / 2).ok(),
                    _ => None,
                };
                let queued: u64 = queues[at]
                    .iter()
                    .filter_map(|_| count(queued.next()?))
                    .sum();
                let waiters = counts
                    .into_iter()
                    .sum::<Option<u64>>()
                    .map(|told| told + queued);
                let Ok(info) = info else { continue };
                info.waiters = waiters;
                info.largest_token = tokens.get(at).and_then(token);
                let count = labels[at].len().min(found.len());
                label::add(info, found.split_off(..count).unwrap_or_default());
            }
            Ok(infos)
        })
    }
}

fn token(reply: &Reply) -> Option<FencingToken> {
    let token = std::str::from_utf8(reply.as_bytes()?).ok()?.parse().ok()?;
    Some(FencingToken::new(token))
}
