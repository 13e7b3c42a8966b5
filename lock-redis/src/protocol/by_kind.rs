//! The operations of a format with owners, for each kind of lock. Mutexes are handled here, by the
//! scripts of the [`Dialect`](super::Dialect), and other kinds by their [`KindFormat`].

use super::exchange::{Exchange, Received};
use super::kinds::{self, KindFormat};
use super::label::Labels;
use super::mutexes_only;
use super::owned::{AcquireRequest, OwnedFormat, fill};
use crate::connection::{Batch, Text};
use crate::lua::Scripts;
use crate::wakeups::ReleaseChannel;
use lock_core::backend::{
    Abilities, AcquisitionId, Answer, Attempt, Failure, HolderInfo, LockInfo, PermitChange,
    PermitOutcome, ReplicaSupport,
};
use lock_core::{ClientId, LockName};

impl OwnedFormat {
    /// Returns the commands that the scripts for mutexes run, except the script for votes in a
    /// quorum, as an access control list writes them.
    pub(super) fn commands(&self) -> Vec<String> {
        let Scripts {
            acquire,
            release,
            close,
            renew,
            inspect,
            force,
            ..
        } = &self.dialect.scripts;
        let mut commands = Vec::new();
        for script in [acquire, release, close, renew, inspect, force] {
            for command in script.commands(None) {
                if !commands.contains(&command) {
                    commands.push(command);
                }
            }
        }
        commands
    }

    pub(super) fn abilities(&self, replication: ReplicaSupport) -> Abilities {
        Abilities::full()
            .queues_waiters(self.dialect.wakes().is_none())
            .tokens(self.has_tokens())
            .first_renewal(self.first_renewal)
            .all_kinds(self.dialect.has_all_kinds)
            .replication(replication)
    }

