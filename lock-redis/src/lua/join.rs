//! [`Join`]: two scripts, for one lock and for several locks, and the rules by which requests for
//! single locks are joined.

use super::Script;

/// A script for one lock, the script that does the same for several locks, and the rules by which
/// requests for single locks become one request for several. A place is the position of a word in a
/// request, counted from 0 at the first key. Locks in different slots of a cluster cannot be
/// joined.
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
    /// The places of the arguments that the joined request has once for each lock, arranged as the
    /// keys are. These arguments are the last words of the joined request.
    pub(crate) each: &'static [usize],
    /// True if a request for one lock can be sent again although it may have been carried out,
    /// because the second answer is the same as the first.
    pub(crate) is_repeatable: bool,
}

impl Join {
    /// The largest number of words of a request for one lock, from its first key on.
    pub(crate) const MAX_WORDS: usize = 7;

    /// Returns the number of words of a request for one lock, from its first key on.
    pub(crate) fn word_count(&self) -> usize {
        self.keys.len() + self.common.len() + self.each.len()
    }
}
