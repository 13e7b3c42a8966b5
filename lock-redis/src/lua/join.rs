//! [`Join`]: how runs of a script for one lock each become one run of a script for several.

use super::Script;

/// A script that does for several locks what another does for one, and which words of the requests
/// for one make the request for all. Words are counted from the first key on. Not for locks in
/// different slots of a cluster.
#[derive(Debug)]
pub(crate) struct Join {
    pub(crate) one: &'static Script,
    pub(crate) many: Script,
    /// Which words are keys. The joined request has the first of these of every request, then the
    /// second of every request, and so on.
    pub(crate) keys: &'static [usize],
    /// The arguments that are given once, and so must be the same; they come next.
    pub(crate) common: &'static [usize],
    /// The arguments that are given for each, in the order of the keys.
    pub(crate) each: &'static [usize],
    /// Whether a request for one lock that may have been carried out can be sent again: it has the
    /// same answer then.
    pub(crate) is_repeatable: bool,
}

impl Join {
    /// The most words that a request may have from its first key on.
    pub(crate) const MAX_WORDS: usize = 6;

    /// How many words a request for one lock has from its first key on.
    pub(crate) fn word_count(&self) -> usize {
        self.keys.len() + self.common.len() + self.each.len()
    }
}
