//! The state of the queue after each action.

use super::server::{Call, DirectGrant, Hold, Message, Number, Owner, Publishing, Request};
use super::{Action, Answer, Client, DIRECT_LEASE, Flaw, LEASE, Phase, Queue, Sent, State, Twist};

impl Queue {
    /// Returns the state after this action; `None` if the action changes nothing.
    pub(super) fn step(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Waits { client } => {
                state.clients[client].phase = Phase::Waiting;
                state.send_attempt(client);
            }
            Action::Tries { client } => {
                state.budget.tries -= 1;
                state.clients[client].phase = Phase::Trying;
                state.send_attempt(client);
            }
            Action::AttemptsAgain { client } => state.send_attempt(client),
            Action::GivesUp { client } => {
                if state.clients[client].phase == Phase::Waiting {
                    state.budget.leaves -= 1;
                }
                if self.rules.flaw == Flaw::LeavesSilently {
                    state.end_acquisition(self, client);
                } else {
                    state.send_release(self, client);
                }
            }
            Action::Releases { client } => state.send_release(self, client),
            Action::ReadsAnswer { client } => {
                let answer = state.clients[client].answer.take()?;
                state.read_answer(self, client, answer.what);
            }
            Action::ReadsMessage { client, at } => {
                let message = state.clients[client].inbox.remove(at);
                state.read_message(self, client, message.what);
            }
            Action::Dies { client } => {
                state.budget.deaths -= 1;
                state.excuse(client);
                state.clients[client] = Client {
                    phase: Phase::Dead,
                    round: state.clients[client].round,
                    is_connected: false,
                    ..Client::default()
                };
            }
            Action::Freezes { client } => {
                state.budget.freezes -= 1;
                state.clients[client].is_frozen = true;
            }
            Action::Continues { client } => state.clients[client].is_frozen = false,
            Action::Disconnects { client } => {
                state.budget.disconnects -= 1;
                state.excuse(client);
                let it = &mut state.clients[client];
                it.is_connected = false;
                it.inbox.clear();
                for turn in &mut state.turns {
                    turn.is_ready &= usize::from(turn.owner.client) != client;
                }
            }
            Action::Connects { client } => {
                let it = &mut state.clients[client];
                it.is_connected = true;
                it.is_woken = it.phase == Phase::Waiting;
            }
            Action::Arrives { request, twist } => {
                let sent = state.requests.remove(request);
                let has_happened = state.receive(self, sent.what, twist);
                if !has_happened {
                    return None;
                }
            }
            Action::IsLate { request } => {
                state.budget.late -= 1;
                state.requests[request].is_late = true;
            }
            Action::IsRepeated { request } => {
                state.budget.repeats -= 1;
                let Sent { what, .. } = state.requests[request];
                state.requests.push(Sent {
                    what,
                    is_late: true,
                });
                if let Some(client) = state.client_of(what.owner) {
                    state.clients[client].is_unsure = true;
                }
            }
            Action::OperatorDeletes => {
                state.budget.deletes -= 1;
                let hold = state.server.lock.take()?;
                if let Some(client) = state.client_of(hold.owner) {
                    state.clients[client].lost_to_operator = true;
                }
            }
            Action::ForeignTakes => {
                state.budget.foreign -= 1;
                let (owner, left) = (Owner::FOREIGN, LEASE);
                state.server.lock = Some(Hold { owner, left });
                state.is_used = true;
                state.check_that_no_other_holds(None);
            }
            Action::ForeignFrees => state.server.lock = None,
            Action::QueueIsLost => {
                state.budget.failovers -= 1;
                state.server.queue.clear();
                state.turns.clear();
            }
            Action::Tick => state.tick(self),
        }
        state.tidy();
        (state != *before).then_some(state)
    }
}

impl State {
    fn owner(&self, client: usize) -> Owner {
        let round = self.clients[client].round;
        let client = u8::try_from(client).expect("there are few");
        Owner { client, round }
    }

    /// Returns the client whose current acquisition has this owner; `None` if it neither waits nor
    /// holds.
    pub(super) fn client_of(&self, owner: Owner) -> Option<usize> {
        let client = usize::from(owner.client);
        let it = self.clients.get(client)?;
        let is_active = matches!(it.phase, Phase::Waiting | Phase::Trying | Phase::Holding);
        (is_active && it.round == owner.round).then_some(client)
    }

