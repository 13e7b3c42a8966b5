//! `status`, `check` and `wait`: what the store says of a lock.

use crate::arguments::{CheckArguments, StatusArguments, WaitArguments};
use crate::exit::{self, Failure};
use crate::output;
use crate::rows;
use crate::signals::{self, Signals};
use distlock::backend::HolderInfo;
use distlock::crossbeam_channel::{after, select};
use distlock::{Client, Clock, DistLock, Interrupt, Moment, SystemClock};
use std::time::Duration;

/// The time between two questions to the store.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// Says by the exit status whether a lock is held.
pub(crate) fn check(arguments: &CheckArguments) -> Result<u8, Failure> {
    let is_held =
        holder(&arguments.store.connect_for(&arguments.name)?, &arguments.name)?.is_some();
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
    while holder(&client, &arguments.name)?.is_some() {
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
    let names = rows::names(&arguments.names)?;
    let rows = rows::of_names(&arguments.store.clients()?, &names)?;
    if arguments.json {
        rows.iter().try_for_each(|row| output::line(&row.json()).map(drop))?;
    } else {
        output::line(&rows::table(&rows))?;
    }
    Ok(0)
}

/// The holder of a lock, as the store says.
fn holder(client: &Client, name: &str) -> Result<Option<HolderInfo>, Failure> {
    Ok(client.mutex(name)?.inspect()?.holder)
}
