//! `status`, `check` and `wait`: what the store says of a lock.

use crate::arguments::{CheckArguments, StatusArguments, WaitArguments};
use crate::exit::{self, Failure};
use crate::output;
use crate::signals::{FRONT_ENDED, Signals};
use crate::store::{held_for, named, rounded, short};
use distlock::backend::{HolderInfo, LockInfo, Permits};
use distlock::crossbeam_channel::{after, select};
use distlock::{Client, Clock, DistLock, Interrupt, Moment, SystemClock};
use humantime::format_rfc3339_millis;
use rustix::process::Signal;
use serde_json::Value as Json;
use std::time::Duration;

/// The time between two questions to the store.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// The word for what the store does not know or tell.
const UNKNOWN: &str = "unknown";

/// Says by the exit status whether a lock is held.
pub(crate) fn check(arguments: &CheckArguments) -> Result<u8, Failure> {
    let client = arguments.store.connect_for(&arguments.name)?;
    let is_held = is_held(&look(&client, &arguments.name, arguments.slots)?);
    if !arguments.quiet {
        output::line(if is_held { "held" } else { "free" })?;
    }
    Ok(if is_held { arguments.conflict.status } else { 0 })
}

/// Waits until a lock is free.
pub(crate) fn wait(arguments: &WaitArguments) -> Result<u8, Failure> {
    let signals = Signals::block_unless_ignored()?.listen(&Interrupt::new());
    let client = arguments.store.connect_for(&arguments.name)?;
    let until = arguments.wait.map_or(Moment::NEVER, |wait| SystemClock.now() + wait);
    while is_held(&look(&client, &arguments.name, arguments.slots)?) {
        let left = until.since(SystemClock.now());
        if left.is_zero() {
            return Ok(arguments.conflict.status);
        }
        let due = after(left.min(ASK_AGAIN));
        select! {
            recv(signals) -> signal => match signal {
                Ok(Signal::CONT | Signal::CHILD | FRONT_ENDED) | Err(_) => {}
                Ok(signal) => return Ok(exit::of_signal(signal)),
            },
            recv(due) -> _ => {}
        }
    }
    Ok(0)
}

/// Shows the holders of locks.
pub(crate) fn status(arguments: &StatusArguments) -> Result<u8, Failure> {
    let clients = arguments.store.clients()?;
    let mut rows = Vec::new();
    for name in &arguments.names {
        let client = clients.of_lock(name)?;
        let LockInfo { holder, permits, .. } = look(&client, name, arguments.slots)?;
        rows.push(Row { name, holder, permits });
    }
    if arguments.json {
        rows.iter().try_for_each(|row| output::line(&row.json()).map(drop))?;
    } else {
        output::line(&table(&rows))?;
    }
    Ok(0)
}

/// What the store says of a lock, or of a semaphore, for which any limit will do here.
fn look(client: &Client, name: &str, is_semaphore: bool) -> Result<LockInfo, Failure> {
    Ok(match is_semaphore {
        true => client.semaphore(name, 1)?.inspect()?,
        false => client.mutex(name)?.inspect()?,
    })
}

/// Whether no client can take it now.
fn is_held(info: &LockInfo) -> bool {
    info.holder.is_some() && info.permits.is_none_or(|permits| permits.free == 0)
}

/// A lock and its holder.
struct Row<'a> {
    name: &'a str,
    holder: Option<HolderInfo>,
    permits: Option<Permits>,
}

impl Row<'_> {
    /// What the table says.
    fn cells(&self) -> [String; 7] {
        let state = |of_lock: &str| match self.permits {
            Some(Permits { limit, free, .. }) => format!("{free} of {limit} free"),
            None => of_lock.to_owned(),
        };
        let Some(holder) = &self.holder else {
            let [none, unknown] = ["-", UNKNOWN].map(str::to_owned);
            let name = self.name.escape_debug().to_string();
            let free = state("free");
            return [name, free, none.clone(), none.clone(), none.clone(), none, unknown];
        };
        [
            self.name.escape_debug().to_string(),
            state("held"),
            named(holder),
            held_for(holder).map_or_else(|| UNKNOWN.to_owned(), rounded),
            holder.remaining.map_or_else(|| "no end".to_owned(), rounded),
            UNKNOWN.to_owned(),
            UNKNOWN.to_owned(),
        ]
    }

    /// The same as JSON. For a lease without an end, `expires` is false.
    fn json(&self) -> String {
        let holder = self.holder.as_ref();
        let remaining = holder.and_then(|holder| holder.remaining);
        let label = holder.and_then(|holder| holder.label.as_ref());
        let since = label.map(|label| format_rfc3339_millis(label.since).to_string());
        let millis = remaining.and_then(|time| u64::try_from(time.as_millis()).ok());
        let pairs = [
            ("name", Json::from(self.name)),
            ("held", Json::from(holder.is_some())),
            ("holder", Json::from(holder.map(short))),
            ("label", Json::from(label.map(|label| &*label.text))),
            ("since", Json::from(since)),
            ("expires", Json::from(holder.map(|holder| holder.remaining.is_some()))),
            ("remaining_ms", Json::from(millis)),
            ("token", Json::Null),
            ("waiters", Json::Null),
        ];
        let permits = self.permits.map(|it| [("limit", it.limit.into()), ("free", it.free.into())]);
        let pairs = pairs.into_iter().chain(permits.into_iter().flatten());
        let pairs: Vec<_> = pairs.map(|(key, value)| format!("\"{key}\":{value}")).collect();
        format!("{{{}}}", pairs.join(","))
    }
}

/// The rows under each other.
fn table(rows: &[Row<'_>]) -> String {
    let head = ["NAME", "STATE", "HOLDER", "HELD", "REMAINING", "TOKEN", "WAITERS"];
    let head = head.map(str::to_owned);
    let lines: Vec<_> = [head].into_iter().chain(rows.iter().map(Row::cells)).collect();
    output::aligned(&lines)
}
