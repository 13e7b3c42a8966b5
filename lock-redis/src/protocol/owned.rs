//! [`OwnedFormat`]: formats that store the owner under the key, so that a release or a renewal
//! changes only a lock of its own owner. These formats share this code, and differ only in the
//! [`Dialect`].

use super::dialect::Dialect;
use super::exchange::{Exchange, Received, is_refusal};
use super::label::{self, Labels};
use super::script_call::{ScriptCall, add_reads};
use super::wakes::Naming;
use super::{FOR_EVER, busy_from_pttl, remaining};

use crate::connection::error_mapping;
use crate::connection::{Batch, Reply, Text};
use crate::keys::{self, Keys};
use crate::lua::join::Join;
use crate::lua::{Script, Scripts};
use crate::receipt::{GrantReceipt, granted, token_range};
use crate::wakeups::{ChannelKind, PollInterval, Tracking, UNTRACKED};
use lock_core::backend::{
    AcquisitionId, Answer, Attempt, Failure, Grant, HolderInfo, LockInfo, ReleaseOptions, Tokens,
    Tombstone,
};
use lock_core::{Config, Error, LockName, OwnerText, TokenPolicy, WriterPriority};
use std::borrow::Cow;
use std::iter::once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The shortest interval of polls for a `token` lock whose owner looks like one of distlock's.
/// Waiters poll such a lock, because a foreign client may write such an owner and publish no
/// release.
const FALLBACK_POLL: Duration = Duration::from_secs(1);

/// The time from a grant to the first renewal, if a third of the lease is longer, so that the
/// server reports changes of the lock from then on. A hold that ends sooner needs no such renewal.
const MOMENT: Duration = Duration::from_secs(1);

/// If releases grant nothing, the number of attempts that a waiter makes in the time for which it
/// counts as present in the queue after one attempt.
const ATTEMPTS_OF_A_PRESENCE: u32 = 3;

/// A format that stores owners, with the settings that it depends on.
#[derive(Debug)]
pub(crate) struct OwnedFormat {
    pub(crate) dialect: &'static Dialect,
    pub(crate) keys: Keys,
    /// The names of the release channels.
    pub(super) naming: Naming,
    pub(crate) policy: TokenPolicy,
    keep: Duration,
    /// The interval at which a waiter polls if the key's changes are not reported. `None` if all
    /// holders are expected to publish their releases, and `poll=` is not set: then a waiter polls
    /// at [`UNTRACKED`].
    pub(super) polls: Option<PollInterval>,
    /// The shortest lifetime of a tombstone, however short the lease is. Otherwise a late request
    /// of the owner could arrive after the end of the tombstone, and acquire the lock.
    shortest_tombstone: Duration,
    /// The time from a grant to the first renewal, so that changes of the lock are reported; `None`
    /// without tracking.
    pub(super) first_renewal: Option<Duration>,
    /// True if a waiting writer keeps new readers out.
    pub(super) writers_first: bool,
    /// True if keys may be in different slots, and so on different nodes.
    has_slots: AtomicBool,
    /// True if releases are published on sharded channels. Settled before the first request and not
    /// changed afterwards, because waiters and holders must use the same channel.
    sharded: AtomicBool,
    /// True once the server has refused this user the keys of labels. Labels are left out from then
    /// on.
    labels_refused: AtomicBool,
    /// True if queues of waiters are not used: on the nodes of a quorum, and once the server has
    /// refused this user a key or a command of queues.
    are_queues_left_out: AtomicBool,
}

/// Reads the reply of the script `inspect`; `None` if the script cannot have replied this.
pub(super) fn info(reply: &Reply) -> Option<LockInfo> {
    match reply.as_array()? {
        [Reply::Int(-2)] => Some(LockInfo::FREE),
        [Reply::Int(pttl), Reply::Bulk(owner), Reply::Bulk(holds), ..] => {
            let holds = std::str::from_utf8(holds)
                .ok()
                .and_then(|holds| holds.parse().ok());
            Some(LockInfo::held(HolderInfo::new(
                OwnerText::new(&String::from_utf8_lossy(owner)),
                remaining(*pttl),
                holds.unwrap_or(1),
            )))
        }
        _ => None,
    }
}

/// Returns true if this is a reply of the script `inspect` about a read-write lock.
pub(super) fn has_mode(reply: &Reply) -> bool {
    matches!(reply.as_array(), Some([_, _, _, _]))
}

