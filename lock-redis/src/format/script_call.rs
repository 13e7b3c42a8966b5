//! [`ScriptCall`]: a script and what it is called with.

use super::run::{Run, run, run_with_reads};
use crate::connection::{ConnectionLike, Reply};
use crate::lua::Script;
use lock_core::Moment;
use lock_core::backend::Failure;

/// A script with its keys and arguments, which are in the order of its head.
#[derive(Debug)]
pub(crate) struct ScriptCall {
    pub(crate) script: &'static Script,
    pub(crate) keys: Vec<String>,
    pub(crate) arguments: Vec<Vec<u8>>,
}

impl ScriptCall {
    /// With these arguments, in the order of the script's head.
    pub(super) fn new(script: &'static Script, keys: Vec<String>, words: &[&[u8]]) -> Self {
        Self {
            script,
            keys,
            arguments: words.iter().map(|word| word.to_vec()).collect(),
        }
    }

    /// The keys and the arguments.
    pub(crate) fn words(&self) -> (Vec<&[u8]>, Vec<&[u8]>) {
        let keys = self.keys.iter().map(String::as_bytes).collect();
        (keys, self.arguments.iter().map(Vec::as_slice).collect())
    }

    /// Runs it, with reads of these keys behind it.
    pub(super) fn run_with_reads(
        &self,
        link: &mut dyn ConnectionLike,
        read: &[String],
        by: Moment,
    ) -> Result<(Reply, Vec<Reply>), Failure> {
        let (keys, arguments) = self.words();
        let run = Run {
            keys: &keys,
            arguments: &arguments,
        };
        run_with_reads(self.script, link, &run, read, by)
    }

    /// Runs it on a connection.
    pub(crate) fn run(&self, link: &mut dyn ConnectionLike, by: Moment) -> Result<Reply, Failure> {
        let (keys, arguments) = self.words();
        run(self.script, link, &keys, &arguments, by)
    }
}
