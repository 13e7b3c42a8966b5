//! Locks as rows of a table and as JSON, for `status`, `list` and `watch`.

use crate::arguments::Limit;
use crate::exit::{self, Failure};
use crate::output;
use crate::store::{Clients, held_for, kept_until, named, rounded, short};
use distlock::admin::Locks;
use distlock::backend::{HolderInfo, LockInfo, LockKind, Permits};
use distlock::config::ConfigSet;
use distlock::{Config, LockName};
use humantime::format_rfc3339_millis;
use serde_json::Value as Json;
use std::collections::HashMap;
use std::slice;

/// The word for facts that the store does not know or report.
const UNKNOWN: &str = "unknown";

/// A lock, and its state in the store, or the failure of its inspection.
#[derive(Clone)]
pub(crate) struct Row {
    pub(crate) name: LockName,
    pub(crate) info: Result<LockInfo, Failure>,
}

/// Locks that were found in a store.
#[derive(Clone, Default)]
pub(crate) struct Found {
    pub(crate) rows: Vec<Row>,
    /// True if the store has more locks than the limit allows.
    pub(crate) is_cut: bool,
}

/// The readers of a read-write lock that a table shows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReaderRows {
    /// The reader whose lease ends last.
    Last,
    /// Each reader, on a separate line.
    Each,
}

impl Row {
    pub(crate) fn is_held(&self) -> bool {
        self.info.as_ref().is_ok_and(|info| info.holder.is_some())
    }

    fn has_failed_with(&self, text: &str) -> bool {
        self.info
            .as_ref()
            .is_err_and(|failure| failure.to_string() == text)
    }

    /// Reports a failed inspection on standard error.
    pub(crate) fn report_failure(&self) {
        if let Err(failure) = &self.info {
            output::report(format_args!("lock \"{}\": {failure}", self.name));
        }
    }

    /// Returns the cells of the lock's lines in a table.
    fn cells(&self, shown: ReaderRows) -> Vec<[String; 6]> {
        let name = &self.name;
        let Ok(info) = &self.info else {
            let [state, none] = ["error", "-"].map(str::to_owned);
            return vec![[
                name.to_string(),
                state,
                none.clone(),
                none.clone(),
                none.clone(),
                none,
            ]];
        };
        let waiters = info
            .waiters
            .map_or_else(|| UNKNOWN.to_owned(), |count| count.to_string());
        let [holder, held, remaining] = match &info.holder {
            Some(holder) => of_holder(holder),
            None => ["-"; 3].map(str::to_owned),
        };
        let mut lines = vec![[
            name.to_string(),
            state(info),
            holder,
            held,
            remaining,
            waiters,
        ]];
        if shown == ReaderRows::Each {
            let blank = String::new;
            let others = info
                .readers
                .iter()
                .flat_map(|readers| readers.known.iter().skip(1));
            lines.extend(others.map(|reader| {
                let [holder, held, remaining] = of_holder(reader);
                [blank(), blank(), holder, held, remaining, blank()]
            }));
            let shown = u64::try_from(lines.len()).unwrap_or(u64::MAX);
            if info.holders > shown && info.readers.is_some() {
                let more = format!(".. and {} more", info.holders - shown);
                lines.push([blank(), blank(), more, blank(), blank(), blank()]);
            }
        }
        lines
    }

    /// Returns the cells of the lock's first line in a table.
    pub(crate) fn cells_of_first_line(&self) -> [String; 6] {
        let lines = self.cells(ReaderRows::Last);
        lines.into_iter().next().unwrap_or_default()
    }

