//! `status`, `check` and `wait`: the state of a lock in the store.

use crate::arguments::{AskArguments, CheckArguments, StatusArguments, WaitArguments};
use crate::exit::{self, Failure};
use crate::output;
use crate::rows::{self, ReaderRows, Row};
use crate::signals::{self, Signals};
use distlock::crossbeam_channel::{after, select};
use distlock::time::{Clock, Moment, SystemClock};
use distlock::{Client, Interrupt};
use std::time::Duration;

/// The interval between two requests to the store.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// Reports by the exit status whether a lock is held.
pub(crate) fn check(arguments: &CheckArguments) -> Result<u8, Failure> {
    let client = arguments.store.connect_for(&arguments.name)?;
    let is_held = is_held(&client, &arguments.name, arguments.ask)?;
    if !arguments.quiet {
        output::line(if is_held { "held" } else { "free" })?;
    }
    Ok(if is_held {
        arguments.conflict.status
    } else {
        0
    })
}

/// Waits until a lock is free.
pub(crate) fn wait(arguments: &WaitArguments) -> Result<u8, Failure> {
    let heard = Signals::block_unless_ignored()?.listen(&Interrupt::new());
    let client = arguments.store.connect_for(&arguments.name)?;
    let until = arguments
        .wait
        .map_or(Moment::NEVER, |wait| SystemClock.now() + wait);
    while is_held(&client, &arguments.name, arguments.ask)? {
        let left = until.since(SystemClock.now());
        if left.is_zero() {
            return Ok(arguments.conflict.status);
        }
        let due = after(left.min(ASK_AGAIN));
        select! {
            recv(heard) -> signal => match signal {
                Ok(signal) if signals::ends(signal) => return Ok(exit::of_signal(signal)),
                _ => {}
            },
            recv(due) -> _ => {}
        }
    }
    Ok(0)
}

/// Shows the holders of locks.
pub(crate) fn status(arguments: &StatusArguments) -> Result<u8, Failure> {
    let names = rows::names(&arguments.names, arguments.slots)?;
    let rows = rows::of_names(&arguments.store.clients()?, &names)?;
    if arguments.json {
        rows.iter()
            .try_for_each(|row| output::line(&row.json()).map(drop))?;
    } else {
        output::line(&rows::table(&rows, ReaderRows::Each))?;
        rows.iter().for_each(Row::report_failure);
    }
    let failed = rows.iter().find_map(|row| row.info.as_ref().err());
    Ok(failed.map_or(0, |failure| failure.status))
}

/// Returns whether no further client can acquire the lock now, or the part of it that `ask` names.
fn is_held(client: &Client, name: &str, ask: AskArguments) -> Result<bool, Failure> {
    if ask.slots {
        // An inspection ignores the limit.
        let info = client.semaphore(name, 1)?.inspect()?;
        return Ok(info.permits.is_some_and(|permits| permits.free == 0));
    }
    if !ask.shared && !ask.exclusive {
        return Ok(client.mutex(name)?.is_locked()?);
    }
    let info = client.rw_lock(name)?.write().inspect()?;
    let readers = info.readers.unwrap_or_default();
    let lets_readers_in = !readers.known.is_empty() && !readers.writer_waits;
    Ok(match info.holder {
        Some(_) => ask.exclusive || !lets_readers_in,
        None => ask.shared && readers.writer_waits,
    })
}
