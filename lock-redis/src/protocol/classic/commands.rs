//! [`CommandSequence`]: commands about one lock, and the steps between them.

use super::progress::Progress;
use crate::connection::error_mapping::Asked;
use crate::connection::{Batch, Reply, Request, Text};
use crate::lua::Script;
use crate::protocol::exchange::{Exchange, Received};
use crate::protocol::{self, LONGEST_TEXT};
use lock_core::backend::{Answer, Failure, Release};
use lock_core::{Error, ErrorKind, LockName};
use std::fmt;
use std::time::Duration;

/// Is told of every step between two commands of an algorithm that has several.
///
/// To hold a client up at a step, `at` blocks. It runs on the thread that asks, in the middle of
/// its attempt.
pub trait StepHook: fmt::Debug + Send + Sync {
    /// This client is about to take `step` with the lock `name`.
    fn at(&self, step: &'static str, name: &LockName);
}

/// Commands about one lock, one after the other, as far as their replies are known.
///
/// An algorithm runs anew behind each reply, with those that were received until then. It stops
/// where it needs the next one.
pub(super) struct CommandSequence<'a> {
    name: &'a LockName,
    pub(super) key: &'a str,
    hook: Option<&'a dyn StepHook>,
    progress: &'a mut Progress,
    /// The command that comes next, of all.
    place: usize,
}

/// Why an algorithm stops.
pub(super) enum Stop {
    /// It needs the reply to this.
    Needs(Box<CommandStep>),
    Failed(Failure),
    /// The server answered, but not as to this command.
    Unexpected(String),
}

/// What is sent for one reply of an algorithm.
pub(super) enum CommandStep {
    Request(Batch),
    /// The commands of a transaction about this key, and `EXEC`.
    Transaction(Batch, String),
}

impl<'a> CommandSequence<'a> {
    pub(super) fn new(
        name: &'a LockName,
        key: &'a str,
        hook: Option<&'a dyn StepHook>,
        progress: &'a mut Progress,
    ) -> Self {
        Self {
            name,
            key,
            hook,
            progress,
            place: 0,
        }
    }

    /// Now comes this step, if it was not taken already.
    pub(super) fn step(&self, step: &'static str) {
        if let Some(hook) = self.hook
            && self.progress.received(self.place).is_none()
        {
            hook.at(step, self.name);
        }
    }

    /// The reply to the next command, if it is known; otherwise what is sent for it.
    fn once(&mut self, step: impl FnOnce(&str) -> CommandStep) -> Result<Reply, Stop> {
        let reply = self.progress.received(self.place).cloned();
        self.place += 1;
        reply.ok_or_else(|| Stop::Needs(Box::new(step(self.key))))
    }

    /// The time since 1970 at which the attempt began.
    pub(super) fn begin_or(&mut self, now: impl FnOnce() -> Duration) -> Duration {
        self.progress.begin_or(now)
    }

    /// Sends a command about the lock's key.
    pub(super) fn ask(
        &mut self,
        command: &'static str,
        arguments: &[&[u8]],
    ) -> Result<Reply, Stop> {
        self.once(|key| CommandStep::Request(Batch::command(command, key.as_bytes(), arguments)))
    }

    /// Runs a script on the lock's key.
    pub(super) fn run(
        &mut self,
        script: &'static Script,
        arguments: &[&[u8]],
    ) -> Result<Reply, Stop> {
        self.once(|key| CommandStep::Request(Batch::script(script, &[key.as_bytes()], arguments)))
    }

    /// Sends commands as one transaction; the answers are those of the commands.
    pub(super) fn transact(&mut self, commands: &[&[&[u8]]]) -> Result<Vec<Reply>, Stop> {
        match self.once(|key| transaction(key, commands))? {
            Reply::Array(answers) => Ok(answers),
            _ => Err(self.unexpected("EXEC")),
        }
    }

