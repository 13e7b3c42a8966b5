//! [`Join`]: how several runs of a script for one lock become one run of a script for several
//! locks.

use super::Script;

/// A pair of scripts that do the same, one for a single lock and one for several, and how requests
/// for single locks become one for several. Words are counted from the first key on. Not for locks
/// in different slots of a cluster.
#[derive(Debug)]
pub(crate) struct Join {
    pub(crate) one: &'static Script,
    pub(crate) many: Script,
    /// The places of the keys among the words. The joined request has the first of these keys of
    /// every request, then the second key of every request, and so on.
    pub(crate) keys: &'static [usize],
    /// The places of the arguments that must be equal in all requests. The joined request has them
    /// once, behind the keys.
    pub(crate) common: &'static [usize],
    /// The places of the arguments of which the joined request has one for each lock, in the order
    /// of the keys. They come last.
    pub(crate) each: &'static [usize],
    /// True if a request for one lock that may have been carried out can be sent again, because its
    /// answer is the same then.
    pub(crate) is_repeatable: bool,
}

impl Join {
    /// The most words of a request, from its first key on.
    pub(crate) const MAX_WORDS: usize = 7;

    /// Returns the number of words of a request for one lock, from its first key on.
    pub(crate) fn word_count(&self) -> usize {
        self.keys.len() + self.common.len() + self.each.len()
    }
}