impl OwnedFormat {
    /// Returns the retention of a token counter, for [`TokenPolicy::Expire`]: the value of the
    /// counter is a timestamp, and its key expires this long after that time, or up to 100 s
    /// earlier.
    pub(crate) fn keep(&self) -> Duration {
        self.keep
    }

    /// Creates a format with the settings in `config`, which was checked.
    pub(super) fn new(
        dialect: &'static Dialect,
        config: &Config,
        polls: Option<PollInterval>,
    ) -> Self {
        Self {
            dialect,
            polls,
            keys: Keys::new(config.prefix()),
            naming: Naming::new(dialect, config.prefix()),
            policy: config.tokens(),
            keep: config.token_retention(),
            shortest_tombstone: config.command_timeout() * 2,
            first_renewal: Tracking::of(config)
                .is_ok_and(|it| it == Tracking::Auto)
                .then_some(MOMENT),
            writers_first: config.writers() == WriterPriority::First,
            has_slots: AtomicBool::new(false),
            sharded: AtomicBool::new(false),
            labels_refused: AtomicBool::new(false),
            are_queues_left_out: AtomicBool::new(false),
        }
    }

    /// Notes that each key may be in a slot of its own.
    pub(super) fn use_slots(&self) {
        self.has_slots.store(true, Ordering::Relaxed);
    }

