//! `plain`: `SET key value NX EX seconds`, and a plain `DEL`: the first form of a lock on the page
//! about `SET` in the Redis documentation. A client that releases the lock after the end of its
//! lease deletes the next holder's lock; `ClassicRules` prevent that for our clients. The older
//! form is available, too: `SETNX` and `EXPIRE`.

use super::commands::{CommandSequence, Stop, seconds};
use crate::connection::{Reply, Text};
use crate::protocol::remaining;
use lock_core::OwnerText;
use lock_core::backend::{Answer, Attempt, Grant, HolderInfo, LockInfo};
use std::time::Duration;

/// The way in which a lock is acquired. The value under the key can be chosen freely. Our values
/// name the owner, only for display: acquire and release do not read them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Plain {
    /// By one command.
    Set,
    /// By two commands. If the client never sends the second, the lock never ends.
    Commands,
}

/// The prefix of our values, before the owner.
const OURS: &str = "distlock:";

impl Plain {
    pub(super) fn acquire(
        self,
        commands: &mut CommandSequence<'_>,
        attempt: &Attempt<'_>,
    ) -> Result<Answer, Stop> {
        // Without the prefix, a client of `format=token` would take the value for one of its own
        // format, and expect that the release is published.
        let (owner, lease) = (format!("{OURS}{}", attempt.owner), lease(attempt));
        let reply = match self {
            Self::Set => {
                commands.ask("SET", &[owner.as_bytes(), b"NX", b"EX", lease.as_bytes()])?
            }
            Self::Commands => match commands.ask("SETNX", &[owner.as_bytes()])? {
                Reply::Int(0) => Reply::Nil,
                Reply::Int(1) if commands.expire_in(lease.as_bytes())? => {
                    Reply::Text(String::new())
                }
                Reply::Int(1) => return Ok(Answer::Busy(Some(Duration::ZERO))),
                other => other,
            },
        };
        match reply {
            Reply::Text(_) => Ok(Answer::Granted(Grant::new(None))),
            // Any value makes the lock busy. `STRLEN` fails for a value that is no text, and so no
            // lock of this format.
            Reply::Nil => match commands.ask("STRLEN", &[])? {
                Reply::Int(_) => commands.busy_from_pttl(),
                _ => Err(commands.unexpected("STRLEN")),
            },
            _ => Err(commands.unexpected("SET")),
        }
    }

    pub(super) fn inspect(self, commands: &mut CommandSequence<'_>) -> Result<LockInfo, Stop> {
        let Some(value) = commands.look()? else {
            return Ok(LockInfo::FREE);
        };
        held(commands, value.strip_prefix(OURS).unwrap_or(&value))
    }
}

/// Returns the state of a lock that is held, with its remaining time by the key's TTL.
pub(super) fn held(commands: &mut CommandSequence<'_>, value: &str) -> Result<LockInfo, Stop> {
    match commands.ask("PTTL", &[])? {
        Reply::Int(-2) => Ok(LockInfo::FREE), // the lock ended just now
        Reply::Int(pttl) => {
            let owner = OwnerText::new(value);
            Ok(LockInfo::held(HolderInfo::new(owner, remaining(pttl), 1)))
        }
        _ => Err(commands.unexpected("PTTL")),
    }
}

/// Returns the lease in whole seconds, the unit of these commands. It is never shorter than the
/// lease of the attempt.
pub(super) fn lease(attempt: &Attempt<'_>) -> Text {
    Text::number(seconds(attempt.lease.duration()))
}
