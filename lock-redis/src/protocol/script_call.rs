//! [`ScriptCall`]: a script and what it is called with.

use crate::connection::Batch;
use crate::lua::Script;

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

    /// Its request.
    pub(super) fn batch(&self) -> Batch {
        let mut batch = Batch::new();
        self.add_to(&mut batch);
        batch.first_decides()
    }

    /// Its request, with reads of these keys behind it.
    pub(super) fn batch_with_reads(&self, read: &[String]) -> Batch {
        let mut batch = self.batch();
        add_reads(&mut batch, read);
        batch
    }

    /// Adds its request.
    pub(super) fn add_to(&self, batch: &mut Batch) {
        let keys: Vec<_> = self.keys.iter().map(String::as_bytes).collect();
        let arguments: Vec<_> = self.arguments.iter().map(Vec::as_slice).collect();
        batch.add_script(self.script, &keys, &arguments);
    }
}

/// Adds reads of these keys.
pub(super) fn add_reads(batch: &mut Batch, keys: &[String]) {
    for key in keys {
        batch.add_command("GET", key.as_bytes(), &[]);
    }
}