    /// See [`Format::joins`](super::Format::joins).
    pub(super) fn joins(&self) -> &'static [Join] {
        if self.has_slots() {
            &[]
        } else {
            self.dialect.joins
        }
    }

    pub(super) fn has_slots(&self) -> bool {
        self.has_slots.load(Ordering::Relaxed)
    }

    /// Sets on which channels releases are published: on sharded channels, whose messages reach
    /// only the nodes of the key's slot, or on plain channels.
    pub(super) fn use_sharded_channels(&self, sharded: bool) {
        self.sharded.store(sharded, Ordering::Relaxed);
    }

    /// Returns the command that publishes a release.
    pub(super) fn publish(&self) -> &'static [u8] {
        self.channels().publish().as_bytes()
    }

    /// Returns true if the reply to the command that publishes counts all listeners that the
    /// message reaches. On a plain channel of a cluster, the message also reaches listeners on
    /// other nodes, which the reply does not count.
    pub(super) fn counts_all(&self) -> bool {
        !self.has_slots() || self.channels() == ChannelKind::Sharded
    }

    /// Returns the kind of the release channels.
    pub(crate) fn channels(&self) -> ChannelKind {
        if self.sharded.load(Ordering::Relaxed) {
            ChannelKind::Sharded
        } else {
            ChannelKind::Plain
        }
    }

    /// Reads the holder of a mutex, or of another kind of lock under its key. `None` if the key is
    /// a read-write lock with so many holders that the script names none.
    pub(super) fn look<'a>(
        &'a self,
        name: &LockName,
        labels: Labels,
    ) -> Exchange<'a, Option<LockInfo>> {
        let key = self.keys.lock(name);
        let script = &self.dialect.scripts.inspect;
        let mut batch = Batch::script(script, &[key.as_bytes()], &[]);
        add_reads(&mut batch, &self.reads(labels, || vec![keys::label(&key)]));
        Exchange::call(batch, |received| {
            let replies = received.take_replies();
            let (reply, found) = (&replies[0], &replies[1..]);
            self.note_refusal(found);
            let mut info = info(reply).ok_or_else(|| received.unexpected(script))?;
            let is_named = |holder: &HolderInfo| !holder.owner.as_str().is_empty();
            if has_mode(reply) && !info.holder.as_ref().is_some_and(is_named) {
                return Ok(None);
            }
            label::add(&mut info, found);
            Ok(Some(info))
        })
    }

    /// Returns the keys of labels if labels are to be read, and no keys otherwise.
    pub(super) fn reads(&self, labels: Labels, keys: impl FnOnce() -> Vec<String>) -> Vec<String> {
        if labels == Labels::Read && self.has_labels() {
            keys()
        } else {
            Vec::new()
        }
    }

    /// Returns true if the keys of labels are used.
    pub(super) fn has_labels(&self) -> bool {
        !self.labels_refused.load(Ordering::Relaxed)
    }

    /// Records if one of these replies refuses the keys of labels to this user. Labels are left out
    /// from then on: each further use would be refused as well, and the server logs refusals.
    pub(super) fn note_refusal(&self, replies: &[Reply]) {
        note_refusal(&self.labels_refused, replies);
    }

    /// Returns true if queues of waiters are used.
    pub(super) fn sees_queues(&self) -> bool {
        !self.are_queues_left_out.load(Ordering::Relaxed)
    }

    /// Stops the use of queues of waiters. Called for the nodes of a quorum, because each would
    /// have a queue of its own, and when the server refuses queues to this user.
    pub(super) fn leave_out_queues(&self) {
        self.are_queues_left_out.store(true, Ordering::Relaxed);
    }

    /// Records if one of these replies refuses the key of a queue to this user. Queues are not used
    /// from then on, for the reasons in [`note_refusal`](Self::note_refusal).
    pub(super) fn note_refused_queue(&self, replies: &[Reply]) {
        note_refusal(&self.are_queues_left_out, replies);
    }

    /// Returns the keys that a lock needs besides its own: a tombstone and, if the format uses
    /// them, the counter of its tokens and the list of foreign waiters. The [queue](Self::queue) is
    /// not among them, because a lock works without a queue.
    pub(crate) fn names_beside(&self, name: &LockName) -> impl Iterator<Item = String> {
        let key = self.keys.lock(name);
        let token = self.has_tokens().then(|| keys::token_counter(&key));
        let tombstone = keys::tombstone(&key, &Text::of(0));
        let list = self.list(&key);
        token.into_iter().chain([tombstone]).chain(list)
    }

    /// Returns the list to which the script that frees `key` pushes a signal; `None` if the format
    /// has no such list.
    pub(super) fn list(&self, key: &str) -> Option<String> {
        self.dialect.wakes().and_then(|wakes| wakes.list(key))
    }

    /// Refuses a key whose list is in another slot of the cluster. No script could use both the key
    /// and the list, so the lock could not be released. The library that uses such lists has the
    /// same limit, and fails with `CROSSSLOT`.
    pub(super) fn refuse_apart(&self, key: &str) -> Result<(), Failure> {
        match self
            .list(key)
            .filter(|list| self.has_slots() && keys::slot(list) != keys::slot(key))
        {
            Some(list) => Err(Failure::Refused(Error::configuration(
                error_mapping::apart(&list),
            ))),
            None => Ok(()),
        }
    }

    /// Returns the answer for a lock that another client holds, by the key's `PTTL`. If the waiter
    /// polls, the time in the answer is at most the time until its next poll. `is_told` is true if
    /// the holder is expected to publish its release, and `is_tracked` if the server reports
    /// changes of the key.
    pub(crate) fn busy(&self, pttl: i64, is_told: bool, is_tracked: bool) -> Answer {
        self.bounded(busy_from_pttl(pttl), is_told, is_tracked)
    }

    /// Limits the time in a busy answer to the time until the waiter's next poll, if the waiter
    /// polls.
    pub(super) fn bounded(&self, answer: Answer, is_told: bool, is_tracked: bool) -> Answer {
        let pause = self.poll_pause(is_told, is_tracked);
        match (answer, pause) {
            (Answer::Busy(left), Some(pause)) => {
                Answer::Busy(Some(left.map_or(pause, |left| left.min(pause))))
            }
            (Answer::BusyWithoutExpiry(_), pause) => Answer::BusyWithoutExpiry(pause),
            (answer, _) => answer,
        }
    }

    /// Returns the time until a waiter's next poll; `None` if the server reports changes of the
    /// key.
    fn poll_pause(&self, is_told: bool, is_tracked: bool) -> Option<Duration> {
        let polls = match self.polls {
            _ if is_tracked => return None,
            None => UNTRACKED,
            // A foreign client may write owners as distlock does, and publish no release.
            Some(polls) if is_told && self.dialect.detects_silent_holders => {
                polls.at_least(FALLBACK_POLL)
            }
            // A holder may publish nothing although it is expected to, as is the case with
            // Redisson's spin locks.
            Some(polls) => polls,
        };
        Some(polls.pause())
    }

    /// Returns the request that acquires a lock.
    pub(super) fn acquire_request(
        &self,
        attempt: &Attempt<'_>,
        key: &str,
    ) -> Result<AcquireRequest, Failure> {
        let reserve = self.reserve(attempt.tokens)?;
        let owner = Text::owner(attempt.owner);
        let keep = match self.policy {
            TokenPolicy::Expire => Text::millis(self.keep()),
            _ => Text::number(0),
        };
        Ok(AcquireRequest {
            token: keys::token_counter(key),
            tombstone: keys::tombstone(key, &owner),
            queue: self.queue_before(attempt),
            lease: Text::number(attempt.lease.as_millis()),
            wait: self.wait(attempt, &owner),
            owner,
            keep,
            set_aside: Text::number(reserve.unwrap_or(0).into()),
            reserve,
        })
    }

    /// Returns true if waiters enter a queue in the store.
    pub(super) fn has_queue(&self) -> bool {
        self.dialect.wakes().is_none() && self.sees_queues()
    }

    /// Returns the queue of this lock if queues are used, and the attempt must not acquire the lock
    /// before earlier waiters.
    pub(super) fn queue_before(&self, attempt: &Attempt<'_>) -> Option<String> {
        let goes_behind = attempt.waits || attempt.name.kind().is_queued();
        goes_behind.then(|| self.queue(attempt.name)).flatten()
    }

    /// Returns the queue of the waiters for the locks of this name, of all kinds; `None` if queues
    /// are not used.
    pub(super) fn queue(&self, name: &LockName) -> Option<String> {
        self.has_queue().then(|| keys::queue(&self.keys.lock(name)))
    }

    /// Reads the reply of the script that acquires a lock. `reserve` must be that of the request.
    pub(super) fn acquired<'a>(
        &'a self,
        received: &mut Received<'_>,
        script: &'static Script,
        reserve: Option<u32>,
        attempt: &'a Attempt<'a>,
        is_tracked: impl FnOnce(bool) -> bool + 'a,
    ) -> Exchange<'a, Answer> {
        let unexpected = |received: &mut Received<'_>| {
            let failure = received.unexpected(script);
            Exchange::Done(Err(failure))
        };
        match (received.reply(), reserve) {
            (Reply::Int(1), None) => Exchange::done(Answer::Granted(Grant::new(None))),
            (Reply::Bulk(first), Some(reserve)) => {
                let first = std::str::from_utf8(first)
                    .ok()
                    .and_then(|first| first.parse().ok());
                match first.and_then(|first| token_range(first, reserve)) {
                    Some(tokens) => Exchange::done(Answer::Granted(granted(Some(tokens), reserve))),
                    None => unexpected(received),
                }
            }
            (Reply::Array(items), _) => match items[..] {
                [
                    Reply::Int(0),
                    Reply::Int(pttl),
                    Reply::Int(told),
                    ref first @ ..,
                ] => {
                    // Only the first waiter of a queue has the key tracked, or polls: of all
                    // waiters, it alone may acquire the lock after a release that is not published.
                    let is_first = !matches!(first, [Reply::Int(0)]);
                    if matches!(first, [Reply::Int(2)]) {
                        self.leave_out_queues();
                    }
                    let busy = move || {
                        let is_tracked = attempt.waits && is_tracked(is_first);
                        let answer = match attempt.waits && is_first {
                            true => self.busy(pttl, told == 1, is_tracked),
                            false => busy_from_pttl(pttl),
                        };
                        match (self.counts_all(), answer) {
                            (false, Answer::Busy(left)) if attempt.waits => {
                                let again = attempt.direct_lease / ATTEMPTS_OF_A_PRESENCE;
                                Answer::Busy(Some(left.map_or(again, |left| left.min(again))))
                            }
                            (_, answer) => answer,
                        }
                    };
                    if pttl == FOR_EVER {
                        // Every lock of this library has an expiry. The inspection fails if the
                        // value under the key is no lock at all.
                        let info = self.inspect(attempt.name, Labels::LeftOut);
                        return info.then(move |_| Exchange::done(busy()));
                    }
                    Exchange::done(busy())
                }
                _ => unexpected(received),
            },
            _ => unexpected(received),
        }
    }

    /// Returns true if grants carry tokens.
    pub(crate) fn has_tokens(&self) -> bool {
        self.policy != TokenPolicy::Off
    }

    /// Returns how many tokens to set aside behind the first; `None` if no tokens are made.
    fn reserve(&self, tokens: Tokens) -> Result<Option<u32>, Failure> {
        match (self.policy, tokens) {
            (TokenPolicy::Off, _) | (_, Tokens::None) => Ok(None),
            (_, Tokens::Assign { reserve }) => Ok(Some(reserve)),
            (policy, tokens) => Err(Failure::NotSent(Error::new(
                lock_core::ErrorKind::Unsupported,
                format!("one Redis server cannot make {tokens:?} with {policy:?}"),
            ))),
        }
    }

    /// Returns the lifetime of the tombstone that this release writes; `None` if it writes none.
    pub(super) fn tombstone_lifetime(
        &self,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
    ) -> Option<Duration> {
        let is_wanted = options.tombstone != Tombstone::None;
        is_wanted.then(|| acquisition.lease.duration().max(self.shortest_tombstone))
    }

    /// Returns the request that ends a hold.
    pub(super) fn release_request<'a>(
        &self,
        acquisition: &'a AcquisitionId,
        options: ReleaseOptions,
    ) -> ReleaseRequest<'a> {
        let key = self.keys.lock(&acquisition.name);
        // Unused tokens are returned only if the counter is still where our grant left it, which
        // only the receipt shows.
        let receipt = acquisition.receipt.get::<GrantReceipt>();
        let unused = options
            .last_used
            .zip(receipt.and_then(|it| it.last))
            .filter(|(used, last)| used < last);
        let tombstone = self
            .tombstone_lifetime(acquisition, options)
            .unwrap_or_default();
        let owner = Text::owner(acquisition.owner);
        let is_plain = unused.is_none() && tombstone.is_zero() && options.kept.is_none();
        let closing = (!is_plain).then(|| Closing {
            unused: unused.map(|(used, last)| [used, last].map(Text::of)),
            lifetime: Text::millis(tombstone),
            kept: options
                .kept
                .map(|it| [Text::owner(it.owner), Text::number(it.time.as_millis())]),
            ..Closing::nothing(&key, &owner)
        });
        let Scripts { release, close, .. } = &self.dialect.scripts;
        ReleaseRequest {
            script: if closing.is_some() { close } else { release },
            channel: self.naming.of(&key),
            owner,
            publish: self.publish(),
            turns: self.turns(options, receipt),
            closing,
            list: self.list(&key),
            key,
        }
    }

    /// Returns the argument `turns` of release.lua and close.lua.
    fn turns(&self, options: ReleaseOptions, receipt: Option<&GrantReceipt>) -> Option<String> {
        if let Some(turns) = self.turns_of_all() {
            Some(turns.to_owned())
        } else if self.dialect.wakes().is_some() {
            None
        } else if options.keeps_place {
            Some("stay".to_owned())
        } else {
            receipt?.turns.as_deref().map(str::to_owned)
        }
    }

    /// Returns the argument `turns` of the scripts that free a lock regardless of its holder;
    /// `None` if the argument is left out.
    pub(super) fn turns_of_all(&self) -> Option<&'static str> {
        if self.dialect.wakes().is_some() {
            None
        } else if !self.sees_queues() {
            Some("none")
        } else {
            (!self.counts_all()).then_some("free")
        }
    }
}

