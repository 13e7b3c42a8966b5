//! Renewals, and the votes that are given again by them.

use super::{Action, Cell, Column, Event, Fault, Phase, Quorum, Renewal, State, index};
use crate::node::{Answer, Flaw, Node, Request, View};

impl Quorum {
    /// All nodes are asked to renew. What an earlier renewal asked may arrive all the same.
    pub(super) fn renew(&self, state: &mut State, attempt: usize) {
        state.attempts[attempt].renewal = Renewal::Sent;
        for column in &mut state.columns[..self.servers()] {
            column.renewals[attempt] = Cell::Sent;
            column.renews |= column.awaits & 1 << attempt;
            if column.votes[attempt] == Cell::Sent {
                column.late_votes |= 1 << attempt;
            }
            column.votes[attempt] = Cell::Unsent;
        }
    }

    pub(super) fn renewal_arrives(&self, state: &mut State, attempt: usize, node: usize) {
        let column = &mut state.columns[node];
        let is_ours = column.node.disk.lock == Some(index(attempt));
        // The view is read behind it.
        column.renewals[attempt] = if is_ours {
            Cell::Granted(column.node.view())
        } else {
            Cell::Done
        };
        if !is_ours && self.votes_again {
            column.votes[attempt] = Cell::Sent;
        }
    }

    pub(super) fn vote_arrives(
        &self,
        state: &mut State,
        attempt: usize,
        node: usize,
        late: bool,
    ) -> Event {
        let it = state.attempts[attempt];
        let (owner, first) = (index(attempt), it.firsts[usize::from(it.round)]);
        let column = &mut state.columns[node];
        let Node { run, .. } = column.node;
        let (view, last) = (column.node.view(), first + self.reserve);
        let request = Request::VoteAgain {
            owner,
            first,
            last,
            run,
            view,
        };
        let answer = column.node.step(&self.rules, request);
        if late {
            column.late_votes &= !(1 << attempt);
        } else {
            let is_granted = answer == Answer::Granted;
            column.votes[attempt] = if is_granted {
                Cell::Granted(view)
            } else {
                Cell::Done
            };
        }
        // Where its release has come already. A node that has lost its data knows of none.
        let is_released = it.phase == Phase::After && column.closing & 1 << attempt == 0;
        if answer == Answer::Granted && is_released && self.releases && state.restarts == 0 {
            state.fault = Some(Fault::Revived);
        }
        Event::Asked(request, answer)
    }

    /// The client believes that its lease is longer, with the votes that it had and new ones.
    pub(super) fn is_renewed(&self, state: &mut State, attempt: usize) {
        let others = state
            .attempts
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != attempt);
        if others.into_iter().any(|(_, other)| other.is_valid()) {
            state.fault = Some(Fault::TwoHolders);
        } else if state.last > state.attempts[attempt].used {
            state.fault = Some(Fault::OldToken);
        }
        let it = &mut state.attempts[attempt];
        it.renewal = Renewal::Unsent;
        it.renewed += 1;
        it.over = false;
        for column in &mut state.columns {
            column.awaits &= !(column.renews & 1 << attempt);
            if column.renewed(attempt).is_none() {
                column.short |= 1 << attempt;
            } else {
                column.short &= !(1 << attempt);
            }
        }
    }

    /// Whether enough nodes have renewed it, or voted for it again, while the older votes were a
    /// majority: for as long as the client's own lease is not over.
    fn may_count(&self, state: &State, attempt: usize) -> bool {
        let it = state.attempts[attempt];
        let counts = |said: &dyn Fn(&Column) -> Option<View>| {
            self.is_majority(state, said, Flaw::RenewsAnywhere)
        };
        let is_renewed = counts(&|column| column.renewed(attempt));
        if self.rules.flaw == Flaw::CountsLapsed && it.phase == Phase::Won && it.over {
            return is_renewed && !counts(&|column| column.renewals[attempt].view());
        }
        it.is_valid() && is_renewed
    }

    pub(super) fn actions_of_renewals(
        &self,
        state: &State,
        attempt: usize,
        actions: &mut Vec<Action>,
    ) {
        let it = state.attempts[attempt];
        if it.is_valid() && it.renewal == Renewal::Unsent && it.renewed < self.renews {
            actions.push(Action::Renews { attempt });
        }
        if it.renewal == Renewal::Sent && self.may_count(state, attempt) {
            actions.push(Action::IsRenewed { attempt });
        }
        for (node, column) in state.columns.iter().enumerate() {
            if column.renewals[attempt] == Cell::Sent {
                actions.push(Action::RenewalArrives { attempt, node });
            }
            if column.votes[attempt] == Cell::Sent {
                actions.push(Action::VoteArrives {
                    attempt,
                    node,
                    late: false,
                });
            }
            if column.late_votes & 1 << attempt != 0 {
                actions.push(Action::VoteArrives {
                    attempt,
                    node,
                    late: true,
                });
            }
        }
    }
}

impl Cell {
    /// The view under which the request was granted.
    fn view(self) -> Option<View> {
        if let Self::Granted(view) = self {
            Some(view)
        } else {
            None
        }
    }
}

impl Column {
    /// The view under which this node has renewed the lease, or voted for it again.
    pub(super) fn renewed(&self, attempt: usize) -> Option<View> {
        self.renewals[attempt]
            .view()
            .or_else(|| self.votes[attempt].view())
    }

    /// Forgets what came of a renewal. A request to vote may arrive yet.
    pub(super) fn forget_renewal(&mut self, attempt: usize) {
        self.renewals[attempt] = Cell::Unsent;
        self.short &= !(1 << attempt);
        if self.votes[attempt] != Cell::Sent {
            self.votes[attempt] = Cell::Unsent;
        }
    }
}
