//! [`ScriptCall`]: a script with its keys and arguments.

use crate::connection::Batch;
use crate::lua::Script;

/// A script with its keys and arguments, in the order that the script's head gives.
#[derive(Debug)]
pub(crate) struct ScriptCall {
    pub(crate) script: &'static Script,
    pub(crate) keys: Vec<String>,
    pub(crate) arguments: Vec<Vec<u8>>,
}

impl ScriptCall {
    /// Creates a call with these keys and arguments, in the order that the script's head gives.
    pub(super) fn new(script: &'static Script, keys: Vec<String>, words: &[&[u8]]) -> Self {
        Self {
            script,
            keys,
            arguments: words.iter().map(|word| word.to_vec()).collect(),
        }
    }

    /// Returns a batch of this call alone. An error in reply to the call is the outcome of the
    /// batch.
    pub(super) fn batch(&self) -> Batch {
        let mut batch = Batch::new();
        self.add_to(&mut batch);
        batch.first_decides()
    }

    /// Returns a batch of this call, followed by a read of each of these keys.
    pub(super) fn batch_with_reads(&self, read: &[String]) -> Batch {
        let mut batch = self.batch();
        add_reads(&mut batch, read);
        batch
    }

    /// Adds the call to a batch.
    pub(super) fn add_to(&self, batch: &mut Batch) {
        let keys: Vec<_> = self.keys.iter().map(String::as_bytes).collect();
        let arguments: Vec<_> = self.arguments.iter().map(Vec::as_slice).collect();
        batch.add_script(self.script, &keys, &arguments);
    }
}

/// Adds a read of each of these keys to a batch.
pub(super) fn add_reads(batch: &mut Batch, keys: &[String]) {
    for key in keys {
        batch.add_command("GET", key.as_bytes(), &[]);
    }
}
