//! What a client asks of a format with owners, for each kind of lock: mutexes here, by the scripts
//! of the [`Dialect`](super::Dialect), and the others by their [`KindFormat`].

use super::ending::Ending;
use super::kinds::{self, KindFormat};
use super::label::{LabelWrite, Labels};
use super::owned::{OwnedFormat, fill, renew_each};
use super::run::{Run, run, submit};
use super::script_call::ScriptCall;
use super::{
    WireFormat, mutexes_only, released, token, unexpected, unexpected_reply,
    without_own_subscription,
};
use crate::connection::error_mapping::{self, Asked};
use crate::connection::{ConnectionLike, Reply, ReplyCheck, SharedConnection};
use crate::keys::Keys;
use crate::lua::Scripts;
use crate::wakeups::ReleaseChannel;
use lock_core::backend::{
    Abilities, AcquisitionId, Answer, Attempt, Failure, Grant, HolderInfo, LockInfo, PermitChange,
    PermitOutcome, Release, ReleaseOptions, Renewal, RenewalRequest, ReplicaSupport, Tokens,
};
use lock_core::{ClientId, LockName, Moment};
use std::iter::once;
use std::sync::Arc;

impl WireFormat for OwnedFormat {
    fn name(&self) -> &'static str {
        self.dialect.name
    }

    fn keys(&self) -> &Keys {
        &self.keys
    }

    fn commands(&self) -> Vec<String> {
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

    fn abilities(&self, replication: ReplicaSupport) -> Abilities {
        Abilities::full()
            .tokens(self.has_tokens())
            .first_renewal(self.first_renewal)
            .all_kinds(self.dialect.has_all_kinds)
            .replication(replication)
    }

    fn owned(&self) -> Option<&OwnedFormat> {
        Some(self)
    }

    fn acquire(
        &self,
        link: &mut dyn ConnectionLike,
        attempt: &Attempt<'_>,
        is_tracked: &dyn Fn(&str) -> bool,
        by: Moment,
    ) -> Result<Answer, Failure> {
        if let Some(kind) = self.kind_format(attempt.name)? {
            return kind.acquire(self, link, attempt, is_tracked, by);
        }
        if let Tokens::Propose { .. } | Tokens::Granted { .. } = attempt.tokens {
            return self
                .propose(link, attempt, None, is_tracked, by)?
                .into_answer(link.server());
        }
        let key = self.keys.lock(attempt.name);
        self.refuse_apart(&key)?;
        if self.takes_by_set() && token::take_by_set(link, &key, attempt, by)? {
            return Ok(Answer::Granted(Grant::new(None)));
        }
        let request = self.acquire_request(attempt, &key)?;
        let mut arguments = [b"".as_slice(); 4];
        let arguments = fill(&mut arguments, request.arguments());
        let script = &self.dialect.scripts.acquire;
        let reply = run(script, link, &request.keys(&key), arguments, by)?;
        let is_tracked = || is_tracked(&key);
        self.acquired(
            link,
            script,
            &reply,
            request.reserve,
            attempt.name,
            is_tracked,
            by,
        )
    }

    fn release(
        &self,
        link: &mut dyn ConnectionLike,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure> {
        self.ending(acquisition, options)?.run(link, by)
    }

    fn inspect(
        &self,
        link: &mut dyn ConnectionLike,
        name: &LockName,
        by: Moment,
    ) -> Result<LockInfo, Failure> {
        self.inspect_kind(link, name, Labels::LeftOut, by)
    }

    fn inspect_with_label(
        &self,
        link: &mut dyn ConnectionLike,
        name: &LockName,
        by: Moment,
    ) -> Result<LockInfo, Failure> {
        self.inspect_kind(link, name, Labels::Read, by)
    }

    fn force(
        &self,
        link: &mut dyn ConnectionLike,
        name: &LockName,
        by: Moment,
    ) -> Result<bool, Failure> {
        if let Some(kind) = self.kind_format(name)? {
            let ending = Ending::of_kind(self, kind, kind.force(self, name));
            return Ok(ending.run(link, by)? != Release::Gone);
        }
        let key = self.keys.lock(name);
        self.refuse_apart(&key)?;
        let (channel, list) = (self.naming.of(&key), self.list(&key));
        let mut keys = [b"".as_slice(); 2];
        let keys = fill(
            &mut keys,
            once(key.as_bytes()).chain(list.iter().map(String::as_bytes)),
        );
        let told = [channel.as_bytes(), self.publish()];
        let script = &self.dialect.scripts.force;
        let reply = run(script, link, keys, &told, by)?;
        match released(link.server(), self.channels(), || channel, &reply, 0) {
            Some(release) => Ok(release != Release::Gone),
            None => Err(unexpected(link, script)),
        }
    }

    fn verify(
        &self,
        link: &mut dyn ConnectionLike,
        acquisition: &AcquisitionId,
        by: Moment,
    ) -> Result<Option<HolderInfo>, Failure> {
        if let Some(kind) = self.kind_format(&acquisition.name)? {
            return kind.verify(self, link, acquisition, by);
        }
        Ok(self
            .inspect(link, &acquisition.name, by)?
            .held_by(acquisition.owner))
    }
}

impl OwnedFormat {
    /// The holders, and what the store knows besides.
    pub(super) fn inspect_kind(
        &self,
        link: &mut dyn ConnectionLike,
        name: &LockName,
        labels: Labels,
        by: Moment,
    ) -> Result<LockInfo, Failure> {
        match self.kind_format(name)? {
            Some(kind) => kind.inspect(self, link, name, labels, by),
            None => self.inspect_mutex(link, name, labels, by),
        }
    }

    /// The holder of a mutex, or all that share another kind of lock under its key.
    pub(super) fn inspect_mutex(
        &self,
        link: &mut dyn ConnectionLike,
        name: &LockName,
        labels: Labels,
        by: Moment,
    ) -> Result<LockInfo, Failure> {
        match self.look(link, name, labels, by)? {
            Some(info) => Ok(info),
            None if !self.dialect.has_all_kinds => Err(mutexes_only(self.dialect.name)),
            None => kinds::READERS.inspect(self, link, name, labels, by),
        }
    }

    /// The format of a lock's kind; `None` for a mutex.
    ///
    /// # Errors
    ///
    /// Where there is none beside this one, or the name would share another lock's state.
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

    /// The formats of the other kinds beside this one.
    fn kinds(&self) -> &'static [&'static dyn KindFormat] {
        if self.dialect.has_all_kinds {
            kinds::ALL
        } else {
            &[]
        }
    }

    /// Where this client listens for releases of `name`.
    pub(crate) fn watched_channel(&self, name: &LockName, client: ClientId) -> ReleaseChannel {
        let key = self.keys.lock(name);
        let kind = kinds::format_of(name.kind());
        let is_tracked = kind.is_none_or(KindFormat::is_tracked);
        let inbox = kind
            .and_then(|kind| kind.queue(&key))
            .map(|queue| inbox(&queue, client));
        ReleaseChannel {
            kind: self.channels(),
            name: inbox.unwrap_or_else(|| self.channel(name)),
            grants: kind
                .and_then(|kind| kind.queue(&key))
                .map(|_| key.to_string()),
            key: is_tracked.then(|| key.into_owned()),
            polls: self.polls.unwrap_or_default(),
        }
    }

    /// Where releases of `name` are published.
    pub(crate) fn channel(&self, name: &LockName) -> String {
        let key = self.keys.lock(name);
        let kind = kinds::format_of(name.kind());
        kind.map_or_else(|| self.naming.of(&key), |kind| kind.channel(&key))
    }

    /// Where releases of the locks of this name are published, of all kinds, each once.
    pub(crate) fn channels_of_all(&self, name: &LockName) -> Vec<String> {
        let key = self.keys.lock(name);
        let of_kinds = self.kinds().iter().map(|kind| kind.channel(&key));
        let mut channels: Vec<_> = [self.naming.of(&key)].into_iter().chain(of_kinds).collect();
        channels.sort_unstable();
        channels.dedup();
        channels
    }

    /// Where a client is told which of its owners in a queue is next, of all kinds.
    pub(crate) fn inboxes(&self, name: &LockName, client: ClientId) -> Vec<String> {
        self.queues(name)
            .iter()
            .map(|queue| inbox(queue, client))
            .collect()
    }

    /// The queues of waiters in the store, of all kinds.
    pub(crate) fn queues(&self, name: &LockName) -> Vec<String> {
        let key = self.keys.lock(name);
        let mut queues: Vec<_> = self
            .kinds()
            .iter()
            .filter_map(|kind| kind.queue(&key))
            .collect();
        queues.dedup(); // a fair semaphore has that of a fair lock
        queues
    }

    /// The keys that other kinds of locks have beside those of a mutex, and for each kind the
    /// commands that it sends to them and to the lock.
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
    pub(crate) fn change_permits(
        &self,
        link: &mut dyn ConnectionLike,
        name: &LockName,
        change: PermitChange,
        by: Moment,
    ) -> Result<PermitOutcome, Failure> {
        match self.kind_format(name)? {
            Some(kind) => kind.change_permits(self, link, name, change, by),
            None => Err(kinds::no_semaphore()),
        }
    }

    /// See [`Backend::submit_release`](lock_core::Backend::submit_release). `lingers` says whether
    /// our own subscription to a channel is one that no waiter needs any more.
    pub(crate) fn submit_release(
        &self,
        link: &SharedConnection,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        by: Moment,
        lingers: impl FnOnce(&str) -> bool + Send + 'static,
        done: impl FnOnce(Result<Release, Failure>) + Send + 'static,
    ) {
        let ending = match self.ending(acquisition, options) {
            Ok(ending) => ending,
            Err(failure) => return done(Err(failure)),
        };
        let (server, reader) = (Arc::clone(link.server()), ending.reader().to_static());
        ending.send(|script, words| {
            submit(script, link, words, by, move |outcome| {
                let mut check = ReplyCheck::Expected;
                done(outcome.and_then(|reply| {
                    if let Reply::Error(error) = &reply {
                        let asked = Asked::Script(reader.script, &reader.key);
                        return Err(error_mapping::refused(&server, error, &asked));
                    }
                    let release = reader.parse(&server, &reply).ok_or_else(|| {
                        check = ReplyCheck::Unexpected;
                        unexpected_reply(&server, &format!("the script `{}`", reader.script.name))
                    })?;
                    Ok(without_own_subscription(release, || {
                        lingers(&reader.channel())
                    }))
                }));
                check
            });
        });
    }

    /// Renews all of `batch`, the mutexes in one request. The answers are as many and in the same
    /// order.
    pub(crate) fn renew(
        &self,
        link: &mut dyn ConnectionLike,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Result<Vec<Result<Renewal, Failure>>, Failure> {
        let kind_of = |one: &RenewalRequest| kinds::format_of(one.acquisition.name.kind());
        let renew_mutexes = |link: &mut dyn ConnectionLike, batch: &[RenewalRequest]| {
            link.report_changes_of_keys(true);
            let renewals = self.renew_mutexes(link, batch, &self.labels(batch.iter()), by);
            link.report_changes_of_keys(false);
            renewals
        };
        if batch.iter().all(|one| kind_of(one).is_none()) {
            return renew_mutexes(link, batch);
        }
        let (others, mutexes): (Vec<_>, Vec<_>) = batch
            .iter()
            .cloned()
            .partition(|one| kind_of(one).is_some());
        let mut mutexes = match mutexes.is_empty() {
            true => Vec::new(),
            false => renew_mutexes(link, &mutexes)?,
        }
        .into_iter();
        let mut others = self.renew_kinds(link, &others, by).into_iter();
        let next = |one| {
            if kind_of(one).is_some() {
                others.next()
            } else {
                mutexes.next()
            }
        };
        Ok(batch
            .iter()
            .map(next)
            .map(|answer| answer.expect("an answer for each"))
            .collect())
    }

    /// The labels that are written with these renewals.
    fn labels<'a>(&self, renewals: impl Iterator<Item = &'a RenewalRequest>) -> Vec<LabelWrite> {
        let write = |one: &RenewalRequest| {
            let AcquisitionId { name, owner, .. } = &one.acquisition;
            let owner = kinds::shown_owner(name.kind(), *owner);
            LabelWrite::of(one, &self.keys.lock(name), &owner)
        };
        // Most have none: their owners and keys are not written for it.
        renewals
            .filter(|one| one.label.is_some() && self.has_labels())
            .filter_map(write)
            .collect()
    }

    /// Each by a script of its own, those of a kind in one write.
    fn renew_kinds(
        &self,
        link: &mut dyn ConnectionLike,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        let call = |RenewalRequest { acquisition, .. }: &RenewalRequest| {
            let kind = self.kind_format(&acquisition.name)?;
            Ok(kind.map(|kind| kind.renew(self, acquisition)))
        };
        let calls: Vec<_> = match batch.iter().map(call).collect::<Result<_, Failure>>() {
            Ok(calls) => Vec::into_iter(calls).flatten().collect(),
            Err(failure) => return vec![Err(failure); batch.len()],
        };
        let words: Vec<_> = calls.iter().map(ScriptCall::words).collect();
        let mut renewals: Vec<_> = calls.iter().map(|_| None).collect();
        while let Some(first) = renewals.iter().position(Option::is_none) {
            let script = calls[first].script;
            let is_next = |at: &usize| std::ptr::eq(calls[*at].script, script);
            let group: Vec<_> = (first..calls.len()).filter(is_next).collect();
            let runs: Vec<_> = group
                .iter()
                .map(|at| Run {
                    keys: &words[*at].0,
                    arguments: &words[*at].1,
                })
                .collect();
            // What several share changes with each of them, and the reports would tell of no loss.
            let is_shared = batch[first].acquisition.name.kind().is_shared();
            link.report_changes_of_keys(!is_shared);
            let labels = self.labels(group.iter().map(|at| &batch[*at]));
            let (answers, replies) = renew_each(script, link, &runs, &labels, by);
            self.note_refusal(&replies);
            for (at, renewal) in group.iter().zip(answers) {
                renewals[*at] = Some(renewal);
            }
            link.report_changes_of_keys(false);
        }
        renewals.into_iter().flatten().collect()
    }
}