    /// Marks the attempts of this client in requests, in the queue and in messages as no longer the
    /// last.
    fn make_attempts_old(&mut self, client: usize) {
        let is_its = |owner: Owner| usize::from(owner.client) == client;
        for sent in &mut self.requests {
            if let (true, Call::Acquire { attempt, .. }) =
                (is_its(sent.what.owner), &mut sent.what.call)
            {
                *attempt = Number::Old;
            }
        }
        for entry in &mut self.server.queue {
            if is_its(entry.owner) {
                entry.attempt = entry.attempt.map(|_| Number::Old);
            }
        }
        for message in &mut self.clients[client].inbox {
            if let Some(grant) = &mut message.what.grant {
                grant.attempt = Number::Old;
            }
        }
    }

    fn send_attempt(&mut self, client: usize) {
        self.make_attempts_old(client);
        let owner = self.owner(client);
        let it = &mut self.clients[client];
        it.is_unsure |= !it.is_answered;
        it.is_answered = false;
        it.is_woken = false;
        it.answer = None;
        it.age = 0;
        let call = Call::Acquire {
            attempt: Number::Last,
            waits: it.phase == Phase::Waiting,
        };
        self.requests.push(Sent {
            what: Request { owner, call },
            is_late: false,
        });
    }

    /// Sends a release, of a held lock or of an attempt that is given up, and ends the acquisition.
    fn send_release(&mut self, model: &Queue, client: usize) {
        let owner = self.owner(client);
        let it = &self.clients[client];
        let tombstone = it.is_unsure || !it.is_answered;
        let call = Call::Release { tombstone };
        self.requests.push(Sent {
            what: Request { owner, call },
            is_late: false,
        });
        self.end_acquisition(model, client);
    }

    fn end_acquisition(&mut self, model: &Queue, client: usize) {
        self.make_attempts_old(client);
        let it = &mut self.clients[client];
        let is_last = it.round + 1 == model.rounds;
        *it = Client {
            phase: if is_last { Phase::Done } else { Phase::Idle },
            round: if is_last { it.round } else { it.round + 1 },
            is_connected: it.is_connected,
            inbox: std::mem::take(&mut it.inbox),
            ..Client::default()
        };
    }

    fn read_answer(&mut self, model: &Queue, client: usize, answer: Answer) {
        let it = &mut self.clients[client];
        it.is_answered = true;
        match answer {
            Answer::Granted { token } if it.age < LEASE => {
                let left = LEASE - it.age;
                self.believe(client, token, left);
            }
            // By the client's clock the lease is already over: a waiter tries again.
            Answer::Granted { .. } if it.phase == Phase::Waiting => it.is_woken = true,
            Answer::Granted { .. } => self.send_release(model, client),
            Answer::Busy | Answer::Closed => {
                if it.phase == Phase::Trying {
                    self.end_acquisition(model, client);
                }
            }
        }
    }

    fn read_message(&mut self, model: &Queue, client: usize, message: Message) {
        let flaw = model.rules.flaw;
        let is_its = message.owner == self.owner(client);
        let it = &mut self.clients[client];
        if it.phase != Phase::Waiting || !is_its {
            return;
        }
        it.is_woken = true;
        let Some(DirectGrant { attempt, token }) = message.grant else {
            return;
        };
        let is_last = attempt == Number::Last || flaw == Flaw::TrustsOldAttempt;
        if is_last && 2 * it.age < DIRECT_LEASE {
            let age = if flaw == Flaw::ValidFromArrival {
                0
            } else {
                it.age
            };
            self.was_trusted = true;
            self.believe(client, token, DIRECT_LEASE - age);
        }
    }

    fn believe(&mut self, client: usize, token: u8, left: u8) {
        self.check_that_no_other_holds(Some(client));
        self.check_token(client, token);
        self.winners |= 1 << client;
        self.is_used |= self.server.is_held_by(self.owner(client));
        let it = &mut self.clients[client];
        it.phase = Phase::Holding;
        it.belief = left;
        it.is_woken = false;
        it.answer = None;
    }

