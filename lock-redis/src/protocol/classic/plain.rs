//! `plain`: `SET key value NX EX seconds`, and a plain `DEL`: the first form of a lock on the page
//! of `SET` in the Redis documentation. A client that holds it for longer than its lease deletes
//! its successor's. And what was there before `SET` could do both: `SETNX` and `EXPIRE`.

use super::commands::{CommandSequence, Stop, seconds};
use crate::connection::{Reply, Text};
use crate::protocol::remaining;
use lock_core::OwnerText;
use lock_core::backend::{Answer, Attempt, Grant, HolderInfo, LockInfo};
use std::time::Duration;

/// The value is ours to choose; it says who holds the lock, for people who look, and no command
/// reads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Plain {
    /// In one command.
    Set,
    /// In two. If the second never comes, the lock stays for ever.
    Commands,
}

/// What stands before the owner where it is one of us.
const OURS: &str = "distlock:";

impl Plain {
    pub(super) fn acquire(
        self,
        commands: &mut CommandSequence<'_>,
        attempt: &Attempt<'_>,
    ) -> Result<Answer, Stop> {
        // Not as `token` writes it: a client of that format would wait to be told of the release.
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
            // Anything at all that is there keeps us out; what is no text is no lock of this
            // format.
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

/// It is held; the key's TTL says for how long.
pub(super) fn held(commands: &mut CommandSequence<'_>, value: &str) -> Result<LockInfo, Stop> {
    match commands.ask("PTTL", &[])? {
        Reply::Int(-2) => Ok(LockInfo::FREE), // it ended just now
        Reply::Int(pttl) => {
            let owner = OwnerText::new(value);
            Ok(LockInfo::held(HolderInfo::new(owner, remaining(pttl), 1)))
        }
        _ => Err(commands.unexpected("PTTL")),
    }
}

/// The lease in whole seconds, which these commands count in: never shorter than what was asked
/// for.
pub(super) fn lease(attempt: &Attempt<'_>) -> Text {
    Text::number(seconds(attempt.lease.duration()))
}