fn note_refusal(is_refused: &AtomicBool, replies: &[Reply]) {
    if replies.iter().any(is_refusal) {
        is_refused.store(true, Ordering::Relaxed);
    }
}

/// A request that acquires a lock.
pub(super) struct AcquireRequest {
    token: String,
    tombstone: String,
    queue: Option<String>,
    lease: Text,
    owner: Text,
    keep: Text,
    set_aside: Text,
    pub(super) reserve: Option<u32>,
    wait: Option<String>,
}

impl AcquireRequest {
    pub(super) fn keys<'a>(&'a self, key: &'a str) -> [&'a [u8]; 3] {
        [
            key.as_bytes(),
            self.token.as_bytes(),
            self.tombstone.as_bytes(),
        ]
    }

    /// Returns the keys of acquire.lua for a mutex.
    pub(super) fn keys_with_queue<'a>(&'a self, key: &'a str) -> [&'a [u8]; 4] {
        let [lock, counter, tombstone] = self.keys(key);
        let queue = self.queue.as_ref().map_or(lock, |queue| queue.as_bytes());
        [lock, counter, tombstone, queue]
    }

    /// Returns true if the request names a queue.
    pub(super) fn has_queue(&self) -> bool {
        self.queue.is_some()
    }

    /// Returns the request without the queue, which the server refuses to this user.
    pub(super) fn without_queue(self) -> Self {
        Self {
            queue: None,
            wait: None,
            ..self
        }
    }

    pub(super) fn arguments(&self) -> impl Iterator<Item = &[u8]> {
        let (has_keep, has_reserve) = (self.reserve.is_some(), self.reserve.unwrap_or(0) > 0);
        let wait = self.wait.as_ref().map(|wait| wait.as_bytes());
        let count = match (wait, has_keep, has_reserve) {
            (Some(_), ..) => 5,
            (None, _, true) => 4,
            (None, true, false) => 3,
            (None, false, false) => 2,
        };
        let keep = has_keep.then_some(self.keep.as_bytes());
        let reserve = has_reserve.then_some(self.set_aside.as_bytes());
        let words = [
            self.lease.as_bytes(),
            self.owner.as_bytes(),
            keep.unwrap_or_default(),
            reserve.unwrap_or_default(),
            wait.unwrap_or_default(),
        ];
        words.into_iter().take(count)
    }
}

