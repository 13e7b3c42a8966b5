//! [`set_up`]: begins or completes a quorum, as an operator's command.

use super::backend::QuorumBackend;
use super::clocks::{micros, not_before};
use super::majority::majority;
use super::missing::Absence;
use super::node::RedisNode;
use super::quorum::Quorum;
use super::scheme::{UrlOptions, nodes};
use super::survey::{new_quorum, recorded};
use lock_core::backend::{Backoff, Failure};
use lock_core::{
    ClientId, Clock, Config, Context, Error, MemberOutcome, MemberResult, Signal, SystemClock,
};
use lock_redis::quorum::{Admission, Agreement, MarkerRequest, ServerState};
use std::sync::Arc;
use std::time::Duration;

/// The maximum number of tries while clients change the members at the same time.
const TRIES: u32 = 10;

/// Begins a quorum on the servers of a `redlock://` URL. The quorum votes at once: the operator
/// declares that no lock can have been held there within the last `max_lease`. Also ends the pause
/// of a quorum that a client has begun, if none of its servers has voted or was restarted. Servers
/// that were restarted without their data cannot be distinguished from new ones.
///
/// If some servers vote already, the others become nodes of their quorum, and vote after
/// `max_lease`. If a wrong clock delays the vote of a server for longer and has been set right,
/// that server also votes after `max_lease`. If the quorum has too few nodes left to admit others,
/// all servers begin a new quorum, and vote after `max_lease`.
///
/// A quorum that was not set up begins with its first use, and votes after `max_lease`, because the
/// servers cannot distinguish it from a quorum that has lost its data.
///
/// # Blocking
///
/// Makes some round trips to each server, each within the command time-out. Makes up to ten tries,
/// with pauses in between, while clients change the members or changes of the members fail.
///
/// # Errors
///
/// [`Error::is_configuration`] if the URL is invalid, or a server cannot be a node of this quorum;
/// [`Error::is_unavailable`] if a server cannot be queried, or the members cannot be changed. If a
/// request to a server fails, [`Error::members`] has the result of each server. Changes that were
/// made remain, and the call can be repeated. Servers that are reached only by such a later call,
/// after others have begun to vote, vote after `max_lease`.
pub fn set_up(config: &Config) -> Result<(), Error> {
    let options = UrlOptions::read(config)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let context = Context::new(Arc::clone(&clock), ClientId::random());
    let nodes = nodes(config, &options, &context)?;
    let quorum = QuorumBackend::of(nodes, config.command_timeout(), &context)?.0;
    let by = || clock.now() + config.command_timeout();
    let read = || each(&quorum, |_, server| server.read_state(by()));
    let states = read()?;
    check_servers(&quorum, &states)?;
    let mut setup = if states
        .iter()
        .any(|state| state.marker.is_some() && !state.is_new)
    {
        Setup::Complete {
            pause: options.max_lease,
            anew: None,
        }
    } else {
        Setup::Begin
    };
    let mut has_begun = vec![false; states.len()];
    let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));
    let mut error = None;
    for _ in 0..TRIES {
        if error.is_some() {
            clock.wait(&Arc::new(Signal::new()), clock.now() + backoff.next());
        }
        // The servers choose the members as for a client, and a client may do this concurrently.
        match quorum.update_membership(Absence::Declared) {
            Err(failed) if failed.is_unavailable() => {
                error = Some(failed);
                continue;
            }
            outcome => outcome?,
        };
        let states = read()?;
        let Some(records) = setup.records(&quorum, &states)? else {
            return shorten(&quorum, &states);
        };
        if has_begun
            .iter()
            .zip(&records)
            .any(|(has_begun, record)| *has_begun && record.is_some())
        {
            return Err(Error::unavailable(
                "a server was emptied just after it had begun to vote: call it again",
            ));
        }
        let is_done = each(&quorum, |at, server| match &records[at] {
            Some(Record {
                epoch,
                agreed,
                pause,
            }) => {
                let admission = Admission::at_once(*pause, &states[at].version);
                let request = MarkerRequest::Record(*epoch, agreed, Some(&admission));
                Ok(server.mark(&states[at].run_id, &request, by())?.is_done)
            }
            None => Ok(true),
        })?;
        if !is_done.contains(&false) {
            return Ok(());
        }
        has_begun = is_done;
        error = Some(Error::unavailable(
            "a client changes the members of this quorum at this time: call it again",
        ));
    }
    Err(error.expect("each try ends with an error"))
}

/// Shortens the pauses that would last longer than `max_lease` from now on, because of a clock that
/// was wrong and has been set right since.
fn shorten(quorum: &Quorum, states: &[ServerState]) -> Result<(), Error> {
    let pause = quorum.terms.expect("its nodes are servers").max_lease;
    // By this command, the operator declares that the pauses of the other servers no longer count
    // as bounds.
    let now: Vec<_> = states
        .iter()
        .map(|state| {
            Some(ServerState {
                votes_from: 0,
                ..state.clone()
            })
        })
        .collect();
    let admission = |at: usize| {
        let (_, view) = states[at].marker.as_ref()?;
        let mut others = recorded(&now, view);
        others.retain(|(other, _)| *other != at);
        let (not_before, _) = not_before(&others, states.len(), pause)?;
        let votes_from = not_before
            .max(states[at].time)
            .saturating_add(micros(pause));
        let admission = Admission::at_once(pause, &states[at].version);
        (states[at].votes_from > votes_from).then_some(Admission {
            not_before,
            ..admission
        })
    };
    let by = || quorum.clock.now() + quorum.node_timeout();
    each(quorum, |at, server| {
        if let Some(admission) = admission(at) {
            server.mark(
                &states[at].run_id,
                &MarkerRequest::Shorten(&admission),
                by(),
            )?;
        }
        Ok(())
    })?;
    Ok(())
}

