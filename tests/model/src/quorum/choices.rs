//! The actions that are possible in a state of the quorum.

use super::{Action, Cell, Column, MAJORITY, NODES, Outsider, Phase, Protocol, Quorum, State};
use crate::node::{Flaw, Marker, Node, View};

impl Quorum {
    /// Returns the first tokens with which an attempt may begin its next round.
    fn next_firsts(&self, state: &State, attempt: usize) -> Vec<u8> {
        let it = state.attempts[attempt];
        let round = usize::from(it.round);
        let cells = state
            .columns
            .iter()
            .map(|column| column.cells[attempt][round]);
        let mut firsts: Vec<_> = match self.protocol {
            // The client may have received any of the refusals, so it may outbid any of their
            // tokens.
            Protocol::Proposed => cells
                .filter_map(|cell| {
                    if let Cell::Stale(token) = cell {
                        Some(token + 1)
                    } else {
                        None
                    }
                })
                .collect(),
            Protocol::Naive => {
                let counted = |cell| {
                    if let Cell::Counted(token) = cell {
                        Some(token)
                    } else {
                        None
                    }
                };
                let mut counted: Vec<_> = cells.filter_map(counted).collect();
                counted.sort_unstable();
                counted.into_iter().skip(MAJORITY - 1).collect()
            }
        };
        if self.resends {
            firsts.push(it.firsts[round]);
        }
        firsts.sort_unstable();
        firsts.dedup();
        firsts
    }

    fn can_win(&self, state: &State, attempt: usize) -> bool {
        let it = state.attempts[attempt];
        let round = usize::from(it.round);
        if it.phase != Phase::Asking
            || it.over && self.rules.flaw != Flaw::NoLeaseCheck
            || self.protocol == Protocol::Naive && round == 0
        {
            return false;
        }
        let granted = |column: &Column| {
            let cells = &column.cells[attempt];
            let counted = if self.rules.flaw == Flaw::CountsOldRounds {
                &cells[..]
            } else {
                &cells[round..=round]
            };
            counted.iter().find_map(|cell| match cell {
                Cell::Granted(view) => Some(*view),
                _ => None,
            })
        };
        self.is_majority(state, granted, Flaw::CountsStrangers)
    }

    pub(super) fn actions_of_an_attempt(
        &self,
        state: &State,
        attempt: usize,
        actions: &mut Vec<Action>,
    ) {
        let it = state.attempts[attempt];
        if it.phase == Phase::Before {
            // Attempts are interchangeable. They begin in a fixed order, which saves states.
            let is_next = attempt == 0 || state.attempts[attempt - 1].phase != Phase::Before;
            if is_next {
                let latest = if self.protocol == Protocol::Naive {
                    1
                } else {
                    self.latest
                };
                actions.extend((1..=latest).map(|first| Action::Begin { attempt, first }));
            }
            return;
        }
        if it.phase == Phase::Asking && !it.over && it.round + 1 < self.rounds {
            let firsts = self.next_firsts(state, attempt);
            actions.extend(
                firsts
                    .into_iter()
                    .map(|first| Action::Again { attempt, first }),
            );
        }
        if self.can_win(state, attempt) {
            actions.push(Action::Wins { attempt });
        }
        if it.is_valid() && it.used < it.firsts[usize::from(it.round)] + self.reserve {
            actions.push(Action::HandsOn { attempt });
        }
        if !it.over {
            actions.push(Action::LeaseEnds { attempt });
        }
        self.actions_of_renewals(state, attempt, actions);
        if self.releases && matches!(it.phase, Phase::Won | Phase::Asking) {
            actions.push(Action::Releases { attempt });
        }
        for (node, column) in state.columns.iter().enumerate() {
            for (round, cell) in column.cells[attempt].iter().enumerate() {
                if *cell == Cell::Sent || self.resends && *cell != Cell::Unsent {
                    actions.push(Action::Arrives {
                        attempt,
                        round,
                        node,
                    });
                }
            }
            if column.closing & 1 << attempt != 0 {
                actions.push(Action::ReleaseArrives { attempt, node });
            }
        }
    }

