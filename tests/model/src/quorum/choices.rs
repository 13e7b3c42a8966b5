//! What may happen next.

use super::Column;
use super::{Action, Cell, MAJORITY, Phase, Protocol, Quorum, State};
use crate::node::{Flaw, Marker, Node};

impl Quorum {
    /// The tokens that an attempt may go on with.
    fn next_firsts(&self, state: &State, attempt: usize) -> Vec<u8> {
        let it = state.attempts[attempt];
        let round = usize::from(it.round);
        let cells = state.columns.iter().map(|column| column.cells[attempt][round]);
        let mut firsts: Vec<_> = match self.protocol {
            // Of those that outbid it, it may have heard of any.
            Protocol::Proposed => cells
                .filter_map(
                    |cell| if let Cell::Stale(token) = cell { Some(token + 1) } else { None },
                )
                .collect(),
            Protocol::Naive => {
                let counted =
                    |cell| if let Cell::Counted(token) = cell { Some(token) } else { None };
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
        let is_granted = |column: &&Column| match self.rules.flaw {
            Flaw::CountsOldRounds => column.cells[attempt].contains(&Cell::Granted),
            _ => column.cells[attempt][round] == Cell::Granted,
        };
        let needed = if self.rules.flaw == Flaw::Minority { 1 } else { MAJORITY };
        state.columns.iter().filter(is_granted).count() >= needed
    }

    pub(super) fn actions_of_an_attempt(
        &self,
        state: &State,
        attempt: usize,
        actions: &mut Vec<Action>,
    ) {
        let it = state.attempts[attempt];
        if it.phase == Phase::Before {
            // They are all alike: they begin in their order.
            let is_next = attempt == 0 || state.attempts[attempt - 1].phase != Phase::Before;
            if is_next {
                let latest = if self.protocol == Protocol::Naive { 1 } else { self.latest };
                actions.extend((1..=latest).map(|first| Action::Begin { attempt, first }));
            }
            return;
        }
        if it.phase == Phase::Asking && !it.over && it.round + 1 < self.rounds {
            let firsts = self.next_firsts(state, attempt);
            actions.extend(firsts.into_iter().map(|first| Action::Again { attempt, first }));
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
        if self.releases && matches!(it.phase, Phase::Won | Phase::Asking) {
            actions.push(Action::Releases { attempt });
        }
        for (node, column) in state.columns.iter().enumerate() {
            for (round, cell) in column.cells[attempt].iter().enumerate() {
                if *cell == Cell::Sent || self.resends && *cell != Cell::Unsent {
                    actions.push(Action::Arrives { attempt, round, node });
                }
            }
            if column.closing & 1 << attempt != 0 {
                actions.push(Action::ReleaseArrives { attempt, node });
            }
        }
    }

    pub(super) fn actions_of_a_node(&self, state: &State, node: usize, actions: &mut Vec<Action>) {
        let column = &state.columns[node];
        let Node { now, run, disk, saved } = column.node;
        if disk.lock.is_some_and(|owner| state.attempts[usize::from(owner)].over) {
            actions.push(Action::LetsGo { node });
        }
        let votes_next = |marker: Marker| marker.run == run && now + 1 >= marker.since;
        let waits = column.awaits != 0 && disk.marker.is_some_and(votes_next);
        let is_banned = waits && self.rules.flaw != Flaw::NoMarker;
        // A node that is never started again needs a clock only where counters expire.
        if now < self.clocks && !is_banned && (column.is_mortal || self.mortals == 0) {
            actions.push(Action::Tick { node });
        }
        if column.is_mortal && state.restarts < self.restarts {
            actions.push(Action::Restarts { node });
        }
        if self.saves && saved != disk {
            actions.push(Action::Saves { node });
        }
        if disk.marker.is_none() && self.rules.longest.is_some() {
            actions.push(Action::IsMarked { node });
        }
    }
}