    /// Tries once to acquire a lock.
    pub(super) fn acquire<'a>(
        &'a self,
        attempt: &'a Attempt<'a>,
        is_tracked: &'a dyn Fn(&str, bool) -> bool,
    ) -> Result<Exchange<'a, Answer>, Failure> {
        if let Some(kind) = self.kind_format(attempt.name)? {
            let answer = kind.acquire(self, attempt, is_tracked)?;
            let key = self.keys.lock(attempt.name);
            let knows_first = attempt.name.kind().permits().is_some();
            // If the attempt has a number (`direct`), the caller may wait for a message of the
            // store, so the time to its next attempt is bounded. Otherwise the caller does not
            // wait, or cannot be notified yet. The answer of a semaphore is bounded already.
            return Ok(answer.map(move |answer| match attempt.direct {
                Some(_) if !knows_first => self.bounded(answer, true, is_tracked(&key, true)),
                _ => answer,
            }));
        }
        let key = self.keys.lock(attempt.name);
        self.refuse_apart(&key)?;
        let request = self.acquire_request(attempt, &key)?;
        Ok(self.acquire_with(attempt, key.into_owned(), request, is_tracked))
    }

    fn acquire_with<'a>(
        &'a self,
        attempt: &'a Attempt<'a>,
        key: String,
        request: AcquireRequest,
        is_tracked: &'a dyn Fn(&str, bool) -> bool,
    ) -> Exchange<'a, Answer> {
        let mut arguments = [b"".as_slice(); 5];
        let arguments = fill(&mut arguments, request.arguments());
        let (script, reserve) = (&self.dialect.scripts.acquire, request.reserve);
        let batch = Batch::script(script, &request.keys_with_queue(&key), arguments);
        if !request.has_queue() {
            return Exchange::send(batch, move |received| {
                let is_tracked = move |is_first| is_tracked(&key, is_first);
                self.acquired(received, script, reserve, attempt, is_tracked)
            });
        }
        let again = {
            let key = key.clone();
            move || self.acquire_with(attempt, key, request.without_queue(), is_tracked)
        };
        self.send_with_queue(batch, again, move |received| {
            let is_tracked = move |is_first| is_tracked(&key, is_first);
            self.acquired(received, script, reserve, attempt, is_tracked)
        })
    }

    /// Returns the argument of acquire.lua that says how the caller waits; `None` if the caller
    /// does not wait in the queue.
    pub(super) fn wait(&self, attempt: &Attempt<'_>, owner: &Text) -> Option<String> {
        let kind = attempt.name.kind();
        let enters = attempt.waits && (kind.is_queued() || attempt.direct.is_some());
        if !enters || !self.has_queue() {
            return None;
        }
        // A release grants only mutexes, and only where the command that publishes counts all
        // clients that it reaches.
        let is_granted = kinds::format_of(kind).is_none() && self.counts_all();
        let number = match attempt.direct.filter(|_| is_granted) {
            Some(number) => number.to_string(),
            None if kind.is_reader() => "r".to_owned(),
            None => "-".to_owned(),
        };
        let name = kinds::waiter(kind, owner);
        // Where releases grant nothing, a free lock is reserved for the first waiter while it is
        // present, so its presence is as short as the lease of a grant.
        let presence = match self.counts_all() {
            true => attempt.presence,
            false => attempt.direct_lease,
        };
        let presence = presence.as_millis();
        let publish = if self.counts_all() {
            self.channels().publish()
        } else {
            "-"
        };
        let granted = attempt
            .direct_lease
            .min(attempt.lease.duration())
            .as_millis();
        Some(format!("{name} {number} {presence} {granted} {publish}"))
    }

    /// Sends an attempt that uses the queue. If the server refuses the user a key or a command,
    /// sends the attempt without the queue, by `again`. If that succeeds, later attempts leave the
    /// queue out, too. If the queue was not the refused key, `again` gets the same error.
    pub(super) fn send_with_queue<'a, T: 'a>(
        &'a self,
        batch: Batch,
        again: impl FnOnce() -> Exchange<'a, T> + 'a,
        next: impl FnOnce(&mut Received<'_>) -> Exchange<'a, T> + 'a,
    ) -> Exchange<'a, T> {
        let again = move || {
            again().map(|answer| {
                self.leave_out_queues();
                answer
            })
        };
        Exchange::send_or(batch, again, next)
    }

    /// Returns the holder, if it is the owner of this acquisition.
    pub(super) fn verify<'a>(
        &'a self,
        acquisition: &'a AcquisitionId,
    ) -> Result<Exchange<'a, Option<HolderInfo>>, Failure> {
        if let Some(kind) = self.kind_format(&acquisition.name)? {
            return Ok(kind.verify(self, acquisition));
        }
        let info = self.inspect_mutex(&acquisition.name, Labels::LeftOut);
        Ok(info.map(|info| info.held_by(acquisition.owner)))
    }

    /// Reads the holders, and whatever else the store knows of the lock.
    pub(super) fn inspect<'a>(&'a self, name: &LockName, labels: Labels) -> Exchange<'a, LockInfo> {
        match self.kind_format(name) {
            Ok(Some(kind)) => kind.inspect(self, name, labels),
            Ok(None) => self.inspect_mutex(name, labels),
            Err(failure) => Exchange::Done(Err(failure)),
        }
    }

    /// Reads the holder of a mutex, or all holders of another kind of lock under its key.
    pub(super) fn inspect_mutex<'a>(
        &'a self,
        name: &LockName,
        labels: Labels,
    ) -> Exchange<'a, LockInfo> {
        let (looked, name) = (self.look(name, labels), name.clone());
        looked.then(move |info| match info {
            Some(info) => Exchange::done(info),
            None if !self.dialect.has_all_kinds => {
                Exchange::Done(Err(mutexes_only(self.dialect.name)))
            }
            None => kinds::READERS.inspect(self, &name, labels),
        })
    }

    /// Returns the format of a lock's kind; `None` for a mutex.
    ///
    /// # Errors
    ///
    /// If this format has no such kind, or the lock would share its state with another lock.
    pub(super) fn kind_format(
        &self,
        name: &LockName,
    ) -> Result<Option<&'static dyn KindFormat>, Failure> {
        let Some(kind) = kinds::format_of(name.kind()) else {
            return Ok(None);
        };
        if !self.dialect.has_all_kinds {
            return Err(mutexes_only(self.dialect.name));
        }
        kind.refuse_shared_state(&self.keys.lock(name))?;
        Ok(Some(kind))
    }

    /// Returns the formats of all kinds of locks besides the mutex; none if this dialect has only
    /// mutexes.
    fn kinds(&self) -> &'static [&'static dyn KindFormat] {
        if self.dialect.has_all_kinds {
            kinds::ALL
        } else {
            &[]
        }
    }

    /// Returns the channel on which this client listens for releases of `name`.
    pub(crate) fn watched_channel(&self, name: &LockName, client: ClientId) -> ReleaseChannel {
        let key = self.keys.lock(name);
        let kind = kinds::format_of(name.kind());
        // The key of a fair mutex is not tracked: each change would cause a report to every client,
        // although only one waiter is next.
        let is_tracked = kind.map_or(!name.kind().is_queued(), |kind| {
            kind.is_tracked(name.kind())
        });
        let queue = self.queue(name);
        let inbox = queue.as_ref().map(|queue| inbox(queue, client));
        ReleaseChannel {
            kind: self.channels(),
            name: inbox.unwrap_or_else(|| self.channel(name)),
            grants: queue.map(|_| key.to_string()),
            key: is_tracked.then(|| key.into_owned()),
            has_permits: name.kind().permits().is_some(),
            polls: self.polls.unwrap_or_default(),
        }
    }

    /// Returns the channel on which releases of `name` are published.
    pub(crate) fn channel(&self, name: &LockName) -> String {
        let key = self.keys.lock(name);
        let kind = kinds::format_of(name.kind());
        kind.map_or_else(|| self.naming.of(&key), |kind| kind.channel(&key))
    }

    /// Returns the channels of the locks of this name, of all kinds, each once.
    pub(crate) fn channels_of_all(&self, name: &LockName) -> Vec<String> {
        let key = self.keys.lock(name);
        let of_kinds = self.kinds().iter().map(|kind| kind.channel(&key));
        let mut channels: Vec<_> = [self.naming.of(&key)].into_iter().chain(of_kinds).collect();
        channels.sort_unstable();
        channels.dedup();
        channels
    }

    /// Returns the channel on which a client is notified which of its owners in the queue is next
    /// or was granted the lock; `None` without a queue. All kinds of locks of this name have the
    /// channel in common.
    pub(crate) fn inbox(&self, name: &LockName, client: ClientId) -> Option<String> {
        self.queue(name).map(|queue| inbox(&queue, client))
    }

    /// Returns for each kind besides the mutex the keys that a mutex does not have, and the
    /// commands that the kind's scripts run on these keys and on the lock.
    pub(crate) fn kinds_beside(
        &self,
        name: &LockName,
    ) -> impl Iterator<Item = (Vec<String>, Vec<String>)> {
        let key = self.keys.lock(name);
        self.kinds().iter().map(move |kind| {
            let commands = kind
                .scripts()
                .iter()
                .flat_map(|script| script.commands(None));
            (kind.names_beside(&key), commands.collect())
        })
    }

    /// See [`Admin::change_permits`](lock_core::backend::Admin::change_permits).
    pub(crate) fn change_permits<'a>(
        &'a self,
        name: &'a LockName,
        change: PermitChange,
    ) -> Result<Exchange<'a, PermitOutcome>, Failure> {
        match self.kind_format(name)? {
            Some(kind) => kind.change_permits(self, name, change),
            None => Err(kinds::no_semaphore()),
        }
    }
}