    /// Runs the script of a request that arrives, and sends its answer and its message. Returns
    /// whether the twist took effect.
    fn receive(&mut self, model: &Queue, request: Request, twist: Twist) -> bool {
        let Request { owner, call } = request;
        let clients = self.clients.iter().enumerate();
        let mut publishing = Publishing {
            connected: clients.fold(0, |bits, (at, it)| bits | u8::from(it.is_connected) << at),
            fails: twist == Twist::PublishFails,
            only_names: twist == Twist::OnlyNames,
            ..Publishing::default()
        };
        let before = self.server.lock;
        match call {
            Call::Acquire { attempt, waits } => {
                let asked = (attempt, waits);
                let answer = self
                    .server
                    .acquire(model.rules, owner, asked, &mut publishing);
                let is_new = before.is_none_or(|hold| hold.owner != owner);
                if waits && is_new && answer != Answer::Closed {
                    self.note_turn(model, owner);
                }
                self.note_grant(model, before, Some(request));
                let is_last = attempt == Number::Last;
                if let Some(client) = self.client_of(owner).filter(|_| is_last) {
                    self.answer(model, client, answer, twist == Twist::AnswerIsLate);
                } else if twist == Twist::AnswerIsLate {
                    return false;
                }
            }
            Call::Release { tombstone } => {
                self.server
                    .release(model.rules, owner, tombstone, &mut publishing);
                self.released |= owner.bit();
                self.turns.retain(|turn| turn.owner != owner);
                self.note_grant(model, before, None);
            }
        }
        let message = publishing.message;
        if let Some(message) = message {
            let client = usize::from(message.owner.client);
            self.clients[client].inbox.push(Sent {
                what: message,
                is_late: twist == Twist::MessageIsLate,
            });
        }
        match twist {
            Twist::None => return true,
            Twist::AnswerIsLate => self.budget.late -= 1,
            Twist::MessageIsLate => {
                self.budget.late -= 1;
                return message.is_some();
            }
            Twist::PublishFails => {
                self.budget.errors -= 1;
                return publishing.has_failed;
            }
            Twist::OnlyNames => {
                self.budget.pauses -= 1;
                return self.server.lock.is_none() && before.is_some();
            }
        }
        true
    }

    /// Delivers an answer, which the client reads at once unless the answer is late or the client
    /// is frozen. A client that already holds the lock does not read it.
    fn answer(&mut self, model: &Queue, client: usize, answer: Answer, is_late: bool) {
        let it = &mut self.clients[client];
        if it.phase == Phase::Holding {
            it.is_answered = !is_late;
        } else if is_late || it.is_frozen {
            let what = answer;
            it.answer = Some(Sent { what, is_late });
        } else {
            self.read_answer(model, client, answer);
        }
    }

    fn tick(&mut self, model: &Queue) {
        self.count_ticks(model);
        if let Some(hold) = &mut self.server.lock {
            hold.left -= 1;
            if hold.left == 0 {
                self.server.lock = None;
            }
        }
        if model.rules.flaw != Flaw::NoPresence {
            for entry in &mut self.server.queue {
                entry.left -= 1;
            }
            self.server.queue.retain(|entry| entry.left > 0);
        }
        for it in &mut self.clients {
            it.age = LEASE.min(it.age + 1);
            it.belief = it.belief.saturating_sub(1);
        }
    }

    /// Removes differences that do not matter, so that equivalent states become equal.
    fn tidy(&mut self) {
        let tombstones = self.server.tombstones;
        self.requests.retain(|sent| {
            let is_closed = tombstones & sent.what.owner.bit() != 0;
            !(is_closed && matches!(sent.what.call, Call::Acquire { .. }) && sent.is_late)
        });
        self.requests.sort_unstable();
        if self.server.lock.is_none() {
            self.is_used = false;
        }
        let mut tokens = Vec::new();
        self.each_token(|token| tokens.push(*token));
        tokens.sort_unstable();
        tokens.dedup();
        self.each_token(|token| {
            let rank = tokens.binary_search(token).expect("it is one of them");
            *token = u8::try_from(rank).expect("there are few");
        });
    }

    fn each_token(&mut self, mut f: impl FnMut(&mut u8)) {
        f(&mut self.server.counter);
        f(&mut self.last_token);
        for it in &mut self.clients {
            if let Some(Sent {
                what: Answer::Granted { token },
                ..
            }) = &mut it.answer
            {
                f(token);
            }
            for message in &mut it.inbox {
                if let Some(grant) = &mut message.what.grant {
                    f(&mut grant.token);
                }
            }
        }
    }
}