/// The change to make, which depends on the states of the servers at the start of the command.
enum Setup {
    /// Each server has no marker, or is a new node that has not voted: all servers vote at once.
    Begin,
    /// At least one server is a node that may have voted: the others join its quorum, or all
    /// servers begin a new one (`anew`).
    Complete {
        pause: Duration,
        anew: Option<Agreement>,
    },
}

/// The members that a server records, with the pause before its first vote.
struct Record {
    epoch: u64,
    agreed: Agreement,
    pause: Duration,
}

impl Setup {
    /// Returns for each server the record that it needs, if any. Returns `None` if no server needs
    /// a record.
    fn records(
        &mut self,
        quorum: &Quorum,
        states: &[ServerState],
    ) -> Result<Option<Vec<Option<Record>>>, Error> {
        let (epoch, agreed, pause) = match self {
            Self::Begin => {
                let mut agreed = first_members(quorum, states);
                let mut epoch = 1;
                let markers = states.iter().filter_map(|state| state.marker.as_ref());
                if let Some((begun, view)) = markers.max_by_key(|(_, view)| view.epoch) {
                    // A client has begun the quorum, so the ID of that quorum is used.
                    epoch = view.epoch + u64::from(begun.members != agreed.members);
                    agreed.quorum = Arc::clone(&begun.quorum);
                }
                (epoch, agreed, Duration::ZERO)
            }
            Self::Complete { pause, anew } => {
                if anew.is_none() && is_complete(quorum, states)? {
                    return Ok(None);
                }
                let agreed = anew.get_or_insert_with(|| first_members(quorum, states));
                (1, agreed.clone(), *pause)
            }
        };
        let record = |state: &ServerState| {
            let is_there = state.marker.as_ref().is_some_and(|(its, view)| {
                (&its.quorum, view.epoch, &its.members) == (&agreed.quorum, epoch, &agreed.members)
            });
            let votes = is_there && (!state.is_new || !pause.is_zero());
            (!votes).then(|| Record {
                epoch,
                agreed: agreed.clone(),
                pause,
            })
        };
        let records: Vec<_> = states.iter().map(record).collect();
        Ok(records.iter().any(Option::is_some).then_some(records))
    }
}

/// Returns whether all servers are nodes of one quorum. Fails if only a majority of them are;
/// returns false if fewer are.
fn is_complete(quorum: &Quorum, states: &[ServerState]) -> Result<bool, Error> {
    let views: Vec<_> = states.iter().map(ServerState::view).collect();
    let exclusions = quorum.membership.exclusions(&views, quorum.clock.now());
    let nodes = views
        .iter()
        .zip(&exclusions)
        .filter(|(node, why)| node.is_some() && why.is_none());
    let count = nodes.count();
    if count < views.len() && count >= majority(views.len()) {
        let why = exclusions.into_iter().flatten().next();
        return Err(why.unwrap_or_else(|| {
            Error::unavailable("one of the servers did not become a node: call it again")
        }));
    }
    Ok(count == views.len())
}

/// Returns a new quorum with the present servers as its first members.
fn first_members(quorum: &Quorum, states: &[ServerState]) -> Agreement {
    let present: Vec<_> = states.iter().cloned().map(Some).collect();
    new_quorum(
        &present,
        &quorum.names(),
        &quorum.terms.expect("its nodes are servers"),
    )
}

/// Refuses two names of one server, nodes of different quorums, and a quorum of another size.
fn check_servers(quorum: &Quorum, states: &[ServerState]) -> Result<(), Error> {
    let name = |at: usize| quorum.workers[at].context().node().name();
    for (at, state) in states.iter().enumerate() {
        if let Some(twin) = states[..at]
            .iter()
            .position(|other| other.run_id == state.run_id)
        {
            return Err(Error::configuration(format!(
                "{} and {} are one and the same server (run_id {}): its vote would count twice",
                name(twin),
                name(at),
                state.run_id
            )));
        }
        if let Some((agreed, _)) = &state.marker
            && agreed.members.count() != states.len()
        {
            return Err(Error::configuration(format!(
                "{} is a node of a quorum of {} servers, and the URL names {}: name all of them, \
                 or give that quorum up by deleting the key `distlock_quorum` (behind the prefix) \
                 on its servers",
                name(at),
                agreed.members.count(),
                states.len()
            )));
        }
        let of = |state: &ServerState| {
            state
                .marker
                .as_ref()
                .map(|(_, node)| Arc::clone(&node.quorum))
        };
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

/// Sends a request to each server. If one fails, the error has the results of all servers.
fn each<T>(
    quorum: &Quorum,
    request: impl Fn(usize, &RedisNode) -> Result<T, Failure>,
) -> Result<Vec<T>, Error> {
    let mut done = Vec::new();
    let mut results = Vec::new();
    let mut kind = None;
    for (at, worker) in quorum.workers.iter().enumerate() {
        let node = worker.context().node();
        let Some(server) = node.server() else {
            continue;
        };
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
        Some(kind) => Err(Error::from_members(
            kind,
            "the quorum could not be set up",
            "answered",
            results,
        )),
    }
}
