//! The queue as a `stateright` model: initial state, actions, and the properties that must hold.

use super::server::{Hold, Owner, Request, Server};
use super::{ALL, Action, Fault, Limit, Order, PRESENCE, Phase, Queue, State, Turn};
use stateright::{Model, Property};

impl Model for Queue {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            server: Server::default(),
            clients: Default::default(),
            requests: Vec::new(),
            budget: self.budget,
            turns: Vec::new(),
            is_used: false,
            last_token: 0,
            released: 0,
            winners: 0,
            was_trusted: false,
            wasted: 0,
            idle: 0,
            fault: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.fault.is_some()
            || exceeds(state.wasted, self.waste)
            || exceeds(state.idle, self.idle)
        {
            return;
        }
        for client in 0..self.clients {
            self.actions_of_a_client(state, client, actions);
        }
        self.actions_of_the_network(state, actions);
        self.actions_of_others(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        self.step(state, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            // Otherwise a model in which no client ever gets the lock would pass.
            Property::sometimes(
                "every client holds the lock",
                |model: &Self, state: &State| state.winners.count_ones() as usize == model.clients,
            ),
            Property::sometimes(
                "a direct grant is trusted",
                |model: &Self, state: &State| state.was_trusted || model.rules.named == ALL,
            ),
            Property::always("one holder at a time", |_, state: &State| {
                state.fault != Some(Fault::TwoHolders)
            }),
            Property::always("tokens grow", |_, state: &State| {
                state.fault != Some(Fault::OldToken)
            }),
            Property::always("released owners stay so", |_, state: &State| {
                state.fault != Some(Fault::Revived)
            }),
            Property::always("waiters take turns", |_, state: &State| {
                state.fault != Some(Fault::OutOfTurn)
            }),
            Property::always("no time is wasted", |model: &Self, state: &State| {
                !exceeds(state.wasted, model.waste)
            }),
            Property::always("a free lock is taken", |model: &Self, state: &State| {
                !exceeds(state.idle, model.idle)
            }),
        ]
    }
}

fn exceeds(ticks: u8, limit: Limit) -> bool {
    limit.is_some_and(|limit| ticks > limit)
}

impl State {
    fn set_fault(&mut self, fault: Fault) {
        self.fault.get_or_insert(fault);
    }

    /// Checks, when this client begins to believe that it holds the lock, that no other client
    /// does. `None` is a client of another library.
    pub(super) fn check_that_no_other_holds(&mut self, client: Option<usize>) {
        let is_excused = client.is_some_and(|client| self.clients[client].lost_to_operator);
        let mut clients = self.clients.iter().enumerate();
        let is_held = clients.any(|(other, it)| {
            Some(other) != client
                && it.phase == Phase::Holding
                && it.belief > 0
                && !it.lost_to_operator
        });
        let is_foreign = client.is_some() && self.server.is_held_by(Owner::FOREIGN);
        if (is_held || is_foreign) && !is_excused {
            self.set_fault(Fault::TwoHolders);
        }
    }

    /// Checks, when a client begins to believe that it holds the lock, that its token is the
    /// largest so far. If an operator deleted its lock, another client may have got a larger token
    /// since.
    pub(super) fn check_token(&mut self, client: usize, token: u8) {
        if self.last_token < token {
            self.last_token = token;
        } else if !self.clients[client].lost_to_operator {
            self.set_fault(Fault::OldToken);
        }
    }

    /// Counts the lock as used if this client holds it: time that a client wastes by its own
    /// trouble is not the queue's fault.
    pub(super) fn excuse(&mut self, client: usize) {
        let is_its = |hold: Hold| usize::from(hold.owner.client) == client;
        self.is_used |= self.server.lock.is_some_and(is_its);
    }

    /// Records the place of a waiter whose attempt has arrived.
    pub(super) fn note_turn(&mut self, model: &Queue, owner: Owner) {
        let is_connected = self.clients[usize::from(owner.client)].is_connected;
        let now = Turn {
            owner,
            left: PRESENCE,
            is_ready: is_connected,
        };
        let order = model.rules.order;
        let mut turns = self.turns.iter_mut();
        match turns.find(|turn| turn.owner.is_member_of(owner, order)) {
            Some(turn) => *turn = now,
            None => self.turns.push(now),
        }
    }

    /// Checks the grant that the last script may have made: to its `caller`, or to the first
    /// waiter.
    pub(super) fn note_grant(
        &mut self,
        model: &Queue,
        before: Option<Hold>,
        caller: Option<Request>,
    ) {
        let holder = |hold: Hold| hold.owner;
        let Some(owner) = self.server.lock.map(holder) else {
            return;
        };
        let order = model.rules.order;
        let at = self
            .turns
            .iter()
            .position(|turn| turn.owner.is_member_of(owner, order));
        let is_caller = caller.is_some_and(|request| request.owner == owner);
        if before.map(holder) == Some(owner) {
            self.is_used |= is_caller;
            return;
        }
        let is_try = is_caller && caller.is_some_and(|request| !request.waits());
        let barges = is_try && order == Order::Any;
        if !barges {
            let before = &self.turns[..at.unwrap_or(self.turns.len())];
            if before.iter().any(|turn| self.is_ready(turn)) {
                self.set_fault(Fault::OutOfTurn);
            }
        }
        if self.released & owner.bit() != 0 {
            self.set_fault(Fault::Revived);
        }
        // A caller that does not use its grant would waste the same time without a queue.
        self.is_used = is_caller;
        if let Some(at) = at {
            self.turns.remove(at);
        }
    }

    /// Returns whether the waiter could take the lock now.
    fn is_ready(&self, turn: &Turn) -> bool {
        let waits = |client: usize| {
            let it = &self.clients[client];
            it.phase == Phase::Waiting && it.is_awake() && it.is_connected
        };
        turn.is_ready && self.client_of(turn.owner).is_some_and(waits)
    }

    /// Counts one tick as idle if the lock is free, or as wasted if its holder does not use it,
    /// while a waiter is ready.
    pub(super) fn count_ticks(&mut self, model: &Queue) {
        let holder = self.server.lock.map(|hold| hold.owner.client);
        let mut turns = self.turns.iter();
        let is_wanted = turns.any(|turn| Some(turn.owner.client) != holder && self.is_ready(turn));
        let is_idle = self.server.lock.is_none() && is_wanted && model.idle.is_some();
        self.idle = if is_idle { self.idle + 1 } else { 0 };
        if holder.is_some() && !self.is_used && is_wanted && model.waste.is_some() {
            self.wasted += 1;
        }
        for turn in &mut self.turns {
            turn.left -= 1;
        }
        self.turns.retain(|turn| turn.left > 0);
    }
}
