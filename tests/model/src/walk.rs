//! [`Walk`]: a random path through the model of the quorum.

use crate::quorum::{Action, Event, Quorum, State};
use fastrand::Rng;
use stateright::Model;

/// A random path. Each call of [`step`](Self::step) takes one action, until none is possible.
#[derive(Debug)]
pub struct Walk<'a> {
    model: &'a Quorum,
    state: State,
    random: Rng,
    actions: Vec<Action>,
}

impl<'a> Walk<'a> {
    /// Returns a walk that begins in a random initial state. The same seed gives the same walk.
    #[must_use]
    pub fn new(model: &'a Quorum, seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let starts = model.init_states();
        let state = starts[random.usize(..starts.len())].clone();
        Self {
            model,
            state,
            random,
            actions: Vec::new(),
        }
    }

    /// Returns the current state.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Takes one action and returns it, with its event and the node of the event; `None` at the
    /// end.
    pub fn step(&mut self) -> Option<(Action, Option<(usize, Event)>)> {
        self.actions.clear();
        self.model.actions(&self.state, &mut self.actions);
        // Without weights, actions that are possible all the time would crowd out the others.
        let weights: Vec<_> = self.actions.iter().map(weight).collect();
        let mut left = self.random.u32(..weights.iter().sum::<u32>().max(1));
        let chosen = weights
            .iter()
            .position(|weight| match left.checked_sub(*weight) {
                Some(rest) => {
                    left = rest;
                    false
                }
                None => true,
            })?;
        let action = self.actions[chosen];
        let (next, event) = self.model.apply(&self.state, action);
        self.state = next;
        Some((action, event))
    }
}

fn weight(action: &Action) -> u32 {
    match action {
        Action::Wins { .. } => 40,
        Action::Arrives { .. } => 8,
        Action::Again { .. } | Action::ReleaseArrives { .. } | Action::LetsGo { .. } => 4,
        Action::Tick { .. } => 8,
        Action::IsRenewed { .. } => 8,
        Action::RenewalArrives { .. } | Action::VoteArrives { .. } | Action::Records { .. } => 4,
        Action::HandsOn { .. } | Action::IsMarked { .. } => 3,
        Action::Releases { .. } | Action::Saves { .. } | Action::Renews { .. } => 2,
        Action::Begin { .. }
        | Action::LeaseEnds { .. }
        | Action::Restarts { .. }
        | Action::Replaces { .. } => 1,
    }
}
