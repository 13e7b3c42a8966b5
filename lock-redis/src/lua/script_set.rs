//! [`ScriptSet`]: the scripts that were sent on a connection.

use super::Script;
use std::sync::atomic::{AtomicU64, Ordering};

/// A set of scripts, with one bit for each script, by its number. Threads may share it.
#[derive(Debug, Default)]
pub(crate) struct ScriptSet([AtomicU64; ScriptSet::WORDS]);

impl ScriptSet {
    const WORDS: usize = 2;

    /// Adds a script. Returns true if the set did not contain it.
    ///
    /// A script whose number is too large for a bit is never in the set, so it is sent by its text
    /// each time.
    pub(crate) fn insert(&self, script: &Script) -> bool {
        let number = script.number();
        let bit = 1 << (number % u64::BITS);
        match self.0.get((number / u64::BITS) as usize) {
            Some(word) => word.fetch_or(bit, Ordering::Relaxed) & bit == 0,
            None => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_is_new_once_in_each_set() {
        let scripts: [Script; 3] = [(); 3].map(|()| Script::new("", "", None, "return 1"));
        for set in [ScriptSet::default(), ScriptSet::default()] {
            for script in &scripts {
                assert!(set.insert(script));
                assert!(!set.insert(script));
            }
        }
    }
}
