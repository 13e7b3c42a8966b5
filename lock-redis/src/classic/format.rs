//! [`ClassicFormat`]: the three algorithms as a wire format, command by command.

use super::counter::Counter;
use super::plain::Plain;
use super::progress::Progress;
use super::timestamp::Timestamp;
use crate::connection::{ConnectionLike, Request};
use crate::error_mapping::Asked;
use crate::format::{self, LONGEST_TEXT, WireFormat, refused, strange};
use crate::keys::Keys;
use crate::pubsub::PollInterval;
use crate::reply::Reply;
use crate::script::Script;
use crate::text::Text;
use lock_core::backend::{
    Abilities, AcquisitionId, Answer, Attempt, Failure, LockInfo, Release, ReleaseOptions,
    ReplicaSupport, Waking,
};
use lock_core::{Error, ErrorKind, LockName, Moment, OwnerId};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Is told of every step between two commands of an algorithm that has several.
///
/// To hold a client up at a step, `at` blocks. It runs on the thread that asks, in the middle of
/// its attempt.
pub trait StepHook: fmt::Debug + Send + Sync {
    /// This client is about to take `step` with the lock `name`.
    fn at(&self, step: &'static str, name: &LockName);
}

/// One of the algorithms, with the settings that it depends on.
#[derive(Debug)]
pub(super) struct ClassicFormat {
    pub(super) keys: Keys,
    pub(super) algorithm: Algorithm,
    pub(super) polls: PollInterval,
    pub(super) hook: Option<Arc<dyn StepHook>>,
    /// Attempts that may be sent on from one node to the next. `None` but on a cluster: where a
    /// server takes the place of another, what the former answered says nothing of the latter.
    pub(super) attempts: Option<Mutex<HashMap<OwnerId, Progress>>>,
}

#[derive(Debug)]
pub(super) enum Algorithm {
    Plain(Plain),
    Timestamp(Timestamp),
    Counter(Counter),
}

impl WireFormat for ClassicFormat {
    fn name(&self) -> &'static str {
        match self.algorithm {
            Algorithm::Plain(_) => "plain",
            Algorithm::Timestamp(_) => "timestamp",
            Algorithm::Counter(_) => "counter",
        }
    }

    fn keys(&self) -> &Keys {
        &self.keys
    }

    fn polls(&self) -> PollInterval {
        self.polls
    }

    fn abilities(&self, _: ReplicaSupport) -> Abilities {
        let PollInterval { interval, jitter } = self.polls;
        Abilities::full()
            .renewable(false)
            .tokens(false)
            .waking(Waking::Polls { interval, jitter })
            .replication(ReplicaSupport::Never)
    }

    /// A transaction must not have other requests in between.
    fn needs_own_link(&self) -> bool {
        matches!(self.algorithm, Algorithm::Counter(Counter::Transaction))
    }

    fn acquire(
        &self,
        link: &mut dyn ConnectionLike,
        attempt: &Attempt<'_>,
        by: Moment,
    ) -> Result<Answer, Failure> {
        let (lease, interval) = (attempt.lease.duration(), self.polls.interval);
        if interval >= lease {
            return Err(Failure::NotSent(Error::configuration(format!(
                "a waiter asks every {interval:?}, and the lease of {lease:?} is no longer than \
                 that: set `poll` in `format={}` below it",
                self.name()
            ))));
        }
        let mut progress = self.attempts.as_ref().map_or_else(Progress::default, |attempts| {
            attempts.lock().get_mut(&attempt.owner).map(std::mem::take).unwrap_or_default()
        });
        let answer =
            self.go_on(link, attempt.name, &mut progress, by, |commands| match &self.algorithm {
                Algorithm::Plain(plain) => plain.acquire(commands, attempt),
                Algorithm::Timestamp(timestamp) => timestamp.acquire(commands, attempt),
                Algorithm::Counter(counter) => counter.acquire(commands, attempt),
            });
        let Some(attempts) = &self.attempts else { return progress.settle(answer) };
        if let Some(known) = attempts.lock().get_mut(&attempt.owner) {
            *known = progress;
        }
        answer
    }

    fn release(
        &self,
        link: &mut dyn ConnectionLike,
        acquisition: &AcquisitionId,
        _: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure> {
        self.begin(link, &acquisition.name, by, |commands| match &self.algorithm {
            Algorithm::Timestamp(timestamp) => timestamp.release(commands, acquisition),
            Algorithm::Plain(_) | Algorithm::Counter(_) => commands.delete(),
        })
    }

    fn inspect(
        &self,
        link: &mut dyn ConnectionLike,
        name: &LockName,
        by: Moment,
    ) -> Result<LockInfo, Failure> {
        self.begin(link, name, by, |commands| match &self.algorithm {
            Algorithm::Plain(plain) => plain.inspect(commands),
            Algorithm::Timestamp(timestamp) => timestamp.inspect(commands),
            Algorithm::Counter(counter) => counter.inspect(commands),
        })
    }

    /// Only what looks like a lock of this format is deleted. It is looked at first, and may be
    /// another's by then: that is what these formats are like.
    fn force(
        &self,
        link: &mut dyn ConnectionLike,
        name: &LockName,
        by: Moment,
    ) -> Result<bool, Failure> {
        if self.inspect(link, name, by)?.holder.is_none() {
            return Ok(false);
        }
        let delete = |commands: &mut CommandSequence<'_>| commands.delete();
        Ok(self.begin(link, name, by, delete)? == Release::Freed)
    }
}

impl ClassicFormat {
    /// Makes an attempt of `owner`, which on a cluster goes on at the next node where it stood.
    pub(super) fn attempt(
        &self,
        owner: OwnerId,
        attempt: impl FnOnce() -> Result<Answer, Failure>,
    ) -> Result<Answer, Failure> {
        let Some(attempts) = &self.attempts else { return attempt() };
        attempts.lock().insert(owner, Progress::default());
        let outcome = attempt();
        let progress = attempts.lock().remove(&owner);
        progress.unwrap_or_default().settle(outcome)
    }

