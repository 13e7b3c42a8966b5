//! Reads the markers and clocks of all servers, and notes missing members in the markers.

use super::clocks::{WrongClocks, micros, unix_micros};
use super::majority::majority;
use super::missing::{absent, missing_for};
use super::node_worker::{NodeContext, Queue};
use super::quorum::Quorum;
use lock_core::backend::Failure;
use lock_core::{Error, Moment};
use lock_redis::quorum::{MarkerRequest, NodeView, ServerState};
use std::sync::Arc;
use std::time::Duration;

impl Quorum {
    /// Returns the wrong clocks unless a majority of the servers answers and accepts this token.
    /// Returns `None` if a majority accepts the token, if the token is not far enough ahead of this
    /// machine's clock to be refused, or if the nodes are not servers.
    ///
    /// Must be called before the proposal: a server with a wrong clock would grant the token, and
    /// still store it after its clock was set right.
    pub(super) fn refusal_of_token(&self, last: u64, by: Moment) -> Option<WrongClocks> {
        let max_lease = self.terms?.max_lease;
        let (own, reach) = (unix_micros(self.clock.as_ref()), micros(max_lease));
        if last <= own.saturating_add(reach) {
            return None;
        }
        let states = self.read_states(by, |at| self.workers[at].context().is_suspect());
        let takes = |state: &&ServerState| last <= state.time.saturating_add(reach);
        let takers = states.iter().flatten().filter(takes).count();
        (takers < majority(self.workers.len()))
            .then(|| WrongClocks::among(&states, own, max_lease, Duration::ZERO))
    }

    /// Returns the states of the servers that answer before the deadline. Does not wait for servers
    /// for which `is_left` returns true.
    pub(super) fn read_states(
        &self,
        by: Moment,
        is_left: impl Fn(usize) -> bool,
    ) -> Vec<Option<ServerState>> {
        let read = |context: &NodeContext, by| match context.node().server() {
            Some(server) => server.read_state(by),
            None => Err(Failure::Refused(Error::unavailable("no marker"))),
        };
        let by = self.by(by);
        let responses = self.ask(Queue::Attempts, by, read);
        let _all = responses.wait(self.clock.as_ref(), by, |responses| {
            let is_done = |(at, it): (usize, &Option<_>)| it.is_some() || is_left(at);
            responses.iter().enumerate().all(is_done).then_some(())
        });
        responses.read(|responses| {
            let state = |response: &Option<Result<ServerState, _>>| {
                response.as_ref()?.as_ref().ok().cloned()
            };
            responses.iter().map(state).collect()
        })
    }

    /// Records which members this client cannot reach, on each server of this view whose notes
    /// differ. Returns the states of all servers after that.
    pub(super) fn note_missing(
        &self,
        states: &[Option<ServerState>],
        view: &NodeView,
    ) -> Vec<Option<ServerState>> {
        let absent: Arc<[_]> = absent(&view.members, states).into();
        let is_noted = |state: &ServerState| {
            let knows = |id: &Arc<str>| {
                missing_for(state, id).is_some_and(|(_, note)| {
                    let is_named = note.clients.iter().any(|client| **client == *self.client);
                    (is_named || note.clients.len() > 1) && note.since <= state.time
                })
            };
            state.missing.len() == absent.len() && absent.iter().all(knows)
        };
        let is_to_note = |state: &ServerState| {
            let is_of_it = state.marker.as_ref().is_some_and(|(_, its)| {
                (&its.quorum, its.epoch) == (&view.quorum, view.epoch)
                    && view.members.contain(&its.node)
            });
            is_of_it && !is_noted(state)
        };
        let nodes = states.iter().enumerate();
        let nodes: Vec<_> = nodes
            .filter(|(_, state)| state.as_ref().is_some_and(is_to_note))
            .map(|(at, _)| at)
            .collect();
        if nodes.is_empty() {
            return states.to_vec();
        }
        let (quorum, epoch, client) = (
            Arc::clone(&view.quorum),
            view.epoch,
            Arc::clone(&self.client),
        );
        let noted = self.ask_nodes(states, &nodes, move |context, run_id, by| {
            mark(
                context,
                run_id,
                &MarkerRequest::Note(&quorum, epoch, &client, &absent),
                by,
            )
        });
        let after = |before: &Option<ServerState>| {
            let before = before.as_ref()?;
            let is_same = |state: &&ServerState| state.run_id == before.run_id;
            Some(noted.iter().find(is_same).unwrap_or(before).clone())
        };
        states.iter().map(after).collect()
    }
}

/// Reads or changes the marker of a server, if the server still has this `run_id`.
pub(super) fn mark(
    context: &NodeContext,
    run_id: &str,
    request: &MarkerRequest<'_>,
    by: Moment,
) -> Result<ServerState, Failure> {
    match context.node().server() {
        Some(server) => server.mark(run_id, request, by),
        None => Err(other_choice()),
    }
}

pub(super) fn other_choice() -> Failure {
    Failure::Refused(Error::unavailable("it knows of another choice"))
}
