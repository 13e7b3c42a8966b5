//! Which keys of a server are locks, and what is known of many locks at once.

use super::owned::{OwnedFormat, has_mode, info};
use super::run::{NONE, Run, run_many};
use super::{WireFormat, kinds, label, refused, unexpected, unexpected_reply};
use crate::connection::error_mapping::Asked;
use crate::connection::{ConnectionLike, Reply, Request, Text};
use crate::keys;
use crate::wakeups::ChannelKind;
use lock_core::backend::{Failure, LockInfo, LockPage, PagePosition, RENEW_BATCH};
use lock_core::{FencingToken, LockKind, LockName, Moment};

/// How many keys the server goes through for a page. It does nothing else meanwhile: for some
/// hundred microseconds.
const KEYS_OF_A_PAGE: u64 = 1000;

/// The locks among some keys of a server.
#[derive(Debug)]
#[allow(
    clippy::exhaustive_structs,
    reason = "for the crate of the same workspace"
)]
pub struct NodePage {
    /// Held locks. One that the server could not be asked about, as in a slot that is moving, has
    /// the failure.
    pub locks: Vec<(LockName, Result<LockInfo, Failure>)>,
    /// Where the next page begins; 0 behind the last one.
    pub next: u64,
}

impl NodePage {
    /// The same as the page of a store, where this is the part that it is of. Fails with the first
    /// lock that could not be looked at.
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
    /// The held locks among the next keys of this server.
    pub(crate) fn list_locks(
        &self,
        link: &mut dyn ConnectionLike,
        pattern: &str,
        cursor: u64,
        by: Moment,
    ) -> Result<NodePage, Failure> {
        let (next, names) = self.scan(link, pattern, cursor, by)?;
        let mut locks = Vec::new();
        for names in names.chunks(RENEW_BATCH) {
            let infos = self.holders(link, names, by)?;
            let is_lock = |info: &Result<LockInfo, Failure>| match info {
                Ok(info) => self.is_lock(info),
                Err(failure) => !failure.error().is_foreign_format(),
            };
            let found = names
                .iter()
                .cloned()
                .zip(infos)
                .filter(|(_, info)| is_lock(info));
            let (names, mut infos): (Vec<_>, Vec<_>) = found.unzip();
            self.tell_more(link, &names, &mut infos, by)?;
            locks.extend(names.into_iter().zip(infos));
        }
        Ok(NodePage { locks, next })
    }

    /// The state of these locks, with the waiters and the largest token where the server tells.
    pub(crate) fn inspect_all(
        &self,
        link: &mut dyn ConnectionLike,
        names: &[LockName],
        by: Moment,
    ) -> Result<Vec<Result<LockInfo, Failure>>, Failure> {
        let mut all = Vec::with_capacity(names.len());
        for names in names.chunks(RENEW_BATCH) {
            let mut infos = self.holders(link, names, by)?;
            self.tell_more(link, names, &mut infos, by)?;
            all.extend(infos);
        }
        Ok(all)
    }

    /// Whether it is held, and what is there looks like a lock.
    pub(super) fn is_lock(&self, info: &LockInfo) -> bool {
        info.holder.as_ref().is_some_and(self.dialect.is_lock)
    }

    /// The names of the next keys that have the type of a lock.
    fn scan(
        &self,
        link: &mut dyn ConnectionLike,
        pattern: &str,
        cursor: u64,
        by: Moment,
    ) -> Result<(u64, Vec<LockName>), Failure> {
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
        let reply = link.call(&Request(&[words]), by)?;
        if let Reply::Error(error) = &reply {
            return Err(refused(link, error, &Asked::Command("SCAN", &glob)));
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
            link.close();
            return Err(unexpected_reply(link.server(), "the command SCAN"));
        };
        let key = |key: &Reply| self.keys.name(std::str::from_utf8(key.as_bytes()?).ok()?);
        Ok((next, found.iter().filter_map(key).collect()))
    }

    fn holders(
        &self,
        link: &mut dyn ConnectionLike,
        names: &[LockName],
        by: Moment,
    ) -> Result<Vec<Result<LockInfo, Failure>>, Failure> {
        if names
            .iter()
            .any(|name| kinds::format_of(name.kind()).is_some())
        {
            // They have scripts of their own, and are rarely asked about.
            return Ok(names
                .iter()
                .map(|name| self.inspect(link, name, by))
                .collect());
        }
        let script = &self.dialect.scripts.inspect;
        let keys: Vec<_> = names.iter().map(|name| self.keys.lock(name)).collect();
        let words: Vec<_> = keys.iter().map(|key| [key.as_bytes()]).collect();
        let runs: Vec<_> = words
            .iter()
            .map(|keys| Run {
                keys,
                arguments: &[],
            })
            .collect();
        let (replies, outcome) = run_many(script, link, &runs, NONE, by);
        outcome?;
        let mut infos = Vec::with_capacity(names.len());
        for ((reply, key), name) in replies.iter().zip(&keys).zip(names) {
            infos.push(match (reply, info(reply)) {
                (_, Some(info)) if has_mode(reply) => {
                    // Who reads, unless the user may not ask for it, or the slot is moving.
                    Ok(self
                        .inspect(link, &name.of_kind(LockKind::Write), by)
                        .unwrap_or(info))
                }
                (_, Some(info)) => Ok(info),
                (Reply::Error(error), _) => Err(refused(link, error, &Asked::Script(script, key))),
                _ => return Err(unexpected(link, script)),
            });
        }
        Ok(infos)
    }

    /// Adds who listens and the largest token. What the server refuses to say stays unknown.
    fn tell_more(
        &self,
        link: &mut dyn ConnectionLike,
        names: &[LockName],
        infos: &mut [Result<LockInfo, Failure>],
        by: Moment,
    ) -> Result<(), Failure> {
        if names.is_empty() {
            return Ok(());
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
        let labels: Vec<_> = names.iter().zip(&*infos).map(of_holders).collect();
        let queues = |name| {
            if self.sees_queues() {
                self.queues(name)
            } else {
                Vec::new()
            }
        };
        let queues: Vec<_> = names.iter().map(queues).collect();
        let mut requests: Vec<Vec<&[u8]>> = vec![vec![b"PUBSUB", listeners]];
        requests[0].extend(channels.iter().flatten().map(String::as_bytes));
        for queue in queues.iter().flatten() {
            requests.push(vec![b"ZCOUNT", queue.as_bytes(), b"(0", b"+inf"]);
        }
        requests.extend(
            counters
                .iter()
                .chain(labels.iter().flatten())
                .map(|key| vec![&b"GET"[..], key.as_bytes()]),
        );
        let words: Vec<[&[&[u8]]; 1]> = requests.iter().map(|words| [words.as_slice()]).collect();
        let requests: Vec<_> = words.iter().map(|words| Request(words)).collect();
        let (replies, outcome) = link.call_many(&requests, by);
        outcome?;
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
            // All are taken off the reply, also those of a failure.
            let counts: Vec<_> = waiters.collect();
            // A user who may not use fair locks sees no queue, and none of its waiters.
            let count = |reply: &Reply| match reply {
                Reply::Int(count) => u64::try_from(*count).ok(),
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
        Ok(())
    }
}

fn token(reply: &Reply) -> Option<FencingToken> {
    let token = std::str::from_utf8(reply.as_bytes()?).ok()?.parse().ok()?;
    Some(FencingToken::new(token))
}