/// A request that ends a hold.
pub(super) struct ReleaseRequest<'a> {
    pub(super) script: &'static Script,
    pub(super) key: Cow<'a, str>,
    pub(super) channel: String,
    owner: Text,
    publish: &'static [u8],
    turns: Option<String>,
    /// The data for a script that does more than free the lock.
    closing: Option<Closing>,
    /// The last key: the list of a foreign client's waiters.
    list: Option<String>,
}

/// The data of a release that does more than free the lock: it returns unused tokens, writes a
/// tombstone for the owner, or passes the lock to the owner of a minimum hold.
struct Closing {
    token: String,
    tombstone: String,
    /// The last token that was used, and the last that was set aside.
    unused: Option<[Text; 2]>,
    /// The lifetime of the tombstone; 0 if none is written.
    lifetime: Text,
    /// The owner of the minimum hold, to which the lock passes, and the time of that hold in
    /// milliseconds.
    kept: Option<[Text; 2]>,
}

impl Closing {
    fn nothing(key: &str, owner: &Text) -> Self {
        let (token, tombstone) = (keys::token_counter(key), keys::tombstone(key, owner));
        Self {
            token,
            tombstone,
            unused: None,
            lifetime: Text::number(0),
            kept: None,
        }
    }
}

impl ReleaseRequest<'_> {
    /// Returns a call of `script`, which has the keys and arguments of close.lua.
    pub(super) fn closed_by(mut self, script: &'static Script) -> ScriptCall {
        let (key, owner) = (&self.key, &self.owner);
        self.closing
            .get_or_insert_with(|| Closing::nothing(key, owner));
        let (mut keys, mut arguments) = ([b"".as_slice(); 4], [b"".as_slice(); 9]);
        let keys = self
            .keys(&mut keys)
            .iter()
            .map(|key| String::from_utf8_lossy(key).into());
        let arguments = self
            .arguments(&mut arguments)
            .iter()
            .map(|word| word.to_vec());
        ScriptCall {
            script,
            keys: keys.collect(),
            arguments: arguments.collect(),
        }
    }

    /// Returns the arguments of release.lua without `turns`; close.lua begins with the same ones.
    pub(super) fn told(&self) -> [&[u8]; 3] {
        [self.owner.as_bytes(), self.channel.as_bytes(), self.publish]
    }

    pub(super) fn keys<'a>(&'a self, room: &'a mut [&'a [u8]; 4]) -> &'a [&'a [u8]] {
        let closing = self
            .closing
            .iter()
            .flat_map(|it| [it.token.as_bytes(), it.tombstone.as_bytes()]);
        let list = self.list.iter().map(String::as_bytes);
        fill(room, once(self.key.as_bytes()).chain(closing).chain(list))
    }

    pub(super) fn arguments<'a>(&'a self, room: &'a mut [&'a [u8]; 9]) -> &'a [&'a [u8]] {
        let turns = self.turns.as_ref().map(|turns| turns.as_bytes());
        let closing = self.closing.iter().flat_map(|it| {
            let [used, aside] = match &it.unused {
                Some(unused) => unused.each_ref().map(Text::as_bytes),
                None => [b"".as_slice(); 2],
            };
            let kept = it.kept.iter().flatten().map(Text::as_bytes);
            let none = [b"".as_slice(); 2].into_iter();
            let none = none.filter(|_| turns.is_some() && it.kept.is_none());
            [used, aside, it.lifetime.as_bytes()]
                .into_iter()
                .chain(kept)
                .chain(none)
        });
        fill(room, self.told().into_iter().chain(closing).chain(turns))
    }
}

/// Writes these words to the beginning of `room`, and returns them.
pub(super) fn fill<'a>(
    room: &'a mut [&'a [u8]],
    words: impl Iterator<Item = &'a [u8]>,
) -> &'a [&'a [u8]] {
    let mut count = 0;
    for (place, word) in room.iter_mut().zip(words) {
        *place = word;
        count += 1;
    }
    &room[..count]
}