    /// Returns the lock as a JSON object. For a lease without an end, `expires` is false.
    pub(crate) fn json(&self) -> String {
        let name = &self.name;
        let info = match &self.info {
            Ok(info) => info,
            Err(failure) => {
                let error = Json::from(failure.to_string());
                let members = texts([("name", Json::from(name.as_str())), ("error", error)]);
                return output::printable(&object(&members));
            }
        };
        let holder = info.holder.as_ref();
        let mut pairs = vec![
            ("name", Json::from(name.as_str())),
            ("held", Json::from(holder.is_some())),
        ];
        pairs.extend(pairs_of(holder));
        pairs.extend([
            ("token", Json::Null),
            (
                "largest_token",
                Json::from(info.largest_token.map(|token| token.get())),
            ),
            ("waiters", Json::from(info.waiters)),
        ]);
        if let Some(Permits { limit, free, .. }) = info.permits {
            pairs.extend([("limit", limit.into()), ("free", free.into())]);
        }
        let mut members = texts(pairs);
        if let Some(readers) = &info.readers {
            let known = readers
                .known
                .iter()
                .map(|reader| object(&texts(pairs_of(Some(reader)))));
            let known: Vec<_> = known.collect();
            members.extend([
                ("holders", info.holders.to_string()),
                ("readers", format!("[{}]", known.join(","))),
                ("writer_waits", readers.writer_waits.to_string()),
            ]);
        }
        // Escapes control characters that serde_json leaves as they are.
        output::printable(&object(&members))
    }
}

/// Describes whether the lock is held, how many readers share it, and whether a writer waits; or
/// how many permits of a semaphore are free.
fn state(info: &LockInfo) -> String {
    let LockInfo {
        holder,
        holders,
        permits,
        readers,
        ..
    } = info;
    if let Some(Permits { limit, free, .. }) = permits {
        return format!("{free} of {limit} free");
    }
    let waits = readers.as_ref().is_some_and(|readers| readers.writer_waits);
    let state = match readers {
        _ if holder.is_none() => "free".to_owned(),
        _ if holder.as_ref().is_some_and(|it| it.owner.is_minimum_hold()) => "kept".to_owned(),
        None => "held".to_owned(),
        Some(readers) if *holders == 1 => {
            format!(
                "1 {}",
                if readers.known.is_empty() {
                    "writer"
                } else {
                    "reader"
                }
            )
        }
        Some(_) => format!("{holders} readers"),
    };
    if waits {
        state + ", writer waits"
    } else {
        state
    }
}

/// Returns the holder's name, how long it has held the lock, and the time left of its lease.
fn of_holder(holder: &HolderInfo) -> [String; 3] {
    [
        named(holder),
        held_for(holder).map_or_else(|| UNKNOWN.to_owned(), rounded),
        holder
            .remaining
            .map_or_else(|| "no end".to_owned(), rounded),
    ]
}

/// Returns the members of a JSON object that describe a holder.
fn pairs_of(holder: Option<&HolderInfo>) -> [(&'static str, Json); 6] {
    let remaining = holder.and_then(|holder| holder.remaining);
    let label = holder.and_then(|holder| holder.label.as_ref());
    let since = label.map(|label| format_rfc3339_millis(label.since).to_string());
    let millis = remaining.and_then(|time| u64::try_from(time.as_millis()).ok());
    [
        (
            "holder",
            Json::from(holder.filter(|it| !it.owner.is_minimum_hold()).map(short)),
        ),
        ("kept_until", Json::from(holder.and_then(kept_until))),
        ("label", Json::from(label.map(|label| &*label.text))),
        ("since", Json::from(since)),
        (
            "expires",
            Json::from(holder.map(|holder| holder.remaining.is_some())),
        ),
        ("remaining_ms", Json::from(millis)),
    ]
}

/// Formats values as text for [`object`].
fn texts<'a>(pairs: impl IntoIterator<Item = (&'a str, Json)>) -> Vec<(&'a str, String)> {
    pairs
        .into_iter()
        .map(|(key, value)| (key, value.to_string()))
        .collect()
}

/// Returns an object whose members are in this order.
fn object(members: &[(&str, String)]) -> String {
    let members: Vec<_> = members
        .iter()
        .map(|(key, value)| format!("\"{key}\":{value}"))
        .collect();
    format!("{{{}}}", members.join(","))
}

/// Formats the rows as a table.
pub(crate) fn table(rows: &[Row], readers: ReaderRows) -> String {
    let head = ["NAME", "STATE", "HOLDER", "HELD", "REMAINING", "WAITERS"].map(str::to_owned);
    let lines: Vec<_> = [head]
        .into_iter()
        .chain(rows.iter().flat_map(|row| row.cells(readers)))
        .collect();
    output::aligned(&lines)
}

