//! [`Proposals`]: which token to propose, like the ballots of Paxos: the time of day in microseconds, or one more than the
//! largest that was seen for this name.

use lock_core::{Clock, FencingToken, LockName, OwnerId};
use parking_lot::Mutex;
use std::collections::HashMap;

/// What this client has seen of tokens. Nothing hangs on it but a second round: what is forgotten, the nodes know.
#[derive(Default)]
pub(super) struct Proposals(Mutex<State>);

#[derive(Default)]
struct State {
    /// The largest token that was seen, by name.
    seen: HashMap<LockName, u64>,
    /// What was won and is not given back yet. The same owner has asked again if its answer was lost, and must hear the
    /// same.
    won: HashMap<OwnerId, (u64, u32)>,
}

/// How many of each are remembered; beyond that, all are forgotten.
const MOST: usize = 10_000;

impl Proposals {
    /// What to propose for this owner.
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

    /// It was won.
    pub(super) fn won(&self, name: &LockName, owner: OwnerId, first: FencingToken, reserve: u32) {
        let mut state = self.0.lock();
        if state.won.len() >= MOST {
            state.won.clear();
        }
        state.won.insert(owner, (first.get(), reserve));
        drop(state);
        self.saw(name, first.get() + u64::from(reserve));
    }

    /// A token of this name was seen that is at least so large.
    pub(super) fn saw(&self, name: &LockName, token: u64) {
        let mut state = self.0.lock();
        if state.seen.len() >= MOST && !state.seen.contains_key(name) {
            state.seen.clear();
        }
        match state.seen.get_mut(name) {
            Some(seen) => *seen = token.max(*seen),
            None => drop(state.seen.insert(name.clone(), token)),
        }
    }

    /// The owner gives it back, and with it what is behind the last token used.
    pub(super) fn given_back(&self, name: &LockName, owner: OwnerId, used: Option<FencingToken>) {
        let mut state = self.0.lock();
        let Some((first, reserve)) = state.won.remove(&owner) else { return };
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
        let (proposals, clock) = (Proposals::default(), ManualClock::new());
        let name = LockName::new("a").unwrap();
        let owner = |number| OwnerId::new(ClientId::random(), number);
        let now = u64::try_from(clock.unix_time().as_micros()).unwrap();
        let (one, two) = (owner(1), owner(2));
        let first = proposals.first(&name, one, 5, &clock);
        assert_eq!(first.get(), now);
        proposals.won(&name, one, first, 5);
        assert_eq!(proposals.first(&name, one, 5, &clock), first);
        assert_eq!(proposals.first(&name, two, 0, &clock).get(), now + 6);
        proposals.given_back(&name, one, Some(FencingToken::new(now + 2)));
        assert_eq!(proposals.first(&name, two, 0, &clock).get(), now + 3);
        proposals.saw(&name, now + 100);
        assert_eq!(proposals.first(&name, one, 5, &clock).get(), now + 101);
    }
}
