//! [`Unowned`]: formats that do not say who holds a lock. They are the algorithms of the time before `SET NX EX` and Lua, each
//! with the races that it is known for (`docs/ALGORITHMS.md`), here to meet programs that still use them.
//!
//! What they cannot do is refused or done another way: a lease is fixed and never renewed, nothing without an answer is
//! sent again, a release is sent only while the lease lasts by our own clock, and who waits asks again and again. On a
//! cluster an attempt goes on at the slot's next node where it stood ([`Progress`]).

use super::counter::Counter;
use super::found::LONGEST_TEXT;
use super::plain::Plain;
use super::polls::Polls;
use super::progress::Progress;
use super::timestamp::Timestamp;
use super::{found, refused, strange};
use crate::connection::{ConnectionLike, Request};
use crate::keys::Keys;
use crate::refusal::Asked;
use crate::reply::Reply;
use crate::script::Script;
use crate::text::Text;
use lock_core::backend::{
    Abilities, AcquisitionId, Answer, Attempt, Failure, LockInfo, Release, ReplicaSupport, Waking,
};
use lock_core::{Error, LockName, Moment};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Who is told of every step between two commands of a format that has several.
///
/// To hold a client up at a step, `at` blocks. It runs on the thread that asks, in the middle of its attempt.
pub trait Stops: fmt::Debug + Send + Sync {
    /// This client is about to take `step` with the lock `name`.
    fn at(&self, step: &'static str, name: &LockName);
}

/// A format without owners, with the settings that it depends on.
#[derive(Debug)]
pub(super) struct Unowned {
    pub(super) keys: Keys,
    pub(super) algorithm: Algorithm,
    pub(super) polls: Polls,
    pub(super) stops: Option<Arc<dyn Stops>>,
}

#[derive(Debug)]
pub(super) enum Algorithm {
    Plain(Plain),
    Timestamp(Timestamp),
    Counter(Counter),
}

impl Unowned {
    pub(super) fn name(&self) -> &'static str {
        match self.algorithm {
            Algorithm::Plain(_) => "plain",
            Algorithm::Timestamp(_) => "timestamp",
            Algorithm::Counter(_) => "counter",
        }
    }

    pub(super) fn stopping(self, stops: Arc<dyn Stops>) -> Self {
        Self { stops: Some(stops), ..self }
    }

    pub(super) fn abilities(&self) -> Abilities {
        let Polls { interval, jitter } = self.polls;
        Abilities::full()
            .owned(false)
            .tokens(false)
            .waking(Waking::Polls { interval, jitter })
            .replication(ReplicaSupport::Never)
    }

    /// Whether commands must follow each other on a link with nobody else's in between.
    pub(super) fn is_exclusive(&self) -> bool {
        matches!(self.algorithm, Algorithm::Counter(Counter::Transaction))
    }

    pub(super) fn acquire(
        &self,
        link: &mut dyn ConnectionLike,
        attempt: &Attempt<'_>,
        progress: &mut Progress,
        by: Moment,
    ) -> Result<Answer, Failure> {
        let (lease, interval) = (attempt.lease.duration(), self.polls.interval);
        if interval >= lease {
            return Err(Failure::NotSent(Error::configuration(format!(
                "who waits asks every {interval:?}, and the lease of {lease:?} is no longer than that: set `poll` in \
                 `format={}` below it",
                self.name()
            ))));
        }
        self.go_on_talking(link, attempt.name, progress, by, |talk| match &self.algorithm {
            Algorithm::Plain(plain) => plain.acquire(talk, attempt),
            Algorithm::Timestamp(timestamp) => timestamp.acquire(talk, attempt),
            Algorithm::Counter(counter) => counter.acquire(talk, attempt),
        })
    }

    pub(super) fn release(
        &self,
        link: &mut dyn ConnectionLike,
        acquisition: &AcquisitionId,
        by: Moment,
    ) -> Result<Release, Failure> {
        self.talk(link, &acquisition.name, by, |talk| match &self.algorithm {
            Algorithm::Timestamp(timestamp) => timestamp.release(talk, acquisition),
            Algorithm::Plain(_) | Algorithm::Counter(_) => talk.delete(),
        })
    }

    pub(super) fn inspect(
        &self,
        link: &mut dyn ConnectionLike,
        name: &LockName,
        by: Moment,
    ) -> Result<LockInfo, Failure> {
        self.talk(link, name, by, |talk| match &self.algorithm {
            Algorithm::Plain(plain) => plain.inspect(talk),
            Algorithm::Timestamp(timestamp) => timestamp.inspect(talk),
            Algorithm::Counter(counter) => counter.inspect(talk),
        })
    }

