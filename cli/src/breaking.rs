//! `break`: releases the lock of any holder.

use crate::arguments::BreakArguments;
use crate::exit::{self, Failure};
use crate::output::{self, report};
use crate::store::{held_for, named, rounded, short};
use distlock::DistLock;

/// Asks, and breaks the lock.
pub(crate) fn break_lock(arguments: &BreakArguments) -> Result<u8, Failure> {
    let client = arguments.store.connect_for(&arguments.name)?;
    let lock = client.mutex(arguments.name.as_str())?;
    let Some(holder) = lock.inspect()?.holder else {
        report(format_args!("lock {:?} is free", arguments.name));
        return Ok(exit::CONFLICT);
    };
    let left = holder.remaining.map_or_else(|| "no end".to_owned(), rounded);
    let who = match held_for(&holder) {
        Some(held) => {
            format!("{} ({}) for {}", named(&holder), short(&holder), rounded(held))
        }
        None => short(&holder),
    };
    let who = format!("{:?}, held by {who} (lease: {left})", arguments.name);
    let question = format!("Break lock {who}? Another holder may enter.");
    if !arguments.yes && !output::is_confirmed(&question)? {
        report("nothing was broken");
        return Ok(exit::CONFLICT);
    }
    let now = lock.inspect()?.holder;
    if now.is_some_and(|now| now.owner != holder.owner) {
        report("it has another holder by now, and nothing was broken");
        return Ok(exit::CONFLICT);
    }
    if !lock.force_unlock()? {
        report(format_args!("lock {:?} was released meanwhile", arguments.name));
        return Ok(exit::CONFLICT);
    }
    output::line(&format!("broke lock {who}"))
}
