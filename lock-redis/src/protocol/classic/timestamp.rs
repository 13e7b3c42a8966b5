//! `timestamp`: the value of a key is the end of the lock. `SETNX` acquires a free lock, and
//! `GETSET` takes over a lock whose end is in the past ("Design pattern: Locking with SETNX" in the
//! Redis documentation). Each client compares the end with its own clock, and the key never
//! expires.
//!
//! Programs write the end in two ways: in whole seconds, one second later than the end of the lease
//! (the Redis documentation), or as a Python float, without the extra second (redis-py 2 and
//! tornado-redis).

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

/// The spelling of a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Spelling {
    /// `1700000031`: now, plus the lease, plus one second.
    Seconds,
    /// `1700000030.0`: now, plus the lease.
    Float,
}

/// The check that a release makes before it deletes the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rule {
    /// No check here: `ClassicRules` releases only while the lease lasts by this client's clock.
    Delete,
    /// The stored time must not be older than this client's. The check is a command before the
    /// `DEL`.
    NotOlder,
    /// The stored time must be this client's. The check and the `DEL` are one step.
    Compare,
}

/// The takeover of a lock whose time is past.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Takeover {
    /// `GETSET` replaces the lock's time by this client's. A client whose `GETSET` returns a time
    /// in the past has the lock.
    GetSet,
    /// The key is deleted, which frees the lock for any client. The Redis documentation warns of
    /// this obvious way.
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

/// The end of a lock of this format in seconds since 1970, as its grant wrote it.
#[derive(Clone, Debug)]
struct Until(String);

/// The stored time of a lock without an end: 2^31 + 1, later than any time of signed 32 bits.
const FOREVER: u64 = (1 << 31) + 1;

/// The earliest time of a lock (2001). A smaller number is other data.
const EARLIEST: f64 = 1e9;

/// The largest number of rounds of an attempt. A round fails if the key exists at `SETNX` and is
/// gone when its value is read.
const LOOKS: usize = 3;

impl Timestamp {
    /// Returns the commands of an attempt.
    pub(super) fn commands(&self) -> &'static [&'static str] {
        match self.takeover {
            Takeover::Delete => &["setnx", "getrange", "get", "del"],
            Takeover::GetSet => &["setnx", "getrange", "get", "getset"],
        }
    }

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
            // Without a value, the lock was freed after the `SETNX`. Another client may have
            // acquired it since, so the key must be neither deleted nor overwritten.
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

    /// Takes over a lock whose time is past.
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
        // If another client was faster, this client's time has replaced that client's time. The
        // algorithm accepts that.
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

    /// Returns the time at which the attempt began. The clock is read only once, although the
    /// algorithm runs again after each reply.
    fn now(&self, commands: &mut CommandSequence<'_>) -> Duration {
        commands.begin_or(|| self.clock.unix_time())
    }

    /// Returns the end of a lock that is acquired now, in the spelling of stored times. The end is
    /// rounded up to whole seconds even as a float, because programs that write a float read their
    /// clocks in whole seconds.
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

    /// Returns the remaining time of a lock with this stored time: `Some(None)` for a lock without
    /// an end, and `None` for a free lock.
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
            // The clock is read in whole seconds, as by the programs that write a float. Such a
            // program holds the lock to the end of the second that is stored.
            Spelling::Float => now.as_secs() as f64,
        };
        let left = (until - now.as_secs_f64()).max(0.0);
        Ok((until >= read).then(|| Some(Duration::from_secs_f64(left))))
    }
}

fn granted(until: String) -> Answer {
    Answer::Granted(Grant::new(None).receipt(Receipt::new(Until(until))))
}

/// Returns the answer for a lock that another client holds for this time, or for ever.
fn busy(left: Option<Duration>) -> Answer {
    left.map_or(Answer::BusyWithoutExpiry(None), |left| {
        Answer::Busy(Some(left))
    })
}

/// Reads a stored time.
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