/// Returns the channel on which a client is notified which of its owners in this queue is next or
/// was granted the lock.
fn inbox(queue: &str, client: ClientId) -> String {
    format!("{queue}:{client}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Text;
    use crate::keys;
    use crate::protocol::{DIALECTS, settings};
    use lock_core::{Config, LockKind, OwnerId};
    use std::collections::{HashMap, HashSet};

    const PREFIXES: [&str; 5] = ["", "x", ":", "lock:", "lock::"];

    /// Returns names with braces at each place of a text, without braces, and with empty tags.
    fn names() -> Vec<LockName> {
        let texts = ["x", "xy", ":x", "::x", "x:", "lock:x", "x:timeout"].map(String::from);
        let mut all: HashSet<String> = texts.iter().cloned().collect();
        for text in &texts {
            for open in 0..=text.len() {
                for close in open..=text.len() {
                    let (before, inside, behind) =
                        (&text[..open], &text[open..close], &text[close..]);
                    all.insert(format!("{before}{{{inside}}}{behind}"));
                    all.insert(format!("{before}{{{inside}}}{behind}{{}}"));
                    all.insert(format!("{before}{{{{{inside}}}}}{behind}"));
                    all.insert(format!("{before}{{{inside}}}{{{behind}}}"));
                }
            }
        }
        all.iter()
            .filter_map(|text| LockName::new(text).ok())
            .collect()
    }

    /// Returns true for names that Redisson's format prescribes, which two locks may therefore
    /// share.
    fn is_prescribed(name: &str) -> bool {
        let is_part = name.ends_with(":timeout") || name.contains(":rwlock_timeout:");
        name.starts_with("redisson_") || is_part && !name.starts_with("distlock_")
    }

    /// Returns all keys, channels and inboxes of a lock except its own key, including the keys of
    /// an owner.
    fn derived(format: &OwnedFormat, name: &LockName, owner: OwnerId) -> Vec<String> {
        let key = format.keys.lock(name);
        let text = Text::owner(owner);
        let mut all: Vec<_> = format.names_beside(name).collect();
        all.extend(format.queue(name));
        all.extend(format.kinds_beside(name).flat_map(|(names, _)| names));
        all.extend(format.channels_of_all(name));
        all.extend(format.inbox(name, owner.client()));
        all.extend([keys::tombstone(&key, &text), keys::label(&key)]);
        all.push(keys::label_of(&key, text.as_str()));
        all
    }

    /// Returns the formats of all dialects, each with all prefixes that it can have.
    fn formats() -> Vec<OwnedFormat> {
        let words = [
            "redisson",
            "token",
            "token,wakes=python-redis-lock",
            "token,wakes=spring-integration",
        ];
        assert_eq!(words.len(), DIALECTS.len(), "all of them");
        let urls = words.into_iter().flat_map(|format| {
            PREFIXES.map(|prefix| format!("redis://h?prefix={prefix}&format={format}"))
        });
        let configs = urls.map(|url| Config::from_url(&url).unwrap());
        configs
            .filter_map(|config| settings::read_owned_format(&config).ok())
            .collect()
    }

    #[test]
    fn different_locks_share_no_key_channel_or_inbox_of_ours() {
        let (names, owner) = (names(), OwnerId::new(ClientId::random(), 7));
        assert!(names.len() > 100, "{}", names.len());
        let mut pairs = 0;
        // The names of all formats are compared together, because clients with other settings may
        // use the same server.
        let mut found: HashMap<(String, bool), String> = HashMap::new();
        for format in &formats() {
            let wakes_others = format.dialect.wakes().is_some();
            for name in &names {
                let key = format.keys.lock(name).into_owned();
                for derived in derived(format, name, owner) {
                    if is_prescribed(&derived) {
                        continue;
                    }
                    let is_near = keys::slot(&derived) == keys::slot(&key);
                    assert!(
                        is_near || !derived.starts_with("distlock_"),
                        "{derived} of {key}"
                    );
                    let place = (derived, wakes_others);
                    let before = found.entry(place).or_insert_with(|| key.clone());
                    assert_eq!(*before, key, "both have a key that is called the same");
                    pairs += 1;
                }
            }
        }
        assert!(pairs > 10_000, "{pairs}");
    }

    #[test]
    fn different_semaphores_share_no_permits() {
        let kind = LockKind::Permits { limit: 2, count: 1 };
        let mut found: HashMap<String, String> = HashMap::new();
        let mut refused = 0;
        for format in formats().iter().filter(|it| it.dialect.has_all_kinds) {
            for name in names() {
                let key = format.keys.lock(&name).into_owned();
                match format.kind_format(&name.of_kind(kind)) {
                    Ok(_) => {
                        let permits = keys::permits(&key);
                        let before = found.entry(permits).or_insert_with(|| key.clone());
                        assert_eq!(*before, key, "both have these permits");
                    }
                    Err(failure) => {
                        assert!(failure.error().is_misuse(), "{failure:?}");
                        assert!(keys::is_one_tag(&key), "{key}");
                        refused += 1;
                    }
                }
            }
        }
        assert!(refused > 0);
    }

    /// A grant that arrives in an inbox is a grant of that inbox's lock.
    #[test]
    fn only_the_lock_of_an_inbox_is_granted_there() {
        let config = Config::from_url("redis://h?prefix=app:").unwrap();
        let format = settings::read_owned_format(&config).unwrap();
        let name = LockName::new("a b").unwrap();
        let of_kind = |kind| format.watched_channel(&name.of_kind(kind), ClientId::random());
        assert_eq!(of_kind(LockKind::Fair).grants.as_deref(), Some("app:a b"));
        assert_eq!(of_kind(LockKind::Mutex).grants.as_deref(), Some("app:a b"));
    }
}
