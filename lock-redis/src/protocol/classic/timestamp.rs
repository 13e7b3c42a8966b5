//! `timestamp`: `SETNX` with the time when the lock ends as its value, and `GETSET` by the client
//! that finds that past: "Design pattern: Locking with SETNX" in the Redis documentation. The time
//! is the clients' own, and the key never expires.
//!
//! It is written in two spellings: whole seconds, with one more than the lease (that page), and as
//! Python prints a float, without (redis-py 2 and tornado-redis).

use super::commands::{CommandSequence, Stop, seconds};
use crate::connection::Reply;
use crate::lua::CLEAR;
use lock_core::backend::{
    AcquisitionId, Answer, Attempt, Failure, Grant, HolderInfo, LockInfo, Receipt, Release,
};
use lock_core::{Clock, Error, ErrorKind, OwnerText};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How a time is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Spelling {
    /// `1700000031`: now, the lease, and one second more.
    Seconds,
    /// `1700000030.0`: now and the lease.
    Float,
}

/// What is looked at before the key is deleted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rule {
    /// Nothing but our own clock.
    Delete,
    /// Whether the time that is stored is no older than ours, before the `DEL`.
    NotOlder,
    /// Whether it is ours, in one step with the `DEL`.
    Compare,
}

/// How a lock is taken over that was held until a time that is past.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Takeover {
    /// Its time is changed for ours, and the client that gets the old one for it has the lock.
    GetSet,
    /// It is deleted, and then free for any client: the obvious way, which the page warns of.
    Delete,
}

pub(super) struct Timestamp {
    pub(super) spelling: Spelling,
    pub(super) takeover: Takeover,
    pub(super) rule: Rule,
    pub(super) clock: Arc<dyn Clock>,
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timestamp")
            .field("spelling", &self.spelling)
            .field("takeover", &self.takeover)
            .field("rule", &self.rule)
            .finish_non_exhaustive()
    }
}

/// The time that a lock of this format is held until, in seconds since 1970, as a grant wrote it.
#[derive(Clone, Debug)]
struct Until(String);

/// What a lock without end is held until: 2^31 + 1, a second more than 32 bits counted.
const FOREVER: u64 = (1 << 31) + 1;

/// A number below this is no time of our days (2001): it is something else.
const EARLIEST: f64 = 1e9;

/// How often an attempt begins anew that finds the lock taken, and then nothing there.
const LOOKS: usize = 3;

impl Timestamp {
    pub(super) fn acquire(
        &self,
        commands: &mut CommandSequence<'_>,
        attempt: &Attempt<'_>,
    ) -> Result<Answer, Stop> {
        let until = self.until(commands, attempt.lease.duration());
        for _ in 0..LOOKS {
            match commands.ask("SETNX", &[until.as_bytes()])? {
                Reply::Int(1) => return Ok(granted(until)),
                Reply::Int(0) => {}
                _ => return Err(commands.unexpected("SETNX")),
            }
            commands.step("GET");
            // Freed in between, and perhaps another's by now: neither to be deleted nor to be
            // overwritten.
            let Some(stored) = commands.get()? else {
                continue;
            };
            return match self.left(commands, &stored)? {
                Some(left) => Ok(busy(left)),
                None => self.take_over(commands, until),
            };
        }
        Ok(Answer::Busy(Some(Duration::ZERO)))
    }

    /// Takes a lock that was held until a time that is past.
    fn take_over(&self, commands: &mut CommandSequence<'_>, until: String) -> Result<Answer, Stop> {
        if self.takeover == Takeover::Delete {
            commands.delete()?;
            commands.wrote();
            commands.step("SETNX");
            return match commands.ask("SETNX", &[until.as_bytes()])? {
                Reply::Int(1) => Ok(granted(until)),
                Reply::Int(_) => Ok(Answer::Busy(Some(Duration::ZERO))),
                _ => Err(commands.unexpected("SETNX")),
            };
        }
        commands.step("GETSET");
        let found = commands.text("GETSET", &[until.as_bytes()])?;
        // If another was faster, its time has been overwritten with ours, a little later: so the
        // algorithm has it.
        commands.wrote();
        match found
            .map(|found| self.left(commands, &found))
            .transpose()?
            .flatten()
        {
            None => Ok(granted(until)),
            Some(left) => Ok(busy(left)),
        }
    }

