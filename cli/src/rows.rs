//! Locks as rows of a table and as JSON: `status`, `list` and `watch`.

use crate::arguments::Limit;
use crate::exit::Failure;
use crate::output;
use crate::store::{Clients, held_for, named, rounded, short};
use distlock::LockName;
use distlock::backend::{LockInfo, Permits};
use humantime::format_rfc3339_millis;
use serde_json::Value as Json;
use std::slice;

/// The word for what the store does not know or tell.
const UNKNOWN: &str = "unknown";

/// A lock and what the store says of it.
#[derive(Clone)]
pub(crate) struct Row {
    pub(crate) name: LockName,
    pub(crate) info: LockInfo,
}

/// Locks that were found in a store.
#[derive(Clone, Default)]
pub(crate) struct Found {
    pub(crate) rows: Vec<Row>,
    /// Whether the limit was reached, so that there may be more.
    pub(crate) is_cut: bool,
}

impl Row {
    /// What the table says.
    fn cells(&self) -> [String; 6] {
        let Self { name, info } = self;
        let none = || "-".to_owned();
        let waiters = info.waiters.map_or_else(|| UNKNOWN.to_owned(), |count| count.to_string());
        let state = |of_lock: &str| match info.permits {
            Some(Permits { limit, free, .. }) => format!("{free} of {limit} free"),
            None => of_lock.to_owned(),
        };
        let Some(holder) = &info.holder else {
            return [name.to_string(), state("free"), none(), none(), none(), waiters];
        };
        [
            name.to_string(),
            state("held"),
            named(holder),
            held_for(holder).map_or_else(|| UNKNOWN.to_owned(), rounded),
            holder.remaining.map_or_else(|| "no end".to_owned(), rounded),
            waiters,
        ]
    }

    /// The same as JSON. For a lease without an end, `expires` is false.
    pub(crate) fn json(&self) -> String {
        let Self { name, info } = self;
        let holder = info.holder.as_ref();
        let remaining = holder.and_then(|holder| holder.remaining);
        let label = holder.and_then(|holder| holder.label.as_ref());
        let since = label.map(|label| format_rfc3339_millis(label.since).to_string());
        let millis = remaining.and_then(|time| u64::try_from(time.as_millis()).ok());
        let pairs = [
            ("name", Json::from(name.as_str())),
            ("held", Json::from(holder.is_some())),
            ("holder", Json::from(holder.map(short))),
            ("label", Json::from(label.map(|label| &*label.text))),
            ("since", Json::from(since)),
            ("expires", Json::from(holder.map(|holder| holder.remaining.is_some()))),
            ("remaining_ms", Json::from(millis)),
            ("token", Json::Null),
            ("largest_token", Json::from(info.largest_token.map(|token| token.get()))),
            ("waiters", Json::from(info.waiters)),
        ];
        let permits = info.permits.map(|it| [("limit", it.limit.into()), ("free", it.free.into())]);
        let pairs = pairs.into_iter().chain(permits.into_iter().flatten());
        let pairs: Vec<_> = pairs.map(|(key, value)| format!("\"{key}\":{value}")).collect();
        format!("{{{}}}", pairs.join(","))
    }
}

/// The rows under each other.
pub(crate) fn table(rows: &[Row]) -> String {
    let head = ["NAME", "STATE", "HOLDER", "HELD", "REMAINING", "WAITERS"].map(str::to_owned);
    let lines: Vec<_> = [head].into_iter().chain(rows.iter().map(Row::cells)).collect();
    output::aligned(&lines)
}

/// Reads names of locks.
pub(crate) fn names(words: &[String]) -> Result<Vec<LockName>, Failure> {
    words.iter().map(|name| Ok(LockName::new(name)?)).collect()
}

/// The state of these locks, each in its own store.
pub(crate) fn of_names(clients: &Clients, names: &[LockName]) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for name in names {
        for info in clients.of_lock(name.as_str())?.inspect_all(slice::from_ref(name)) {
            rows.push(Row { name: name.clone(), info: info? });
        }
    }
    Ok(rows)
}

/// Adds the held locks of all stores that match, in the order of their names; also what was found
/// before a failure.
pub(crate) fn find(
    clients: &Clients,
    pattern: &str,
    limit: &Limit,
    found: &mut Found,
) -> Result<(), Failure> {
    let mut backends = clients.settings().backends();
    let outcome = backends.try_for_each(|backend| {
        let mut pages = clients.of_backend(backend)?.locks(pattern);
        while !found.is_cut
            && let Some(page) = pages.next_page()?
        {
            let room = limit.locks.saturating_sub(found.rows.len());
            found.is_cut = page.len() > room;
            let rows = page.into_iter().take(room).map(|(name, info)| Row { name, info });
            found.rows.extend(rows);
        }
        Ok(())
    });
    found.rows.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    outcome
}
