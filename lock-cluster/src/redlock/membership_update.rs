//! Changes of a quorum's members: servers that become nodes, or that replace a missing member.
//!
//! The members of an epoch choose the members of the next epoch by single-decree Paxos, with the
//! ballots in their markers. The reasons are in `docs/DESIGN.md`, section Quorum.

use super::clocks::{WrongClocks, unix_micros};
use super::majority::majority;
use super::missing::Absence;
use super::node_worker::{NodeContext, Queue};
use super::quorum::Quorum;
use super::responses::Responses;
use super::states::{mark, other_choice};
use super::survey::{Change, Survey, distinct};
use lock_core::backend::{Failure, contain, run_in_background};
use lock_core::{Error, Moment};
use lock_redis::quorum::{Admission, Agreement, MarkerRequest, NodeView, ServerState};
use std::sync::Arc;
use std::time::Duration;

/// The most changes of one update, a few for each server: every server may record an epoch, and may
/// become a node.
const MAX_CHANGES: usize = 32;

/// The number of surveys that a client in use makes within one `max_lease`. If this client reaches
/// a member, each of its surveys deletes the notes that this member is missing. Without these
/// surveys, clients that do not reach the member would replace it.
const SURVEYS: u32 = 3;

impl Quorum {
    /// Updates the membership in the background, if an update was requested and is due. Also
    /// surveys the servers at intervals without a request, because other clients may have noted a
    /// member as missing that this client reaches.
    pub(super) fn update_in_background(self: &Arc<Self>) {
        let Some(terms) = self.terms else { return };
        let (now, interval) = (self.clock.now(), terms.max_lease / SURVEYS);
        let mut update = self.update.lock();
        let is_due = now >= *update.next_survey.get_or_insert(now + interval);
        if update.is_running || !is_due && now < update.not_before {
            return;
        }
        let is_requested = self.membership.take_update_request();
        if !is_requested && !is_due {
            return;
        }
        let quorum = Arc::clone(self);
        let work = move || {
            let absence = Absence::Noted(terms.max_lease);
            let changes = match contain(|| quorum.update_membership(absence)) {
                Some(Ok(changes)) => changes,
                // The update failed or panicked.
                Some(Err(_)) | None => {
                    quorum.membership.request_update();
                    0
                }
            };
            let mut update = quorum.update.lock();
            if changes > 0 {
                update.backoff.reset();
            }
            let now = quorum.clock.now();
            if is_requested {
                update.not_before = now + update.backoff.next();
            }
            update.next_survey = Some(now + interval);
            update.is_running = false;
            drop(update);
            quorum.update_ended.raise();
        };
        match run_in_background(work) {
            Ok(()) => update.is_running = true,
            Err(_) => self.membership.request_update(),
        }
    }

    /// Changes the members until no further change is needed or possible, at most [`MAX_CHANGES`]
    /// times. Returns the number of changes, or the error of a change that failed.
    pub(super) fn update_membership(&self, absence: Absence) -> Result<usize, Error> {
        let Some(terms) = self.terms else {
            return Ok(0);
        };
        let names = self.names();
        for changes in 0..MAX_CHANGES {
            let states = self.survey();
            let known_quorum = self.membership.known_quorum();
            let survey = Survey {
                states: &states,
                names: &names,
                absence,
                known_quorum,
                terms,
            };
            let view = survey.latest().map(|(_, view)| view);
            let noted = view.filter(|_| absence != Absence::Declared).map(|view| {
                self.report(&states, &names, &view);
                self.note_missing(&states, &view)
            });
            let survey = Survey {
                states: noted.as_deref().unwrap_or(&states),
                ..survey
            };
            match survey.next_change() {
                None => return Ok(changes),
                Some(Change::Record {
                    at,
                    epoch,
                    agreed,
                    admission,
                }) => {
                    let request = move |context: &NodeContext, run_id: &str, by| {
                        let request = MarkerRequest::Record(epoch, &agreed, admission.as_ref());
                        mark(context, run_id, &request, by)
                    };
                    if self.ask_nodes(&states, &[at], request).is_empty() {
                        let error = format!("{} did not record it", names[at]);
                        return Err(Error::unavailable(error));
                    }
                }
                Some(Change::Choose { epoch, agreed }) => self.choose(&states, epoch, agreed)?,
            }
        }
        Ok(MAX_CHANGES)
    }

    /// Reports the members and the clocks that the survey found.
    fn report(&self, states: &[Option<ServerState>], names: &[String], view: &NodeView) {
        let Some(terms) = self.terms else { return };
        self.reports.members(view, names, states);
        // The clocks were read within one time-out of each other.
        let (own, tolerance) = (unix_micros(self.clock.as_ref()), self.node_timeout() * 2);
        let wrong = WrongClocks::among(states, own, terms.max_lease, tolerance);
        self.reports.clocks(names, states, &wrong, terms.max_lease);
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.workers
            .iter()
            .map(|worker| worker.context().node().name().to_owned())
            .collect()
    }