    pub(super) fn release(
        &self,
        commands: &mut CommandSequence<'_>,
        acquisition: &AcquisitionId,
    ) -> Result<Release, Stop> {
        let Some(Until(ours)) = acquisition.receipt.get::<Until>() else {
            return Err(Stop::Failed(Failure::NotSent(Error::new(
                ErrorKind::Misuse,
                "a lock that was never acquired is not released",
            ))));
        };
        match self.rule {
            Rule::Delete => commands.delete(),
            Rule::NotOlder => {
                let Some(stored) = commands.look()? else {
                    return Ok(Release::Gone);
                };
                let stored = time(commands, &stored)?;
                if ours.parse::<f64>().is_ok_and(|ours| stored < ours) {
                    return Ok(Release::Gone);
                }
                commands.delete()
            }
            Rule::Compare => match commands.run(&CLEAR, &[ours.as_bytes()])? {
                Reply::Int(0) => Ok(Release::Gone),
                Reply::Int(_) => Ok(Release::Freed),
                _ => Err(commands.unexpected("EVALSHA")),
            },
        }
    }

    pub(super) fn inspect(&self, commands: &mut CommandSequence<'_>) -> Result<LockInfo, Stop> {
        let Some(stored) = commands.look()? else {
            return Ok(LockInfo::FREE);
        };
        Ok(match self.left(commands, &stored)? {
            None => LockInfo::FREE,
            Some(left) => LockInfo::held(HolderInfo::new(OwnerText::new(&stored), left, 1)),
        })
    }

    /// The time at which the attempt began: the clock is read once, although the algorithm runs
    /// anew behind each reply.
    fn now(&self, commands: &mut CommandSequence<'_>) -> Duration {
        commands.begin_or(|| self.clock.unix_time())
    }

    /// Until when a lock is held that is taken now, as it is written. In whole seconds upwards,
    /// also as a float: those who write it so read their own clock in whole seconds.
    fn until(&self, commands: &mut CommandSequence<'_>, lease: Duration) -> String {
        let end = seconds(self.now(commands).saturating_add(lease));
        let end = match self.spelling {
            Spelling::Seconds => end + 1,
            Spelling::Float => end,
        };
        let end = end.min(FOREVER);
        match self.spelling {
            Spelling::Seconds => end.to_string(),
            Spelling::Float => format!("{end}.0"),
        }
    }

    /// How long the lock is held yet that this is the time of (an inner `None`: for ever); `None`
    /// if it is free.
    fn left(
        &self,
        commands: &mut CommandSequence<'_>,
        stored: &str,
    ) -> Result<Option<Option<Duration>>, Stop> {
        let until = time(commands, stored)?;
        #[allow(clippy::cast_precision_loss, reason = "it is far below 2^53")]
        if until >= FOREVER as f64 {
            return Ok(Some(None));
        }
        let now = self.now(commands);
        #[allow(clippy::cast_precision_loss, reason = "it is far below 2^53")]
        let read = match self.spelling {
            Spelling::Seconds => now.as_secs_f64(),
            // As the programs read it that write it so. What a finer clock finds past they still
            // hold.
            Spelling::Float => now.as_secs() as f64,
        };
        let left = (until - now.as_secs_f64()).max(0.0);
        Ok((until >= read).then(|| Some(Duration::from_secs_f64(left))))
    }
}

fn granted(until: String) -> Answer {
    Answer::Granted(Grant::new(None).receipt(Receipt::new(Until(until))))
}

/// Another client has it, for this long yet, or for ever.
fn busy(left: Option<Duration>) -> Answer {
    left.map_or(Answer::BusyWithoutExpiry(None), |left| {
        Answer::Busy(Some(left))
    })
}

/// The time that this says.
fn time(commands: &CommandSequence<'_>, stored: &str) -> Result<f64, Stop> {
    let time = stored
        .parse::<f64>()
        .ok()
        .filter(|time| time.is_finite() && *time >= EARLIEST);
    time.ok_or_else(|| {
        commands.foreign(
            stored,
            "the time until which it is held, in seconds since 1970",
        )
    })
}
