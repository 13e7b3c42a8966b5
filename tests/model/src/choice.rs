//! A model of how a quorum chooses its next members. There are three acceptors. An acceptor may
//! forget what it promised, and become a member of the same epoch again.
//!
//! A request that was sent may arrive at any time, or never. Which answers a proposer knows when it
//! continues is also a choice of the model.

use stateright::{Model, Property};

const ACCEPTORS: usize = 3;
const PROPOSERS: usize = 2;
const MAJORITY: u32 = 2;

/// The events that the model allows.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// How often an acceptor may be emptied, for all acceptors together.
    pub losses: u8,
    /// Whether an acceptor that became a member again answers like one that has forgotten nothing.
    pub readmitted_choose: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct State {
    acceptors: [Acceptor; ACCEPTORS],
    proposers: [Proposer; PROPOSERS],
    losses: u8,
    /// The next memberships that a majority has accepted, each a bit.
    chosen: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Acceptor {
    /// Whether it has no marker.
    is_empty: bool,
    /// Whether it became a member again in this epoch.
    is_readmitted: bool,
    promised: u8,
    /// The ballot, which is the number of the proposer, and the next membership that was accepted.
    accepted: Option<(u8, u8)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Proposer {
    /// The acceptors that have promised, each a bit. `found` is the last choice that any of them
    /// has accepted.
    promises: u8,
    found: Option<(u8, u8)>,
    /// What it proposes, once a majority has promised.
    proposed: Option<u8>,
    acceptances: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    Promises { acceptor: usize, proposer: usize },
    Proposes { proposer: usize },
    Accepts { acceptor: usize, proposer: usize },
    IsEmptied { acceptor: usize },
    IsReadmitted { acceptor: usize },
}

fn ballot(proposer: usize) -> u8 {
    u8::try_from(proposer + 1).expect("there are few")
}

impl Choice {
    fn answers(&self, acceptor: &Acceptor) -> bool {
        !acceptor.is_empty && (!acceptor.is_readmitted || self.readmitted_choose)
    }
}

impl Model for Choice {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (acceptor, it) in state.acceptors.iter().enumerate() {
            for (proposer, asks) in state.proposers.iter().enumerate() {
                let (ballot, bit) = (ballot(proposer), 1 << acceptor);
                if !self.answers(it) {
                    continue;
                }
                if asks.proposed.is_none() && asks.promises & bit == 0 && ballot > it.promised {
                    actions.push(Action::Promises { acceptor, proposer });
                }
                let is_asked = asks.proposed.is_some();
                if is_asked && asks.acceptances & bit == 0 && ballot >= it.promised {
                    actions.push(Action::Accepts { acceptor, proposer });
                }
            }
            if !it.is_empty && state.losses < self.losses {
                actions.push(Action::IsEmptied { acceptor });
            }
            if it.is_empty {
                actions.push(Action::IsReadmitted { acceptor });
            }
        }
        for (proposer, it) in state.proposers.iter().enumerate() {
            if it.proposed.is_none() && it.promises.count_ones() >= MAJORITY {
                actions.push(Action::Proposes { proposer });
            }
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Promises { acceptor, proposer } => {
                let (it, asks) = (
                    &mut state.acceptors[acceptor],
                    &mut state.proposers[proposer],
                );
                it.promised = ballot(proposer);
                asks.promises |= 1 << acceptor;
                asks.found = asks.found.max(it.accepted);
            }
            Action::Proposes { proposer } => {
                let asks = &mut state.proposers[proposer];
                asks.proposed = Some(asks.found.map_or(ballot(proposer), |(_, value)| value));
            }
            Action::Accepts { acceptor, proposer } => {
                let (it, asks) = (
                    &mut state.acceptors[acceptor],
                    &mut state.proposers[proposer],
                );
                let value = asks.proposed.expect("it is asked for that");
                it.promised = ballot(proposer);
                it.accepted = Some((ballot(proposer), value));
                asks.acceptances |= 1 << acceptor;
                if asks.acceptances.count_ones() >= MAJORITY {
                    state.chosen |= 1 << value;
                }
            }
            Action::IsEmptied { acceptor } => {
                state.acceptors[acceptor] = Acceptor {
                    is_empty: true,
                    ..Acceptor::default()
                };
                state.losses += 1;
            }
            Action::IsReadmitted { acceptor } => {
                state.acceptors[acceptor] = Acceptor {
                    is_readmitted: true,
                    ..Acceptor::default()
                };
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::sometimes("members are chosen", |_, state: &State| state.chosen != 0),
            Property::always("one membership is chosen", |_, state: &State| {
                state.chosen.count_ones() <= 1
            }),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stateright::Checker;

    #[test]
    fn one_membership_is_chosen_although_acceptors_forget() {
        let model = Choice {
            losses: 2,
            readmitted_choose: false,
        };
        let checker = model.checker().threads(2).spawn_bfs().join();
        println!("{} states", checker.unique_state_count());
        checker.assert_properties();
    }

    #[test]
    fn readmitted_acceptor_that_chooses_is_refuted() {
        let model = Choice {
            losses: 1,
            readmitted_choose: true,
        };
        let checker = model.checker().threads(1).spawn_bfs().join();
        let path = checker.assert_any_discovery("one membership is chosen");
        println!("{:#?}", path.into_actions());
    }
}
