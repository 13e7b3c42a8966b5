//! [`TokenProposals`]: the fencing tokens that attempts propose to the nodes.
//!
//! The first proposal of an attempt is the time of day in microseconds, or one more than the
//! largest known token of the name if that is larger. As with a ballot of Paxos, a node refuses a
//! proposal that is too small.

use lock_core::{Clock, FencingToken, LockName, OwnerId};
use parking_lot::Mutex;
use std::collections::HashMap;

/// The tokens granted to this client. The tokens of a failed attempt, which only a minority of
/// nodes has stored, are not included. After a token is forgotten, the next attempt may need
/// a second round, because the nodes still require a larger token.
#[derive(Default)]
pub(super) struct TokenProposals(Mutex<State>);

#[derive(Default)]
struct State {
    /// The largest granted token of each name, including reserved tokens that were not given back.
    seen: HashMap<LockName, u64>,
    /// The first token and the number of reserved tokens of each grant that is not released yet.
    /// A repeated attempt of the owner must propose the same tokens.
    won: HashMap<OwnerId, (u64, u32)>,
}

/// The largest number of entries of each map, which bounds a client's memory. A full map is
/// cleared.
const MAX_ENTRIES: usize = 10_000;

impl TokenProposals {
    /// Returns the first token to propose for this owner.
    pub(super) fn first(
        &self,
        name: &LockName,
        owner: OwnerId,
        reserve: u32,
        clock: &dyn Clock,
    ) -> FencingToken {
        let state = self.0.lock();
        if let Some((first, reserved)) = state.won.get(&owner)
            && *reserved == reserve
        {
            return FencingToken::new(*first);
        }
        let seen = state.seen.get(name).copied().unwrap_or(0);
        drop(state);
        let time = u64::try_from(clock.unix_time().as_micros()).unwrap_or(0);
        FencingToken::new(time.max(seen + 1))
    }

    /// Records that the proposal was granted.
    pub(super) fn won(&self, name: &LockName, owner: OwnerId, first: FencingToken, reserve: u32) {
        let mut state = self.0.lock();
        if state.won.len() >= MAX_ENTRIES {
            state.won.clear();
        }
        state.won.insert(owner, (first.get(), reserve));
        drop(state);
        self.saw(name, first.get() + u64::from(reserve));
    }

    /// Forgets the largest token of a name. Called after a failed attempt if a node refused the
    /// proposal as too far ahead of its clock: the token may come from clocks that have been set
    /// back since. Otherwise the node would refuse the next proposals of this name, too.
    pub(super) fn forget(&self, name: &LockName) {
        self.0.lock().seen.remove(name);
    }

    /// Records a token of this name, after a majority has stored this token or a larger one.
    fn saw(&self, name: &LockName, token: u64) {
        let mut state = self.0.lock();
        if state.seen.len() >= MAX_ENTRIES && !state.seen.contains_key(name) {
            state.seen.clear();
        }
        match state.seen.get_mut(name) {
            Some(seen) => *seen = token.max(*seen),
            None => drop(state.seen.insert(name.clone(), token)),
        }
    }

    /// Records the release of a lock. The tokens after the last used one are given back, if that
    /// one is known and no larger token was granted since.
    pub(super) fn released(&self, name: &LockName, owner: OwnerId, used: Option<FencingToken>) {
        let mut state = self.0.lock();
        let Some((first, reserve)) = state.won.remove(&owner) else {
            return;
        };
        if let (Some(used), Some(seen)) = (used, state.seen.get_mut(name))
            && *seen == first + u64::from(reserve)
        {
            *seen = used.get();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::{ClientId, ManualClock};

    #[test]
    fn proposal_is_the_time_or_above_the_largest_seen_token() {
        let (proposals, clock) = (TokenProposals::default(), ManualClock::new());
        let name = LockName::new("a").unwrap();
        let owner = |number| OwnerId::new(ClientId::random(), number);
        let now = u64::try_from(clock.unix_time().as_micros()).unwrap();
        let (one, two) = (owner(1), owner(2));
        let first = proposals.first(&name, one, 5, &clock);
        assert_eq!(first.get(), now);
        proposals.won(&name, one, first, 5);
        assert_eq!(proposals.first(&name, one, 5, &clock), first);
        assert_eq!(proposals.first(&name, two, 0, &clock).get(), now + 6);
        proposals.released(&name, one, Some(FencingToken::new(now + 2)));
        assert_eq!(proposals.first(&name, two, 0, &clock).get(), now + 3);
        proposals.saw(&name, now + 100);
        assert_eq!(proposals.first(&name, one, 5, &clock).get(), now + 101);
        proposals.forget(&name);
        assert_eq!(proposals.first(&name, two, 0, &clock).get(), now);
    }
}