    pub(super) fn actions_of_a_node(&self, state: &State, node: usize, actions: &mut Vec<Action>) {
        let column = &state.columns[node];
        let Node {
            now, disk, saved, ..
        } = column.node;
        let lets_go = |owner: u8| {
            let attempt = usize::from(owner);
            // On a node that the renewal did not reach, the lease before it may be over.
            let is_short = column.short & 1 << owner != 0 && column.renewed(attempt).is_none();
            state.attempts[attempt].over || is_short
        };
        if disk.lock.is_some_and(lets_go) {
            actions.push(Action::LetsGo { node });
        }
        let is_banned = |column: &Column| {
            let Node { now, run, disk, .. } = column.node;
            let votes_next = |marker: Marker| marker.run == run && now + 1 >= marker.since;
            let waits = column.awaits != 0 && disk.marker.is_some_and(votes_next);
            waits && self.rules.flaw != Flaw::NoMarker
        };
        let is_stopped = if self.has_one_clock {
            node != 0 || state.columns.iter().any(is_banned)
        } else {
            is_banned(column)
        };
        // If some nodes may be restarted, only their clocks run. Otherwise all clocks run, so that
        // counters expire.
        if now < self.clocks && !is_stopped && (column.is_mortal || self.mortals == 0) {
            actions.push(Action::Tick { node });
        }
        // Left out of the model: a restart from a snapshot that is older than the last membership.
        let is_old = |marker: Marker| marker.view < self.last_view(state);
        let restarts = column.is_mortal && node < NODES && state.restarts < self.restarts;
        if restarts && !saved.marker.is_some_and(is_old) {
            actions.push(Action::Restarts { node });
        }
        if self.saves && saved != disk && node < NODES {
            actions.push(Action::Saves { node });
        }
        if self.rules.longest.is_some() {
            self.changes_of_the_membership(state, node, actions);
        }
    }

    fn changes_of_the_membership(&self, state: &State, node: usize, actions: &mut Vec<Action>) {
        let marker = state.columns[node].node.disk.marker;
        let view = self.last_view(state);
        let is_member = |view: View, server: usize| self.is_member(state, view, server);
        let others = |view: View| {
            let others = (0..state.columns.len()).filter(|other| *other != node);
            let has_recorded = |other: &usize| {
                is_member(view, *other) && state.columns[*other].node.view() == view
            };
            others.filter(has_recorded).count()
        };
        if marker.is_none() && is_member(view, node) {
            // A server may become a node once a majority of the members has recorded the
            // membership, and so refuses requests under the earlier ones.
            if others(view) >= MAJORITY || self.rules.flaw == Flaw::Unrecorded {
                actions.push(Action::IsMarked { node });
            }
        }
        let lags = |marker: Marker| marker.view.quorum == view.quorum && marker.view < view;
        if marker.is_some_and(lags) && is_member(view, node) {
            actions.push(Action::Records { node });
        }
        // A majority of the present members must have recorded their membership: these agree on the
        // next members.
        let is_out = marker.is_none() && (node < NODES || self.outsider == Outsider::Empty);
        if is_out && state.epochs <= self.replacements && others(view) >= MAJORITY {
            let replaced = (0..state.columns.len()).filter(|other| is_member(view, *other));
            // A member without a marker may only replace itself. A server that is no member may
            // replace any member.
            let replaced = replaced.filter(|other| *other == node || !is_member(view, node));
            // Nodes whose counters began equal are interchangeable: replacing one of them is
            // enough.
            let most = if self.skew == 0 { 1 } else { NODES };
            let replaced = replaced.take(most);
            actions.extend(replaced.map(|replaced| Action::Replaces {
                newcomer: node,
                replaced,
            }));
        }
    }
}
