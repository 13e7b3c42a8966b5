//! [`CommandSequence`]: the commands of an algorithm about one lock, and the steps between them.

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

/// A hook that is notified of every step between two commands of an algorithm.
///
/// `at` runs on the caller's thread, in the middle of an attempt. To delay the client at a step,
/// `at` blocks.
pub trait StepHook: fmt::Debug + Send + Sync {
    /// Called before this client takes `step` with the lock `name`.
    fn at(&self, step: &'static str, name: &LockName);
}

/// The commands of an algorithm about one lock, in sequence.
///
/// An algorithm runs again after each reply, with the replies received so far. It stops at the
/// first command whose reply is missing.
pub(super) struct CommandSequence<'a> {
    name: &'a LockName,
    pub(super) key: &'a str,
    hook: Option<&'a dyn StepHook>,
    progress: &'a mut Progress,
    /// The place of the next command in the sequence.
    place: usize,
}

/// The reason why an algorithm stops.
pub(super) enum Stop {
    /// The algorithm needs the reply to this step.
    Needs(Box<CommandStep>),
    Failed(Failure),
    /// The last reply is one that the named command cannot give.
    Unexpected(String),
}

/// The requests of an algorithm for one reply.
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

    /// Notifies the hook of a step, unless the step was taken before.
    pub(super) fn step(&self, step: &'static str) {
        if let Some(hook) = self.hook
            && self.progress.received(self.place).is_none()
        {
            hook.at(step, self.name);
        }
    }

    /// Returns the reply to the next command, or the stop at this command if the reply is missing.
    fn once(&mut self, step: impl FnOnce(&str) -> CommandStep) -> Result<Reply, Stop> {
        let reply = self.progress.received(self.place).cloned();
        self.place += 1;
        reply.ok_or_else(|| Stop::Needs(Box::new(step(self.key))))
    }

    /// Returns the time since 1970 at which the attempt began.
    pub(super) fn begin_or(&mut self, now: impl FnOnce() -> Duration) -> Duration {
        self.progress.begin_or(now)
    }

    /// Returns the reply to a command on the lock's key.
    pub(super) fn ask(
        &mut self,
        command: &'static str,
        arguments: &[&[u8]],
    ) -> Result<Reply, Stop> {
        self.once(|key| CommandStep::Request(Batch::command(command, key.as_bytes(), arguments)))
    }

    /// Returns the reply of a script that runs on the lock's key.
    pub(super) fn run(
        &mut self,
        script: &'static Script,
        arguments: &[&[u8]],
    ) -> Result<Reply, Stop> {
        self.once(|key| CommandStep::Request(Batch::script(script, &[key.as_bytes()], arguments)))
    }

    /// Returns the replies to these commands, which are sent as one transaction.
    pub(super) fn transact(&mut self, commands: &[&[&[u8]]]) -> Result<Vec<Reply>, Stop> {
        match self.once(|key| transaction(key, commands))? {
            Reply::Array(answers) => Ok(answers),
            _ => Err(self.unexpected("EXEC")),
        }
    }

    /// Sets the expiry of the key that this attempt has just made. A failure from here on has an
    /// unknown outcome, because the key exists and may have no expiry yet. Returns `false` if the
    /// key is gone: another client may have deleted the key in between, or the master on which it
    /// was made may be gone.
    pub(super) fn expire_in(&mut self, seconds: &[u8]) -> Result<bool, Stop> {
        self.progress.wrote();
        self.step("EXPIRE");
        match self.ask("EXPIRE", &[seconds])? {
            // If another client has made the key anew since, this goes unnoticed, as in the
            // programs that use this algorithm.
            Reply::Int(set) => Ok(set != 0),
            _ => Err(self.unexpected("EXPIRE")),
        }
    }

    /// Notes that a failure from here on may leave behind what was written.
    pub(super) fn wrote(&mut self) {
        self.progress.wrote();
    }

    /// Returns the answer that another client holds the lock, with the remaining time of the key.
    pub(super) fn busy_from_pttl(&mut self) -> Result<Answer, Stop> {
        self.step("PTTL");
        match self.ask("PTTL", &[])? {
            Reply::Int(-2) => Ok(Answer::Busy(Some(Duration::ZERO))), // the key is gone just now
            Reply::Int(pttl) => Ok(protocol::busy_from_pttl(pttl)),
            _ => Err(self.unexpected("PTTL")),
        }
    }

    /// Returns the text under the key, if there is one. Fails without reading the whole text if it
    /// is too long for a lock.
    pub(super) fn get(&mut self) -> Result<Option<String>, Stop> {
        let last = Text::of(LONGEST_TEXT);
        let begin = match self.ask("GETRANGE", &[b"0", last.as_bytes()])? {
            // Empty, or no key: `GET` shows which.
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

    /// Returns the text under the key, if there is one, by a command that a replica refuses: the
    /// replica's master may have another value.
    pub(super) fn look(&mut self) -> Result<Option<String>, Stop> {
        match self.ask("STRLEN", &[])? {
            Reply::Int(length) if length > LONGEST_TEXT => {
                Err(self.foreign(&format!("a text of {length} bytes"), "no longer than 4096"))
            }
            Reply::Int(_) => self.text("GETEX", &[]),
            _ => Err(self.unexpected("STRLEN")),
        }
    }

    /// Returns the text under the key, with which this command replies; `None` for the reply nil.
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

    /// Deletes the key, no matter which client made it.
    pub(super) fn delete(&mut self) -> Result<Release, Stop> {
        self.step("DEL");
        match self.ask("DEL", &[])? {
            Reply::Int(0) => Ok(Release::Gone),
            Reply::Int(_) => Ok(Release::Freed),
            _ => Err(self.unexpected("DEL")),
        }
    }

    /// Returns the stop for a value that is no lock of this format.
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

    /// Returns the stop for a reply that this command cannot give.
    pub(super) fn unexpected(&self, command: &str) -> Stop {
        Stop::Unexpected(command.to_owned())
    }
}

/// Returns the step of a transaction. It includes `MULTI`, because the next step may go to another
/// node, where no transaction has begun.
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
        // `MULTI` goes first and alone: if it is refused, the commands of the transaction must not
        // be sent, because they would run one by one.
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
        // Closed even if nothing was sent: otherwise the commands of the next request would be
        // queued in this transaction.
        received.close();
        return Err(error.into());
    }
    // The error of a command that was not queued says more than the resulting error of `EXEC`.
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

/// Returns the time in whole seconds, rounded up.
pub(super) fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}
