//! The quorum as a `stateright` model: initial states, actions, and the properties that must hold.

use super::{
    Action, Attempt, Column, FIRST_MEMBERS, Fault, MOST_ATTEMPTS, MOST_EPOCHS, NODES, Outsider,
    Quorum, SERVERS, State,
};
use crate::node::{Counter, Marker, View};
use stateright::{Model, Property};

impl Model for Quorum {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut states = Vec::new();
        for a in 0..=self.skew {
            for b in a..=self.skew {
                for c in b..=self.skew {
                    let mut columns = [Column::default(); SERVERS];
                    for (at, (column, value)) in columns.iter_mut().zip([a, b, c]).enumerate() {
                        column.is_mortal = at < self.mortals;
                        column.node.disk.counter = (value > 0).then_some(Counter {
                            value,
                            stands_for: value,
                        });
                        column.node.disk.marker = self.rules.longest.map(|_| Marker {
                            run: 0,
                            since: 0,
                            view: View::FIRST,
                        });
                        // A node that is never restarted has a clock that stands still, and so late
                        // that no proposal is too far ahead of it.
                        let is_timeless = self.mortals > 0 && !column.is_mortal;
                        let ahead = if at < 2 { self.ahead } else { 0 };
                        column.node.now = if is_timeless { u8::MAX / 2 } else { ahead };
                    }
                    let beside = &mut columns[NODES];
                    // If only some clocks run, that of the fourth server does, too: it may take the
                    // place of a node whose clock runs.
                    beside.is_mortal = self.mortals > 0;
                    if self.outsider == Outsider::Foreign {
                        beside.node.disk.marker = Some(Marker {
                            run: 0,
                            since: 0,
                            view: View::FOREIGN,
                        });
                    }
                    let mut memberships = [0; MOST_EPOCHS];
                    memberships[0] = FIRST_MEMBERS;
                    let mut state = State {
                        attempts: [Attempt::default(); MOST_ATTEMPTS],
                        columns,
                        memberships,
                        epochs: 1,
                        last: 0,
                        winners: 0,
                        restarts: 0,
                        fault: None,
                    };
                    self.tidy(&mut state);
                    states.push(state);
                }
            }
        }
        states
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.fault.is_some() {
            return;
        }
        for attempt in 0..usize::from(self.attempts) {
            self.actions_of_an_attempt(state, attempt, actions);
        }
        for node in 0..self.servers() {
            self.actions_of_a_node(state, node, actions);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let (next, _event) = self.apply(state, action);
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            // Otherwise a model in which no attempt ever gets the lock would pass.
            Property::sometimes("every attempt wins", |model: &Self, state: &State| {
                state.winners == model.attempts
            }),
            Property::always("one holder at a time", |_, state: &State| {
                state.fault != Some(Fault::TwoHolders)
            }),
            Property::always("tokens grow", |_, state: &State| {
                state.fault != Some(Fault::OldToken)
            }),
            Property::always("released locks stay so", |_, state: &State| {
                state.fault != Some(Fault::Revived)
            }),
        ]
    }
}