    /// Only what looks like a lock of this format is deleted. It is looked at first, and may be another's by then: that is
    /// what these formats are like.
    pub(super) fn force(
        &self,
        link: &mut dyn ConnectionLike,
        name: &LockName,
        by: Moment,
    ) -> Result<bool, Failure> {
        if self.inspect(link, name, by)?.holder.is_none() {
            return Ok(false);
        }
        self.talk(link, name, by, |talk| talk.delete().map(|release| release == Release::Freed))
    }

    fn talk<T>(
        &self,
        link: &mut dyn ConnectionLike,
        name: &LockName,
        by: Moment,
        talk: impl FnOnce(&mut Talk<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.go_on_talking(link, name, &mut Progress::default(), by, talk)
    }

    fn go_on_talking<T>(
        &self,
        link: &mut dyn ConnectionLike,
        name: &LockName,
        progress: &mut Progress,
        by: Moment,
        talk: impl FnOnce(&mut Talk<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let (key, stops) = (self.keys.lock(name), self.stops.as_deref());
        talk(&mut Talk { link, name, key: &key, by, stops, progress, place: 0 })
    }
}

/// Commands about one lock, one after the other.
pub(super) struct Talk<'a> {
    link: &'a mut dyn ConnectionLike,
    name: &'a LockName,
    pub(super) key: &'a str,
    by: Moment,
    stops: Option<&'a dyn Stops>,
    progress: &'a mut Progress,
    /// The command that comes next, of all.
    place: usize,
}

impl Talk<'_> {
    /// Now comes this step, if it was not taken already.
    pub(super) fn step(&self, step: &'static str) {
        if let Some(stops) = self.stops
            && self.progress.heard(self.place).is_none()
        {
            stops.at(step, self.name);
        }
    }

    /// The answer to the next command: what was heard where the attempt was before, or what `ask` says.
    fn once(
        &mut self,
        ask: impl FnOnce(&mut Self) -> Result<Reply, Failure>,
    ) -> Result<Reply, Failure> {
        let heard = self.progress.heard(self.place).cloned();
        let reply = match heard {
            Some(reply) => reply,
            None => {
                let reply = ask(self)?;
                self.progress.hear(&reply);
                reply
            }
        };
        self.place += 1;
        Ok(reply)
    }

    /// Sends a command about the lock's key.
    pub(super) fn ask(
        &mut self,
        command: &'static str,
        arguments: &[&[u8]],
    ) -> Result<Reply, Failure> {
        self.once(|talk| {
            let head: &[&[u8]] = &[command.as_bytes(), talk.key.as_bytes()];
            match talk.link.call(&Request(&[head, arguments]), talk.by)? {
                Reply::Error(error) => {
                    let failure = refused(talk.link, &error, &Asked::Command(command, talk.key));
                    Err(found::named(talk.link, failure, talk.key, talk.by))
                }
                reply => Ok(reply),
            }
        })
    }

    /// Runs a script on the lock's key.
    pub(super) fn run(
        &mut self,
        script: &'static Script,
        arguments: &[&[u8]],
    ) -> Result<Reply, Failure> {
        self.once(|talk| {
            super::run(script, talk.link, talk.key, &[talk.key.as_bytes()], arguments, talk.by)
        })
    }

    /// Sends commands as one transaction; the answers are those of the commands.
    pub(super) fn transact(&mut self, commands: &[&[&[u8]]]) -> Result<Vec<Reply>, Failure> {
        match self.once(|talk| talk.exec(commands).map(Reply::Array))? {
            Reply::Array(answers) => Ok(answers),
            _ => Err(self.unexpected("EXEC")),
        }
    }

    fn exec(&mut self, commands: &[&[&[u8]]]) -> Result<Vec<Reply>, Failure> {
        // First, and alone: who may not do this would have the commands behind it carried out one by one.
        if let Reply::Error(error) = self.link.call(&Request(&[&[b"MULTI"]]), self.by)? {
            return Err(refused(self.link, &error, &Asked::Command("MULTI", self.key)));
        }
        let words: Vec<[&[&[u8]]; 1]> = commands.iter().map(|words| [*words]).collect();
        let mut requests: Vec<_> = words.iter().map(|words| Request(words)).collect();
        requests.push(Request(&[&[b"EXEC"]]));
        let (replies, outcome) = self.link.call_many(&requests, self.by);
        if let Err(error) = outcome {
            // Also where nothing was sent: the next one's commands would be queued behind ours.
            self.link.close();
            return Err(error.into());
        }
        // An error of a command that was not even queued says more than that of `EXEC`, which comes of it.
        for reply in replies {
            match reply {
                Reply::Error(error) => {
                    return Err(refused(self.link, &error, &Asked::Command("EXEC", self.key)));
                }
                Reply::Array(answers) => {
                    if let Some(Reply::Error(error)) =
                        answers.iter().find(|answer| matches!(answer, Reply::Error(_)))
                    {
                        let failure = refused(self.link, error, &Asked::Command("EXEC", self.key));
                        return Err(found::named(self.link, failure, self.key, self.by));
                    }
                    return Ok(answers);
                }
                _ => {}
            }
        }
        Err(self.unexpected("EXEC"))
    }

