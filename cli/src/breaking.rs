//! `break`: releases the lock of any holder.

use crate::arguments::BreakArguments;
use crate::exit::{self, Failure};
use crate::output::{self, report};
use crate::store::{rounded, short};
use distlock::DistLock;
use std::io::{self, IsTerminal, Write};

/// Asks, and breaks the lock.
pub(crate) fn break_lock(arguments: &BreakArguments) -> Result<u8, Failure> {
    let client = arguments.store.connect()?;
    let lock = client.mutex(arguments.name.as_str())?;
    let Some(holder) = lock.inspect()?.holder else {
        report(format_args!("lock {:?} is free", arguments.name));
        return Ok(exit::CONFLICT);
    };
    let left = holder.remaining.map_or_else(|| "no end".to_owned(), rounded);
    let who = format!("{:?}, held by {} (lease: {left})", arguments.name, short(&holder));
    if !arguments.yes && !is_confirmed(&who)? {
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

/// Asks the user on the terminal.
fn is_confirmed(who: &str) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        let what = "standard input is no terminal, so there is no one to ask: add --yes";
        return Err(Failure::new(exit::USAGE, what));
    }
    let asked = write!(io::stderr(), "Break lock {who}? Another holder may enter. [y/N] ");
    let mut answer = String::new();
    let read = asked.and_then(|()| io::stdin().read_line(&mut answer));
    read.map_err(|error| Failure::system("the terminal cannot be asked", error))?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}
