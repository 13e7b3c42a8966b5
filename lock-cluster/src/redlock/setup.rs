//! [`set_up`]: an operator begins a quorum, or completes one.

use super::backend::{Quorum, QuorumBackend};
use super::majority::majority;
use super::membership_update::new_quorum;
use super::node::RedisNode;
use super::scheme::{UrlOptions, nodes};
use lock_core::backend::Failure;
use lock_core::{
    ClientId, Clock, Config, Context, Error, MemberOutcome, MemberResult, SystemClock,
};
use lock_redis::parts::{Admission, MarkerRequest, ServerState};
use std::sync::Arc;
use std::time::Duration;

/// Begins a quorum on the servers of a `redlock://` URL, which votes at once: the operator declares
/// that no lock can have been held there within the last `max_lease`. This also ends the pause of a
/// quorum that a client has begun. Servers that were restarted empty look new, too.
///
/// If some of them vote already, the others become nodes of that quorum, and vote one longest lease
/// later. If too few of its nodes are left for that, all servers begin anew, with the same pause.
///
/// A quorum that was not set up begins with its first use, and votes one `max_lease` later: the
/// servers cannot tell it from a quorum that has lost its data.
///
/// # Blocking
///
/// A few command time-outs for each server, at most.
///
/// # Errors
///
/// [`Error::is_configuration`] if the URL is invalid, or a server cannot be a node of this quorum;
/// [`Error::is_unavailable`] if one cannot be asked. [`Error::members`] has the result of each
/// server. Changes that were made stay, and it can be called again.
pub fn set_up(config: &Config) -> Result<(), Error> {
    let options = UrlOptions::read(config)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let context = Context::new(Arc::clone(&clock), ClientId::random());
    let nodes = nodes(config, &options, &context)?;
    let quorum = QuorumBackend::of(nodes, config.command_timeout(), &context)?.0;
    let by = || clock.now() + config.command_timeout();
    let read = || each(&quorum, |_, server| server.read_state(by()));
    let mut states = read()?;
    check_servers(&quorum, &states)?;
    let votes = |state: &ServerState| state.marker.is_some() && !state.is_new;
    let pause = if states.iter().any(votes) {
        quorum.update_membership(Duration::ZERO)?;
        states = read()?;
        let views: Vec<_> = states.iter().map(ServerState::view).collect();
        let exclusions = quorum.membership.exclusions(&views, clock.now());
        let nodes =
            views.iter().zip(&exclusions).filter(|(node, why)| node.is_some() && why.is_none());
        let count = nodes.count();
        if count == views.len() {
            return Ok(());
        }
        if count >= majority(views.len()) {
            let why = exclusions.into_iter().flatten().next();
            return Err(why.unwrap_or_else(|| {
                Error::unavailable("one of the servers did not become a node: call it again")
            }));
        }
        options.max_lease
    } else {
        Duration::ZERO
    };
    let present: Vec<_> = states.iter().cloned().map(Some).collect();
    let mut agreed =
        new_quorum(&present, &quorum.names(), &quorum.terms.expect("its nodes are servers"));
    let mut epoch = 1;
    if let (true, Some((begun, _))) =
        (pause.is_zero(), states.iter().find_map(|state| state.marker.as_ref()))
    {
        // A client has begun it, and knows its ID.
        epoch += u64::from(begun.members != agreed.members);
        agreed.quorum = Arc::clone(&begun.quorum);
    }
    each(&quorum, |at, server| {
        let replaces = Arc::clone(&states[at].version);
        let admission = Admission { pause, not_before: 0, replaces, chooses: true };
        let request = MarkerRequest::Record(epoch, &agreed, Some(&admission));
        let state = server.mark(&states[at].run_id, &request, by())?;
        if state.is_done {
            return Ok(());
        }
        let changed =
            format!("{} was changed by another client: call it again", quorum.names()[at]);
        Err(Failure::Refused(Error::unavailable(changed)))
    })?;
    Ok(())
}

/// Refuses one server with two names, and nodes of different quorums.
fn check_servers(quorum: &Quorum, states: &[ServerState]) -> Result<(), Error> {
    let name = |at: usize| quorum.workers[at].context().node().name();
    for (at, state) in states.iter().enumerate() {
        if let Some(twin) = states[..at].iter().position(|other| other.run_id == state.run_id) {
            return Err(Error::configuration(format!(
                "{} and {} are one and the same server (run_id {}): its vote would count twice",
                name(twin),
                name(at),
                state.run_id
            )));
        }
        let of =
            |state: &ServerState| state.marker.as_ref().map(|(_, node)| Arc::clone(&node.quorum));
        let other = |other: &ServerState| of(other).is_some() && of(other) != of(state);
        if of(state).is_some()
            && let Some(before) = states[..at].iter().position(other)
        {
            return Err(Error::configuration(format!(
                "{} and {} are nodes of different quorums: on those of a quorum that is given up, \
                 delete the key `distlock_quorum` (behind the prefix)",
                name(before),
                name(at)
            )));
        }
    }
    Ok(())
}

/// Sends a request to each server. If one fails, the error has the results of all.
fn each<T>(
    quorum: &Quorum,
    request: impl Fn(usize, &RedisNode) -> Result<T, Failure>,
) -> Result<Vec<T>, Error> {
    let mut done = Vec::new();
    let mut results = Vec::new();
    let mut kind = None;
    for (at, worker) in quorum.workers.iter().enumerate() {
        let node = worker.context().node();
        let Some(server) = node.server() else { continue };
        let outcome = match request(at, server) {
            Ok(answer) => {
                done.push(answer);
                MemberOutcome::Done
            }
            Err(failure) => {
                let error = failure.into_error();
                kind.get_or_insert(error.kind());
                MemberOutcome::Failed(error)
            }
        };
        results.push(MemberResult::new(node.name(), outcome));
    }
    match kind {
        None => Ok(done),
        Some(kind) => {
            Err(Error::from_members(kind, "the quorum could not be set up", "answered", results))
        }
    }
}