/// Parses names of locks, or of semaphores.
pub(crate) fn names(words: &[String], slots: bool) -> Result<Vec<LockName>, Failure> {
    // An inspection ignores the limit.
    let semaphore = LockKind::Permits { limit: 1, count: 1 };
    let kind = if slots { semaphore } else { LockKind::Mutex };
    words
        .iter()
        .map(|name| Ok(LockName::new(name)?.of_kind(kind)))
        .collect()
}

/// Returns the state of these locks, each from its store. A store that does not answer is not
/// queried again.
///
/// # Errors
///
/// If all inspections fail for the same reason, or the settings name no store for a lock.
pub(crate) fn of_names(clients: &Clients, names: &[LockName]) -> Result<Vec<Row>, Failure> {
    let mut silent: HashMap<Option<String>, Failure> = HashMap::new();
    let mut rows = Vec::new();
    for name in names {
        let (backend, _) = clients.settings().choice(name.as_str())?;
        let backend = backend.map(str::to_owned);
        let info = match silent.get(&backend) {
            Some(failure) => Err(failure.clone()),
            None => inspect(clients, name),
        };
        if let Err(failure) = &info
            && failure.status == exit::UNAVAILABLE
        {
            silent.insert(backend, failure.clone());
        }
        rows.push(Row {
            name: name.clone(),
            info,
        });
    }
    let first = rows
        .first()
        .and_then(|row| row.info.as_ref().err())
        .cloned();
    match first.map(|failure| (failure.to_string(), failure)) {
        Some((text, failure)) if rows.iter().all(|row| row.has_failed_with(&text)) => Err(failure),
        _ => Ok(rows),
    }
}

fn inspect(clients: &Clients, name: &LockName) -> Result<LockInfo, Failure> {
    let client = clients.of_lock(name.as_str())?;
    // Not `inspect` of the mutex, which does not report the readers of a read-write lock.
    Ok(client.inspect_all(slice::from_ref(name)).remove(0)?)
}

/// Adds the matching held locks of all backends, and of the sections whose format or prefix differs
/// from their backend's, up to the limit and sorted by name. If a request fails, the locks that
/// were found before are added.
pub(crate) fn find(
    clients: &Clients,
    pattern: &str,
    limit: &Limit,
    found: &mut Found,
) -> Result<(), Failure> {
    let settings = clients.settings();
    let mut outcome = settings.backends().try_for_each(|backend| {
        found.add(
            &mut clients.of_backend(backend)?.locks(pattern),
            limit,
            |_| true,
        )
    });
    for section in settings
        .locks()
        .filter(|section| stands_apart(settings, section))
    {
        if outcome.is_err() {
            break;
        }
        let is_of_section = |name: &LockName| {
            settings
                .choice(name.as_str())
                .is_ok_and(|(_, chosen)| chosen == Some(section))
        };
        outcome = clients
            .of_lock(section)
            .and_then(|client| found.add(&mut client.locks(pattern), limit, is_of_section));
    }
    found
        .rows
        .sort_unstable_by(|one, other| one.name.cmp(&other.name));
    outcome
}

/// Returns whether the section needs a separate listing: the listing of its backend misses locks
/// with another prefix or format. A format without owners cannot be listed.
fn stands_apart(settings: &ConfigSet, section: &str) -> bool {
    let Ok((backend, _)) = settings.choice(section) else {
        return false;
    };
    let configs = (settings.config(section), settings.backend_config(backend));
    let (Ok(own), Ok(of_backend)) = configs else {
        return false;
    };
    let format = |config: &Config| {
        config
            .scheme_option("format")
            .unwrap_or("redisson")
            .to_owned()
    };
    let has_owners = ["redisson", "token"].contains(&&*format(&own));
    has_owners && (format(&own) != format(&of_backend) || own.prefix() != of_backend.prefix())
}

impl Found {
    /// Adds the wanted locks of these pages, up to the limit.
    fn add(
        &mut self,
        pages: &mut Locks,
        limit: &Limit,
        is_wanted: impl Fn(&LockName) -> bool,
    ) -> Result<(), Failure> {
        while !self.is_cut
            && let Some(page) = pages.next_page()?
        {
            for (name, info) in page.into_iter().filter(|(name, _)| is_wanted(name)) {
                self.is_cut = self.rows.len() >= limit.locks;
                if self.is_cut {
                    break;
                }
                self.rows.push(Row {
                    name,
                    info: Ok(info),
                });
            }
        }
        Ok(())
    }
}
