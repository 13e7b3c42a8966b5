//! `status`, `check` and `wait`: what the store says of a lock.

use crate::arguments::{CheckArguments, StatusArguments, WaitArguments};
use crate::exit::{self, Failure};
use crate::output;
use crate::rows;
use crate::signals::{self, Signals};
use distlock::backend::LockInfo;
use distlock::crossbeam_channel::{after, select};
use distlock::{Client, Clock, DistLock, Interrupt, LockKind, Moment, SystemClock};
use std::time::Duration;

/// The time between two questions to the store.
const ASK_AGAIN: Duration = Duration::from_millis(250);

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
    let heard = Signals::block_unless_ignored()?.listen(&Interrupt::new());
    let client = arguments.store.connect_for(&arguments.name)?;
    let until = arguments.wait.map_or(Moment::NEVER, |wait| SystemClock.now() + wait);
    while is_held(&look(&client, &arguments.name, arguments.slots)?) {
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
    let mut names = rows::names(&arguments.names)?;
    if arguments.slots {
        // Any limit will do to look.
        let kind = LockKind::Permits { limit: 1, count: 1 };
        names.iter_mut().for_each(|name| *name = name.of_kind(kind));
    }
    let rows = rows::of_names(&arguments.store.clients()?, &names)?;
    if arguments.json {
        rows.iter().try_for_each(|row| output::line(&row.json()).map(drop))?;
    } else {
        output::line(&rows::table(&rows))?;
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
