//! The actions that are possible in a state of the queue.

use super::server::{Call, Owner};
use super::{Action, Client, INTERVAL, Phase, Queue, State, Twist};

impl State {
    /// Returns whether an attempt of the client, or the answer to it, is under way and not late.
    /// Until the client has the answer, it sends no other attempt.
    fn awaits_answer(&self, client: usize) -> bool {
        let it = &self.clients[client];
        let is_its = |owner: Owner| usize::from(owner.client) == client && owner.round == it.round;
        let mut requests = self.requests.iter().filter(|sent| !sent.is_late);
        let is_under_way = requests
            .any(|sent| is_its(sent.what.owner) && matches!(sent.what.call, Call::Acquire { .. }));
        is_under_way || it.answer.is_some_and(|answer| !answer.is_late)
    }

    fn is_attempt_due(&self, client: usize) -> bool {
        let it = &self.clients[client];
        let is_due = it.age >= INTERVAL || it.is_woken;
        it.phase == Phase::Waiting && is_due && !self.awaits_answer(client)
    }

    /// Returns whether this client has something to do before the next tick.
    fn is_busy(&self, client: usize) -> bool {
        let it = &self.clients[client];
        let has_lost = it.phase == Phase::Holding && it.belief == 0;
        let has_mail = it.answer.is_some_and(|answer| !answer.is_late)
            || it.inbox.iter().any(|message| !message.is_late);
        it.is_awake() && (has_lost || has_mail || self.is_attempt_due(client))
    }

    fn can_tick(&self, model: &Queue) -> bool {
        let is_under_way = self.requests.iter().any(|sent| !sent.is_late);
        !is_under_way && !(0..model.clients).any(|client| self.is_busy(client))
    }
}

impl Client {
    pub(super) fn is_awake(&self) -> bool {
        self.phase != Phase::Dead && !self.is_frozen
    }
}

impl Queue {
    pub(super) fn actions_of_a_client(
        &self,
        state: &State,
        client: usize,
        actions: &mut Vec<Action>,
    ) {
        let it = &state.clients[client];
        let left = state.budget;
        if it.phase == Phase::Dead {
            return;
        }
        if it.is_frozen {
            actions.push(Action::Continues { client });
        }
        if left.deaths > 0 && it.phase != Phase::Done {
            actions.push(Action::Dies { client });
        }
        if !it.is_connected {
            actions.push(Action::Connects { client });
        }
        let is_waiting = it.phase == Phase::Waiting;
        if is_waiting && it.is_connected && left.disconnects > 0 {
            actions.push(Action::Disconnects { client });
        }
        if it.is_frozen {
            return;
        }
        if is_waiting && left.freezes > 0 {
            actions.push(Action::Freezes { client });
        }
        match it.phase {
            Phase::Idle => {
                // Clients are interchangeable. They begin in a fixed order, which saves states.
                let has_begun = |client: usize| {
                    let before = &state.clients[client];
                    before.round > 0 || before.phase != Phase::Idle
                };
                if it.round > 0 || client == 0 || has_begun(client - 1) {
                    actions.push(Action::Waits { client });
                    if left.tries > 0 {
                        actions.push(Action::Tries { client });
                    }
                }
            }
            Phase::Waiting => {
                if state.is_attempt_due(client) {
                    actions.push(Action::AttemptsAgain { client });
                }
                if left.leaves > 0 {
                    actions.push(Action::GivesUp { client });
                }
            }
            Phase::Trying => actions.push(Action::GivesUp { client }),
            Phase::Holding => actions.push(Action::Releases { client }),
            Phase::Done | Phase::Dead => {}
        }
        if it.answer.is_some() {
            actions.push(Action::ReadsAnswer { client });
        }
        let messages = 0..it.inbox.len();
        actions.extend(messages.map(|at| Action::ReadsMessage { client, at }));
    }

    pub(super) fn actions_of_the_network(&self, state: &State, actions: &mut Vec<Action>) {
        let left = state.budget;
        for (request, sent) in state.requests.iter().enumerate() {
            if request > 0 && state.requests[request - 1] == *sent {
                continue;
            }
            let mut arrives = |twist| actions.push(Action::Arrives { request, twist });
            arrives(Twist::None);
            let is_release = matches!(sent.what.call, Call::Release { .. });
            if left.late > 0 {
                if !is_release {
                    arrives(Twist::AnswerIsLate);
                }
                arrives(Twist::MessageIsLate);
            }
            if left.errors > 0 {
                arrives(Twist::PublishFails);
            }
            if left.pauses > 0 && is_release {
                arrives(Twist::OnlyNames);
            }
            if left.late > 0 && !sent.is_late {
                actions.push(Action::IsLate { request });
            }
            if left.repeats > 0 && !sent.is_late {
                actions.push(Action::IsRepeated { request });
            }
        }
    }

    pub(super) fn actions_of_others(&self, state: &State, actions: &mut Vec<Action>) {
        let left = state.budget;
        let is_foreign = state.server.is_held_by(Owner::FOREIGN);
        if left.deletes > 0 && state.server.lock.is_some() {
            actions.push(Action::OperatorDeletes);
        }
        if left.foreign > 0 && state.server.lock.is_none() {
            actions.push(Action::ForeignTakes);
        }
        if is_foreign {
            actions.push(Action::ForeignFrees);
        }
        if left.failovers > 0 && !state.server.queue.is_empty() {
            actions.push(Action::QueueIsLost);
        }
        if state.can_tick(self) {
            actions.push(Action::Tick);
        }
    }
}
