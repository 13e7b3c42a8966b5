//! `counter`: `INCR`, and the client that gets 1 has the lock and gives it an expiry; a plain `DEL`
//! frees it. The second form of the "Pattern: Locking with INCR" that went round, in the three ways
//! in which it is written.

use super::commands::{CommandSequence, Stop};
use super::plain::{held, lease};
use crate::connection::Reply;
use crate::lua::COUNT;
use lock_core::backend::{Answer, Attempt, Grant, LockInfo};
use std::time::Duration;

/// How the expiry comes to the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Counter {
    /// By a second command of the winner's. If that never comes, the lock stays for ever.
    Commands,
    /// In one transaction, which cannot look at what `INCR` said: a failed attempt extends the
    /// winner's lease.
    Transaction,
    /// In a script. What it wrote before an error stays.
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
                // Its `EXPIRE` is carried out also where its `INCR` fails, and would end what is no
                // lock.
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

/// Refuses what `INCR` would, or will next time.
fn must_count(commands: &CommandSequence<'_>, value: &str) -> Result<(), Stop> {
    match value.parse::<i64>() {
        Ok(count) if count < i64::MAX && count.to_string() == value => Ok(()),
        _ => Err(commands.foreign(value, "a number that is counted up")),
    }
}
