//! [`CommandSequence`]: commands about one lock, and the steps between them.

use super::progress::Progress;
use crate::connection::error_mapping::Asked;
use crate::connection::{ConnectionLike, Reply, Request, Text};
use crate::format::{self, LONGEST_TEXT, refused, unexpected_reply};
use crate::lua::Script;
use lock_core::backend::{Answer, Failure, Release};
use lock_core::{Error, ErrorKind, LockName, Moment};
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

impl<'a> CommandSequence<'a> {
    pub(super) fn new(
        link: &'a mut dyn ConnectionLike,
        name: &'a LockName,
        key: &'a str,
        by: Moment,
        hook: Option<&'a dyn StepHook>,
        progress: &'a mut Progress,
    ) -> Self {
        Self {
            link,
            name,
            key,
            by,
            hook,
            progress,
            place: 0,
        }
    }

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
            match sequence
                .link
                .call(&Request(&[head, arguments]), sequence.by)?
            {
                Reply::Error(error) => {
                    let failure = refused(
                        sequence.link,
                        &error,
                        &Asked::Command(command, sequence.key),
                    );
                    Err(format::with_found_value(
                        sequence.link,
                        failure,
                        sequence.key,
                        sequence.by,
                    ))
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
            return Err(refused(
                self.link,
                &error,
                &Asked::Command("MULTI", self.key),
            ));
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
                    return Err(refused(
                        self.link,
                        &error,
                        &Asked::Command("EXEC", self.key),
                    ));
                }
                Reply::Array(answers) => {
                    if let Some(Reply::Error(error)) = answers
                        .iter()
                        .find(|answer| matches!(answer, Reply::Error(_)))
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
    pub(super) fn busy_from_pttl(&mut self) -> Result<Answer, Failure> {
        self.step("PTTL");
        match self.ask("PTTL", &[])? {
            Reply::Int(-2) => Ok(Answer::Busy(Some(Duration::ZERO))), // gone just now
            Reply::Int(pttl) => Ok(format::busy_from_pttl(pttl)),
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
        unexpected_reply(self.link.server(), &format!("the command {command}"))
    }
}

/// So many whole seconds are no shorter.
pub(super) fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}
