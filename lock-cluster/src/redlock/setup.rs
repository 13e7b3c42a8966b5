//! [`set_up`]: an operator begins a quorum, or completes one.

use super::backend::{Quorum, QuorumBackend};
use super::majority::majority;
use super::membership_update::new_quorum;
use super::node::RedisNode;
use super::scheme::{UrlOptions, nodes};
use lock_core::backend::{Backoff, Failure};
use lock_core::{
    ClientId, Clock, Config, Context, Error, MemberOutcome, MemberResult, Moment, Signal,
    SystemClock,
};
use lock_redis::parts::{Admission, Agreement, MarkerRequest, ServerState};
use std::sync::Arc;
use std::time::Duration;

/// How often it is tried while clients change the members at the same time.
const TRIES: u32 = 10;

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
/// server. Changes that were made stay, and it can be called again; servers that were not reached
/// after others had begun to vote then vote one longest lease later.
pub fn set_up(config: &Config) -> Result<(), Error> {
    let options = UrlOptions::read(config)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let context = Context::new(Arc::clone(&clock), ClientId::random());
    let nodes = nodes(config, &options, &context)?;
    let quorum = QuorumBackend::of(nodes, config.command_timeout(), &context)?.0;
    let by = || clock.now() + config.command_timeout();
    let read = || {
        let states = each(&quorum, |_, server| server.read_state(by()))?;
        check_servers(&quorum, &states)?;
        Ok(states)
    };
    let votes = |state: &ServerState| state.marker.is_some() && !state.is_new;
    if !read()?.iter().any(votes) {
        return begin(&quorum, read, by);
    }
    quorum.update_membership(Duration::ZERO)?;
    let states = read()?;
    let views: Vec<_> = states.iter().map(ServerState::view).collect();
    let exclusions = quorum.membership.exclusions(&views, clock.now());
    let nodes = views.iter().zip(&exclusions).filter(|(node, why)| node.is_some() && why.is_none());
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
    let agreed = first_members(&quorum, &states);
    let mut is_done = vec![false; states.len()];
    record(&quorum, &states, 1, &agreed, options.max_lease, &mut is_done, by)?;
    if is_done.contains(&false) { Err(changed()) } else { Ok(()) }
}

/// Begins a quorum of servers that do not vote, or ends its pause.
///
/// Clients may be beginning it at the same time. So the servers choose the first members as they do
/// for a client, and what a client has changed meanwhile is read again.
fn begin(
    quorum: &Quorum,
    read: impl Fn() -> Result<Vec<ServerState>, Error>,
    by: impl Fn() -> Moment,
) -> Result<(), Error> {
    let mut is_done = vec![false; quorum.workers.len()];
    let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));
    let mut error = changed();
    for _ in 0..TRIES {
        match quorum.update_membership(Duration::ZERO) {
            Err(other) => error = other,
            Ok(_) => {
                let states = read()?;
                let mut agreed = first_members(quorum, &states);
                let mut epoch = 1;
                let markers = states.iter().filter_map(|state| state.marker.as_ref());
                if let Some((begun, view)) = markers.max_by_key(|(_, view)| view.epoch) {
                    // A client has begun it, and knows its ID.
                    epoch = view.epoch + u64::from(begun.members != agreed.members);
                    agreed.quorum = Arc::clone(&begun.quorum);
                }
                record(quorum, &states, epoch, &agreed, Duration::ZERO, &mut is_done, &by)?;
                if !is_done.contains(&false) {
                    return Ok(());
                }
                error = changed();
            }
        }
        let now = quorum.clock.now();
        quorum.clock.wait(&Arc::new(Signal::new()), now + backoff.next());
    }
    Err(error)
}

/// The present servers as the first members of a quorum.
fn first_members(quorum: &Quorum, states: &[ServerState]) -> Agreement {
    let present: Vec<_> = states.iter().cloned().map(Some).collect();
    new_quorum(&present, &quorum.names(), &quorum.terms.expect("its nodes are servers"))
}

/// Makes the servers that are not done nodes of a quorum, which vote after this pause.
fn record(
    quorum: &Quorum,
    states: &[ServerState],
    epoch: u64,
    agreed: &Agreement,
    pause: Duration,
    is_done: &mut [bool],
    by: impl Fn() -> Moment,
) -> Result<(), Error> {
    let recorded = each(quorum, |at, server| {
        if is_done[at] {
            return Ok(true);
        }
        let replaces = Arc::clone(&states[at].version);
        let admission = Admission { pause, not_before: 0, replaces, chooses: true };
        let request = MarkerRequest::Record(epoch, agreed, Some(&admission));
        Ok(server.mark(&states[at].run_id, &request, by())?.is_done)
    })?;
    is_done.copy_from_slice(&recorded);
    Ok(())
}

fn changed() -> Error {
    Error::unavailable("a client changes the members of this quorum at this time: call it again")
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