    /// Returns the states of all servers, each member once.
    pub(super) fn survey(&self) -> Vec<Option<ServerState>> {
        let states = self.read_states(Moment::NEVER, |_| false);
        distinct(states)
    }

    /// Sends a request to these servers, if their `run_id` is still that of the survey. Returns the
    /// states of the servers that answered without a failure.
    pub(super) fn ask_nodes(
        &self,
        states: &[Option<ServerState>],
        nodes: &[usize],
        request: impl Fn(&NodeContext, &str, Moment) -> Result<ServerState, Failure>
        + Clone
        + Send
        + 'static,
    ) -> Vec<ServerState> {
        let by = self.by(Moment::NEVER);
        let responses = Responses::of(nodes.len());
        for (place, at) in nodes.iter().enumerate() {
            let Some(state) = &states[*at] else { continue };
            let (run_id, request) = (Arc::clone(&state.run_id), request.clone());
            let responses = Arc::clone(&responses);
            let ask = move |context: &NodeContext, by| request(context, &run_id, by);
            let done = move |_: &NodeContext, response| responses.put(place, response);
            self.workers[*at].ask(Queue::Attempts, by, ask, done);
        }
        responses.wait_for_all(self.clock.as_ref(), by);
        responses.read(|responses| {
            let states = responses.iter().flatten();
            states
                .filter_map(|state: &Result<ServerState, _>| state.as_ref().ok().cloned())
                .collect()
        })
    }

    /// Makes the members of this epoch choose the members of the next epoch. In epoch 0, servers
    /// without a marker choose the first members.
    fn choose(
        &self,
        states: &[Option<ServerState>],
        epoch: u64,
        agreed: Agreement,
    ) -> Result<(), Error> {
        let quorum: Arc<str> = if epoch == 0 {
            "".into()
        } else {
            Arc::clone(&agreed.quorum)
        };
        let is_chooser = |state: &ServerState| match &state.marker {
            None => epoch == 0,
            Some((_, node)) => {
                (&node.quorum, node.epoch) == (&quorum, epoch)
                    && node.members.contain(&node.node)
                    && state.admitted != epoch
            }
        };
        let choosers = states.iter().enumerate();
        let choosers: Vec<_> = choosers
            .filter(|(_, state)| state.as_ref().is_some_and(is_chooser))
            .map(|(at, _)| at)
            .collect();
        let needed = majority(self.workers.len());
        let largest = states
            .iter()
            .flatten()
            .map(|state| state.ballot)
            .max()
            .unwrap_or(0);
        // The ballot need not be unique: each server promises it only once, so only one client gets
        // a majority for it.
        let ballot = largest + 1 + fastrand::u64(..1_000);
        let too_few = |what: &str| {
            Error::unavailable(format!(
                "too few nodes of the quorum {what}: others may have"
            ))
        };
        let of = Arc::clone(&quorum);
        let promised = self.ask_nodes(states, &choosers, move |context, run_id, by| {
            done(mark(
                context,
                run_id,
                &MarkerRequest::Promise(&of, epoch, ballot),
                by,
            )?)
        });
        if promised.len() < needed {
            return Err(too_few("promised to choose the next members"));
        }
        // A majority may already have accepted the choice with the largest ballot. So this client
        // proposes that choice instead of its own.
        let accepted = promised.into_iter().filter_map(|state| state.accepted);
        let choice = accepted
            .max_by_key(|(ballot, _)| *ballot)
            .map_or(agreed, |(_, its)| its);
        let its = choice.clone();
        let accepted = self.ask_nodes(states, &choosers, move |context, run_id, by| {
            done(mark(
                context,
                run_id,
                &MarkerRequest::Accept(&quorum, epoch, ballot, &its),
                by,
            )?)
        });
        if accepted.len() < needed {
            return Err(too_few("chose the next members"));
        }
        let pause = choice
            .max_lease
            .max(self.terms.map_or(Duration::ZERO, |it| it.max_lease));
        // The first members become nodes by recording the choice.
        self.ask_nodes(states, &choosers, move |context, run_id, by| {
            let admission = Admission::at_once(pause, "");
            let is_first = epoch == 0 && choice.members.contain(run_id);
            let admission = is_first.then_some(&admission);
            mark(
                context,
                run_id,
                &MarkerRequest::Record(epoch + 1, &choice, admission),
                by,
            )
        });
        Ok(())
    }
}

fn done(state: ServerState) -> Result<ServerState, Failure> {
    if state.is_done {
        Ok(state)
    } else {
        Err(other_choice())
    }
}
