//! `counter`: the client whose `INCR` returns 1 has the lock, and sets its expiry; a plain `DEL`
//! frees it. This is the second form of "Pattern: Locking with INCR". Programs copied it, and write
//! it in three ways.

use super::commands::{CommandSequence, Stop};
use super::plain::{held, lease};
use crate::connection::Reply;
use crate::lua::COUNT;
use lock_core::backend::{Answer, Attempt, Grant, LockInfo};
use std::time::Duration;

/// The way in which the key gets its expiry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Counter {
    /// By a second command of the winner. If the winner never sends that command, the lock never
    /// ends.
    Commands,
    /// In one transaction, which cannot react to the reply of `INCR`: a failed attempt extends the
    /// winner's lease.
    Transaction,
    /// In a script. What the script wrote before an error is not undone.
    Script,
}

impl Counter {
    pub(super) fn acquire(
        self,
        commands: &mut CommandSequence<'_>,
        attempt: &Attempt<'_>,
    ) -> Result<Answer, Stop> {
        let lease = lease(attempt);
        let count = match self {
            Self::Commands => {
                let count = commands.ask("INCR", &[])?;
                if count == Reply::Int(1) && !commands.expire_in(lease.as_bytes())? {
                    return Ok(Answer::Busy(Some(Duration::ZERO)));
                }
                count
            }
            Self::Transaction => {
                // The transaction carries out `EXPIRE` even if its `INCR` fails, and would give
                // other data an expiry.
                if let Some(value) = commands.look()? {
                    must_count(commands, &value)?;
                }
                let (key, lease) = (commands.key.as_bytes(), lease.as_bytes());
                let both: [&[&[u8]]; 2] = [&[b"INCR", key], &[b"EXPIRE", key, lease]];
                match &commands.transact(&both)?[..] {
                    [count, Reply::Int(1)] => count.clone(),
                    _ => return Err(commands.unexpected("EXEC")),
                }
            }
            Self::Script => commands.run(&COUNT, &[lease.as_bytes()])?,
        };
        match count {
            Reply::Int(1) => Ok(Answer::Granted(Grant::new(None))),
            Reply::Int(_) => commands.busy_from_pttl(),
            _ => Err(commands.unexpected("INCR")),
        }
    }

    pub(super) fn inspect(self, commands: &mut CommandSequence<'_>) -> Result<LockInfo, Stop> {
        let Some(value) = commands.look()? else {
            return Ok(LockInfo::FREE);
        };
        must_count(commands, &value)?;
        held(commands, &value)
    }
}

/// Refuses a value that `INCR` would refuse.
fn must_count(commands: &CommandSequence<'_>, value: &str) -> Result<(), Stop> {
    match value.parse::<i64>() {
        Ok(count) if count < i64::MAX && count.to_string() == value => Ok(()),
        _ => Err(commands.foreign(value, "a number that is counted up")),
    }
}