    /// Gives the key that was made just now an expiry. That it was made, and may have none yet, is what a failure says.
    /// Whether it was there still: somebody may have deleted it in between, or the master that made it may be gone.
    pub(super) fn expire_in(&mut self, seconds: &[u8]) -> Result<bool, Failure> {
        self.progress.wrote();
        self.step("EXPIRE");
        match self.ask("EXPIRE", &[seconds])? {
            // If another has made it anew since, nobody can tell, here as in the programs that do this.
            Reply::Int(set) => Ok(set != 0),
            _ => Err(self.unexpected("EXPIRE")),
        }
    }

    /// From here on a failure may leave behind what was written.
    pub(super) fn wrote(&mut self) {
        self.progress.wrote();
    }

    /// Somebody has it, for as long as the key lives.
    pub(super) fn taken(&mut self) -> Result<Answer, Failure> {
        self.step("PTTL");
        match self.ask("PTTL", &[])? {
            Reply::Int(-2) => Ok(Answer::Busy(Some(Duration::ZERO))), // gone just now
            Reply::Int(pttl) => Ok(super::taken(pttl)),
            _ => Err(self.unexpected("PTTL")),
        }
    }

    /// The text under the key, if there is one. Not more of it than a lock may have.
    pub(super) fn get(&mut self) -> Result<Option<String>, Failure> {
        let last = Text::of(LONGEST_TEXT);
        let begin = match self.ask("GETRANGE", &[b"0", last.as_bytes()])? {
            // Empty, or not there.
            Reply::Bulk(begin) if begin.is_empty() => return self.text("GET", &[]),
            Reply::Bulk(begin) => begin,
            _ => return Err(self.unexpected("GETRANGE")),
        };
        let text = String::from_utf8_lossy(&begin).into_owned();
        if begin.len() as i64 > LONGEST_TEXT {
            return Err(self.foreign(&text, "no longer than 4096 bytes"));
        }
        Ok(Some(text))
    }

    /// The same, and refused by a replica: its master may have something else.
    pub(super) fn look(&mut self) -> Result<Option<String>, Failure> {
        match self.ask("STRLEN", &[])? {
            Reply::Int(length) if length > LONGEST_TEXT => {
                Err(self.foreign(&format!("a text of {length} bytes"), "no longer than 4096"))
            }
            Reply::Int(_) => self.text("GETEX", &[]),
            _ => Err(self.unexpected("STRLEN")),
        }
    }

    /// What a command answers that gives the text under the key.
    pub(super) fn text(
        &mut self,
        command: &'static str,
        arguments: &[&[u8]],
    ) -> Result<Option<String>, Failure> {
        match self.ask(command, arguments)? {
            Reply::Nil => Ok(None),
            Reply::Bulk(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            _ => Err(self.unexpected(command)),
        }
    }

    /// Deletes the key, whoever's it is.
    pub(super) fn delete(&mut self) -> Result<Release, Failure> {
        self.step("DEL");
        match self.ask("DEL", &[])? {
            Reply::Int(0) => Ok(Release::Gone),
            Reply::Int(_) => Ok(Release::Freed),
            _ => Err(self.unexpected("DEL")),
        }
    }

    /// What is there is no lock of this format.
    pub(super) fn foreign(&self, found: &str, wanted: &str) -> Failure {
        let begin: String = found.chars().take(40).collect();
        Failure::Refused(Error::new(
            lock_core::ErrorKind::ForeignFormat,
            format!(
                "{begin:?} is under the key {:?}, and a lock of this format is {wanted}",
                self.key
            ),
        ))
    }

    /// The server answered, but not as to this command.
    pub(super) fn unexpected(&mut self, command: &str) -> Failure {
        self.link.close();
        strange(self.link.server(), &format!("the command {command}"))
    }
}

/// So many whole seconds are no shorter.
pub(super) fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}