    fn begin<T>(
        &self,
        link: &mut dyn ConnectionLike,
        name: &LockName,
        by: Moment,
        commands: impl FnOnce(&mut CommandSequence<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.go_on(link, name, &mut Progress::default(), by, commands)
    }

    fn go_on<T>(
        &self,
        link: &mut dyn ConnectionLike,
        name: &LockName,
        progress: &mut Progress,
        by: Moment,
        commands: impl FnOnce(&mut CommandSequence<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let (key, hook) = (self.keys.lock(name), self.hook.as_deref());
        commands(&mut CommandSequence { link, name, key: &key, by, hook, progress, place: 0 })
    }
}

/// Commands about one lock, one after the other.
pub(super) struct CommandSequence<'a> {
    link: &'a mut dyn ConnectionLike,
    name: &'a LockName,
    pub(super) key: &'a str,
    by: Moment,
    hook: Option<&'a dyn StepHook>,
    progress: &'a mut Progress,
    /// The command that comes next, of all.
    place: usize,
}

impl CommandSequence<'_> {
    /// Now comes this step, if it was not taken already.
    pub(super) fn step(&self, step: &'static str) {
        if let Some(hook) = self.hook
            && self.progress.heard(self.place).is_none()
        {
            hook.at(step, self.name);
        }
    }

    /// The answer to the next command: what was heard where the attempt was before, or what `ask`
    /// says.
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
        self.once(|sequence| {
            let head: &[&[u8]] = &[command.as_bytes(), sequence.key.as_bytes()];
            match sequence.link.call(&Request(&[head, arguments]), sequence.by)? {
                Reply::Error(error) => {
                    let failure =
                        refused(sequence.link, &error, &Asked::Command(command, sequence.key));
                    Err(format::with_found_value(sequence.link, failure, sequence.key, sequence.by))
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
        self.once(|sequence| {
            format::run(
                script,
                sequence.link,
                sequence.key,
                &[sequence.key.as_bytes()],
                arguments,
                sequence.by,
            )
        })
    }

    /// Sends commands as one transaction; the answers are those of the commands.
    pub(super) fn transact(&mut self, commands: &[&[&[u8]]]) -> Result<Vec<Reply>, Failure> {
        match self.once(|sequence| sequence.exec(commands).map(Reply::Array))? {
            Reply::Array(answers) => Ok(answers),
            _ => Err(self.unexpected("EXEC")),
        }
    }

    fn exec(&mut self, commands: &[&[&[u8]]]) -> Result<Vec<Reply>, Failure> {
        // First, and alone: without the right to MULTI, the commands behind it would run one by
        // one.
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
        // An error of a command that was not even queued says more than that of `EXEC`, which comes
        // of it.
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
                        return Err(format::with_found_value(
                            self.link, failure, self.key, self.by,
                        ));
                    }
                    return Ok(answers);
                }
                _ => {}
            }
        }
        Err(self.unexpected("EXEC"))
    }

    /// Gives the key that was made just now an expiry. That it was made, and may have none yet, is
    /// what a failure says. Whether it was there still: another client may have deleted it in
    /// between, or the master that made it may be gone.
    pub(super) fn expire_in(&mut self, seconds: &[u8]) -> Result<bool, Failure> {
        self.progress.wrote();
        self.step("EXPIRE");
        match self.ask("EXPIRE", &[seconds])? {
            // If another client has made it anew since, that is not seen, as in the programs that
            // do this.
            Reply::Int(set) => Ok(set != 0),
            _ => Err(self.unexpected("EXPIRE")),
        }
    }

    /// From here on a failure may leave behind what was written.
    pub(super) fn wrote(&mut self) {
        self.progress.wrote();
    }

    /// Another client has it, for as long as the key lives.
    pub(super) fn taken(&mut self) -> Result<Answer, Failure> {
        self.step("PTTL");
        match self.ask("PTTL", &[])? {
            Reply::Int(-2) => Ok(Answer::Busy(Some(Duration::ZERO))), // gone just now
            Reply::Int(pttl) => Ok(format::taken(pttl)),
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

    /// Deletes the key, whichever client made it.
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
            ErrorKind::ForeignFormat,
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