    /// Gives the key that was made just now an expiry. That it was made, and may have none yet, is
    /// what a failure says. Whether it was there still: another client may have deleted it in
    /// between, or the master that made it may be gone.
    pub(super) fn expire_in(&mut self, seconds: &[u8]) -> Result<bool, Stop> {
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
    pub(super) fn busy_from_pttl(&mut self) -> Result<Answer, Stop> {
        self.step("PTTL");
        match self.ask("PTTL", &[])? {
            Reply::Int(-2) => Ok(Answer::Busy(Some(Duration::ZERO))), // gone just now
            Reply::Int(pttl) => Ok(protocol::busy_from_pttl(pttl)),
            _ => Err(self.unexpected("PTTL")),
        }
    }

    /// The text under the key, if there is one. Not more of it than a lock may have.
    pub(super) fn get(&mut self) -> Result<Option<String>, Stop> {
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
    pub(super) fn look(&mut self) -> Result<Option<String>, Stop> {
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
    ) -> Result<Option<String>, Stop> {
        match self.ask(command, arguments)? {
            Reply::Nil => Ok(None),
            Reply::Bulk(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            _ => Err(self.unexpected(command)),
        }
    }

    /// Deletes the key, whichever client made it.
    pub(super) fn delete(&mut self) -> Result<Release, Stop> {
        self.step("DEL");
        match self.ask("DEL", &[])? {
            Reply::Int(0) => Ok(Release::Gone),
            Reply::Int(_) => Ok(Release::Freed),
            _ => Err(self.unexpected("DEL")),
        }
    }

    /// What is there is no lock of this format.
    pub(super) fn foreign(&self, found: &str, wanted: &str) -> Stop {
        let begin: String = found.chars().take(40).collect();
        Stop::Failed(Failure::Refused(Error::new(
            ErrorKind::ForeignFormat,
            format!(
                "{begin:?} is under the key {:?}, and a lock of this format is {wanted}",
                self.key
            ),
        )))
    }

    /// The server answered, but not as to this command.
    pub(super) fn unexpected(&self, command: &str) -> Stop {
        Stop::Unexpected(command.to_owned())
    }
}

/// `MULTI` is part of the step: where it was answered elsewhere, it begins nothing here.
fn transaction(key: &str, commands: &[&[&[u8]]]) -> CommandStep {
    let mut batch = Batch::new();
    for words in commands.iter().chain(&[[b"EXEC".as_slice()].as_slice()]) {
        batch.add(&Request(&[words]));
        batch.inside_transaction();
    }
    CommandStep::Transaction(batch, key.to_owned())
}

impl CommandStep {
    /// Returns the operation that sends this step and ends with the reply.
    pub(super) fn exchange<'a>(self) -> Exchange<'a, Reply> {
        let (batch, key) = match self {
            Self::Request(batch) => {
                return Exchange::call(batch, |received| Ok(received.take_reply()));
            }
            Self::Transaction(batch, key) => (batch, key),
        };
        // First, and alone: without the right to MULTI, the commands behind it would run one by
        // one.
        let multi = Batch::from_requests(&[Request(&[&[b"MULTI"]])]);
        Exchange::send(multi, move |received| {
            if let Err(error) = received.take_outcome() {
                return Exchange::Done(Err(error.into()));
            }
            if let Reply::Error(error) = received.take_reply() {
                let failure = received.refused(&error, &Asked::Command("MULTI", &key));
                return Exchange::Done(Err(failure));
            }
            Exchange::call(batch, move |received| {
                executed(received, &key).map(Reply::Array)
            })
        })
    }
}

/// Reads the replies to the commands of a transaction.
fn executed(received: &mut Received<'_>, key: &str) -> Result<Vec<Reply>, Failure> {
    if let Err(error) = received.take_outcome() {
        // Also where nothing was sent: the next one's commands would be queued behind ours.
        received.close();
        return Err(error.into());
    }
    // An error of a command that was not even queued says more than that of `EXEC`, which comes of
    // it.
    for reply in &*received.take_replies() {
        match reply {
            Reply::Error(error) => {
                return Err(received.refused(error, &Asked::Command("EXEC", key)));
            }
            Reply::Array(answers) => {
                if let Some(Reply::Error(error)) = answers
                    .iter()
                    .find(|answer| matches!(answer, Reply::Error(_)))
                {
                    received.set_found_key(key);
                    return Err(received.refused(error, &Asked::Command("EXEC", key)));
                }
                return Ok(answers.clone());
            }
            _ => {}
        }
    }
    Err(received.unexpected_to("EXEC"))
}

/// So many whole seconds are no shorter.
pub(super) fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}
