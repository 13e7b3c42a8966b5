//! Renewals, and the requests to vote again that follow them.

use super::{Action, Cell, Column, Event, Fault, Phase, Quorum, Renewal, State, index};
use crate::node::{Answer, Flaw, Node, Request, View};

impl Quorum {
    /// Sends a renewal to all nodes. Requests to vote again to which an earlier renewal led may
    /// still arrive.
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
        // The client reads the node's view directly after the renewal.
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
        // After the release has arrived here, the node must refuse to vote. A restarted node may
        // have lost the tombstone, so the check applies only without restarts.
        let is_released = it.phase == Phase::After && column.closing & 1 << attempt == 0;
        if answer == Answer::Granted && is_released && self.releases && state.restarts == 0 {
            state.fault = Some(Fault::Revived);
        }
        Event::Asked(request, answer)
    }

    /// Extends the lease as the client knows it, and checks that no other attempt has won
    /// meanwhile.
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

    /// Returns whether enough nodes have renewed the lease or voted again, before the lease is over
    /// by the client's clock. Until then, the older votes are a majority.
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
    /// Returns the view under which the request was granted; `None` if it was not.
    fn view(self) -> Option<View> {
        if let Self::Granted(view) = self {
            Some(view)
        } else {
            None
        }
    }
}

impl Column {
    /// Returns the view under which this node has renewed the lease or voted again.
    pub(super) fn renewed(&self, attempt: usize) -> Option<View> {
        self.renewals[attempt]
            .view()
            .or_else(|| self.votes[attempt].view())
    }

    /// Forgets the outcome of a renewal, but not a request to vote again that may still arrive.
    pub(super) fn forget_renewal(&mut self, attempt: usize) {
        self.renewals[attempt] = Cell::Unsent;
        self.short &= !(1 << attempt);
        if self.votes[attempt] != Cell::Sent {
            self.votes[attempt] = Cell::Unsent;
        }
    }
}
