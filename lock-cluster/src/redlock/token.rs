//! [`TokenProposals`]: the token to propose, like a ballot of Paxos: the time of day in
//! microseconds, or one more than the largest token seen for the name.

use lock_core::{Clock, FencingToken, LockName, OwnerId};
use parking_lot::Mutex;
use std::collections::HashMap;

/// The tokens that this client was granted. A token that only a minority knows is not among them,
/// and a forgotten one costs a second round: the nodes know it.
#[derive(Default)]
pub(super) struct TokenProposals(Mutex<State>);

#[derive(Default)]
struct State {
    /// The largest token seen of each name.
    seen: HashMap<LockName, u64>,
    /// The grants that are not released yet. An owner whose answer was lost asks again, and must
    /// get the same token.
    won: HashMap<OwnerId, (u64, u32)>,
}

/// The most entries of each map, which is cleared beyond that. A forgotten token costs a second
/// round.
const MAX_ENTRIES: usize = 10_000;

impl TokenProposals {
    /// The first token to propose for this owner.
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

    /// The proposal was granted.
    pub(super) fn won(&self, name: &LockName, owner: OwnerId, first: FencingToken, reserve: u32) {
        let mut state = self.0.lock();
        if state.won.len() >= MAX_ENTRIES {
            state.won.clear();
        }
        state.won.insert(owner, (first.get(), reserve));
        drop(state);
        self.saw(name, first.get() + u64::from(reserve));
    }

    /// The nodes refuse a proposal above the last token as too far ahead: it was granted by clocks
    /// that have been set back since, and counts no more for what is proposed first.
    pub(super) fn forget(&self, name: &LockName) {
        self.0.lock().seen.remove(name);
    }

    /// A majority knows a token of this name that is at least as large.
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

    /// The owner releases the lock, and with it the tokens after the last one used.
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