/// Where a client is told which of its owners in a queue is next.
fn inbox(queue: &str, client: ClientId) -> String {
    format!("{queue}:{client}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Text;
    use crate::format::{DIALECTS, settings};
    use crate::keys;
    use lock_core::{Config, LockKind, OwnerId};
    use std::collections::{HashMap, HashSet};

    const PREFIXES: [&str; 5] = ["", "x", ":", "lock:", "lock::"];

    /// Names with braces at each place of a text, none, and empty tags.
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

    /// What Redisson's format prescribes, and so two locks may share.
    fn is_prescribed(name: &str) -> bool {
        let is_part = name.ends_with(":timeout") || name.contains(":rwlock_timeout:");
        name.starts_with("redisson_") || is_part && !name.starts_with("distlock_")
    }

    /// All keys, channels and inboxes of a lock but its own key; with the keys of an owner.
    fn derived(format: &OwnedFormat, name: &LockName, owner: OwnerId) -> Vec<String> {
        let key = format.keys.lock(name);
        let text = Text::owner(owner);
        let mut all: Vec<_> = format.names_beside(name).collect();
        all.extend(format.kinds_beside(name).flat_map(|(names, _)| names));
        all.extend(format.channels_of_all(name));
        all.extend(format.inboxes(name, owner.client()));
        all.extend([keys::tombstone(&key, &text), keys::label(&key)]);
        all.push(keys::label_of(&key, text.as_str()));
        all
    }

    /// Formats of all dialects, each with all prefixes that it can have.
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
        // Of all formats together: clients with other settings use the same server.
        let mut found: HashMap<(String, bool), String> = HashMap::new();
        for format in &formats() {
            let is_spring = format.dialect.wakes().is_some();
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
                    let place = (derived, is_spring);
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

    /// What a message grants to the waiters of a lock is of that lock.
    #[test]
    fn only_the_lock_of_an_inbox_is_granted_there() {
        let config = Config::from_url("redis://h?prefix=app:").unwrap();
        let format = settings::read_owned_format(&config).unwrap();
        let name = LockName::new("a b").unwrap();
        let of_kind = |kind| format.watched_channel(&name.of_kind(kind), ClientId::random());
        assert_eq!(of_kind(LockKind::Fair).grants.as_deref(), Some("app:a b"));
        assert_eq!(of_kind(LockKind::Mutex).grants, None);
    }
}
