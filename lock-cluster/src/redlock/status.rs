//! The state of the nodes of a quorum, for operators: [`quorum_status`], and the findings of a
//! diagnosis.

use super::backend::QuorumBackend;
use super::majority::majority;
use super::missing::missing_for;
use super::quorum::Quorum;
use super::reports::{self, unlisted};
use super::scheme::{UrlOptions, nodes};
use lock_core::backend::Failure;
use lock_core::{ClientId, Config, Context, Error, Finding, FindingLevel, Moment, SystemClock};
use lock_redis::quorum::ServerState;
use lock_redis::servers::{ServerClock, StoreKind};
use std::sync::Arc;
use std::time::Duration;

/// The state of a server of a quorum: see [`quorum_status`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QuorumNodeStatus {
    /// The address in the URL; for a member that the URL does not name, its recorded address.
    pub address: String,
    /// The state of the server's vote.
    pub vote: QuorumVote,
    /// The ID of the server's quorum; `None` if the server is no node, or did not answer.
    pub quorum: Option<String>,
    /// The number of the membership that the server has recorded; for a member that the URL does
    /// not name, the latest known number. `None` as for `quorum`.
    pub epoch: Option<u64>,
    /// The lead of the server's clock over this machine's, in microseconds; `None` if the server's
    /// state could not be read.
    pub clock_ahead: Option<i64>,
    /// The possible error of `clock_ahead`; zero if that is `None`.
    pub clock_uncertainty: Duration,
    /// The address of the server whose clock was ahead when this server became a node, if that
    /// delays this server's vote. Once that clock is set right, [`set_up`](super::set_up) shortens
    /// the delay.
    pub waits_for_clock_of: Option<String>,
    /// The time for which no client has reached the member at this address, as another server has
    /// recorded; `None` if no server has recorded it as missing.
    pub missing_for: Option<Duration>,
}

/// The state of a server's vote.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum QuorumVote {
    /// The server votes, and has been able to vote for this time.
    Votes(Duration),
    /// The server is a node that votes after this time, because it is new, replaced another server,
    /// or was restarted.
    Paused(Duration),
    /// The server was restarted, and does not vote for this time, counted from the next attempt.
    Restarted(Duration),
    /// The server has no valid marker, the record that makes it a node: no quorum was set up there,
    /// the server was emptied, or its data are those of another server or of a dump.
    Unmarked,
    /// The server's vote does not count together with the other nodes' votes, for this reason.
    Excluded(Error),
    /// The server cannot be a node, for this reason.
    Refused(Error),
    /// The server could not be queried.
    Unreachable(Error),
    /// The server is a member of the quorum, but the URL does not name it.
    Unlisted,
}

impl QuorumVote {
    /// Returns whether the vote counts now.
    #[must_use]
    pub fn counts(&self) -> bool {
        matches!(self, Self::Votes(_))
    }
}

/// Queries each server that a `redlock://` URL names for its state in the quorum. Changes nothing.
///
/// # Blocking
///
/// Makes some round trips to one server after the other, in at most two command time-outs for each
/// server.
///
/// # Errors
///
/// [`Error::is_configuration`] if the URL is invalid. A server that cannot be queried is a
/// [status](QuorumVote::Unreachable), not an error.
pub fn quorum_status(config: &Config) -> Result<Vec<QuorumNodeStatus>, Error> {
    let options = UrlOptions::read(config)?;
    let context = Context::new(Arc::new(SystemClock), ClientId::random());
    let nodes = nodes(config, &options, &context)?;
    let quorum = QuorumBackend::of(nodes, config.command_timeout(), &context)?.0;
    Ok(quorum.status(config.command_timeout(), Moment::NEVER))
}

impl Quorum {
    /// Returns the state of each server. If all servers answer, the members that are not among them
    /// follow. Stores that are not servers are omitted.
    fn status(&self, timeout: Duration, by: Moment) -> Vec<QuorumNodeStatus> {
        let clock = self.clock.as_ref();
        let mut answers = Vec::new();
        for worker in &self.workers {
            let node = worker.context().node();
            let Some(server) = node.server() else {
                continue;
            };
            let bound = || by.min(clock.now() + timeout);
            // Read twice: the first request may open the connection, and a long round trip would
            // make the measured difference of the clocks inexact.
            let answer = server.read_state(bound()).and_then(|_| {
                let (sent, since) = (clock.unix_time(), clock.now());
                let state = server.read_state(bound())?;
                let received = sent + clock.now().since(since);
                Ok((
                    ServerClock::read(Duration::from_micros(state.time), sent, received),
                    state,
                ))
            });
            answers.push((node.name().to_owned(), answer));
        }
        let views: Vec<_> = answers
            .iter()
            .map(|(_, answer)| answer.as_ref().ok().and_then(|(_, state)| state.view()))
            .collect();
        let states: Vec<_> = answers
            .iter()
            .map(|(_, answer)| answer.as_ref().ok().map(|(_, state)| state.clone()))
            .collect();
        let latest = views
            .iter()
            .flatten()
            .max_by_key(|view| view.epoch)
            .cloned();
        let mut exclusions = self.membership.exclusions(&views, clock.now()).into_iter();
        let status = |(address, answer): (String, Result<(ServerClock, ServerState), Failure>)| {
            let excluded = exclusions.next().flatten();
            let known = answer.as_ref().ok();
            let view = known.and_then(|(_, state)| state.view());
            QuorumNodeStatus {
                address,
                quorum: view.as_ref().map(|view| view.quorum.to_string()),
                epoch: view.as_ref().map(|view| view.epoch),
                clock_ahead: known.map(|(clock, _)| clock.ahead),
                clock_uncertainty: known.map_or(Duration::ZERO, |(clock, _)| clock.uncertainty),
                waits_for_clock_of: known.and_then(|(_, state)| awaited_clock(state)),
                missing_for: None,
                vote: match (answer, excluded) {
                    (Err(Failure::Refused(error)), _) => QuorumVote::Refused(error),
                    (Err(failure), _) => QuorumVote::Unreachable(failure.into_error()),
                    (Ok(_), Some(why)) => QuorumVote::Excluded(why),
                    (Ok((_, state)), None) => self.vote(&state),
                },
            }
        };
        let mut all: Vec<_> = answers.into_iter().map(status).collect();
        let Some(latest) = latest else { return all };
        let names: Vec<_> = all.iter().map(|node| node.address.clone()).collect();
        all.extend(
            unlisted(&latest, &names, &states)
                .into_iter()
                .map(|member| QuorumNodeStatus {
                    address: member.address.to_string(),
                    vote: QuorumVote::Unlisted,
                    quorum: Some(latest.quorum.to_string()),
                    epoch: Some(latest.epoch),
                    clock_ahead: None,
                    clock_uncertainty: Duration::ZERO,
                    waits_for_clock_of: None,
                    missing_for: None,
                }),
        );
        for member in latest.members.iter() {
            let noted = states
                .iter()
                .flatten()
                .filter_map(|state| Some(missing_for(state, member.id.as_deref()?)?.0));
            let node = all.iter_mut().find(|node| node.address == *member.address);
            if let Some(node) = node {
                // Two members may have one address. The longest time is that of the missing one,
                // because a present member has no time.
                node.missing_for = node.missing_for.max(noted.max());
            }
        }
        all
    }

    /// Returns the state of the vote of a server that answered.
    fn vote(&self, state: &ServerState) -> QuorumVote {
        let terms = self.terms.as_ref().expect("its nodes are servers");
        let time = |micros: u64| Duration::from_micros(micros);
        match &state.marker {
            None => QuorumVote::Unmarked,
            Some(_) if state.votes_from > state.time => {
                QuorumVote::Paused(time(state.votes_from - state.time))
            }
            Some(_) if state.is_restarted && !terms.durable => {
                QuorumVote::Restarted(terms.max_lease)
            }
            Some(_) => QuorumVote::Votes(time(state.time - state.votes_from)),
        }
    }

    /// Returns the findings about the quorum, and about each of its servers.
    pub(super) fn diagnose(&self, by: Moment) -> Result<Vec<Finding>, Failure> {
        let Some(terms) = self.terms else {
            return Ok(Vec::new());
        };
        let all = self.status(self.node_timeout(), by);
        let is_unreachable = |it: &QuorumNodeStatus| matches!(it.vote, QuorumVote::Unreachable(_));
        if let (true, Some(first)) = (all.iter().all(is_unreachable), all.first())
            && let QuorumVote::Unreachable(error) = &first.vote
        {
            return Err(Failure::NotSent(error.clone()));
        }
        let mut findings = quorum_findings(&all);
        let store = StoreKind::Quorum {
            max_lease: terms.max_lease,
            durable: terms.durable,
        };
        let mut clocks = Vec::new();
        for worker in &self.workers {
            let node = worker.context().node();
            let Some(server) = node.server() else {
                continue;
            };
            // A server that cannot be queried was already reported.
            if let Ok(found) = server.node().examine(store, by) {
                findings.extend(found.findings);
                clocks.extend(found.clock.map(|clock| (node.name().to_owned(), clock)));
            }
        }
        findings.extend(ServerClock::compare("the quorum", &clocks, store));
        Ok(findings)
    }
}

/// Returns the address of the server whose clock delays this server's vote, if there is one.
fn awaited_clock(state: &ServerState) -> Option<String> {
    let clock = state.marker.as_ref()?.1.clock.as_ref()?;
    (state.votes_from > state.time).then(|| clock.to_string())
}

/// The remedy for a node that will vote by itself.
const WAIT_OR_SET_UP: &str =
    "wait; or `distlock quorum init`, if no lock was held there within max_lease";

/// Returns the findings about the votes and about the number of servers.
fn quorum_findings(all: &[QuorumNodeStatus]) -> Vec<Finding> {
    const SUBJECT: &str = "the quorum";
    const SET_UP: &str = "`distlock quorum init`, if no lock was held there within max_lease";
    let mut findings = Vec::new();
    let count = all
        .iter()
        .filter(|node| !matches!(node.vote, QuorumVote::Unlisted))
        .count();
    let needed = majority(count);
    let votes = all.iter().filter(|node| node.vote.counts()).count();
    let seen = format!("{votes} of {count} servers vote, and {needed} are needed");
    let is_new = all
        .iter()
        .all(|node| matches!(node.vote, QuorumVote::Unmarked));
    findings.push(if is_new {
        Finding::new(
            FindingLevel::Danger,
            "quorum",
            SUBJECT,
            format!("{seen}: it is not set up"),
        )
        .why("the first client begins it, and waits for max_lease")
        .remedy(SET_UP)
    } else if votes < needed {
        Finding::new(FindingLevel::Danger, "quorum", SUBJECT, seen)
            .why("no lock can be taken")
            .remedy("see `quorum_node` below")
    } else {
        Finding::ok("quorum", SUBJECT, seen)
    });
    if count % 2 == 0 {
        let seen = format!("{count} servers");
        let finding = Finding::new(FindingLevel::Warning, "quorum_size", SUBJECT, seen)
            .why(format!(
                "they survive no more failures than {} servers",
                count - 1
            ))
            .remedy("use three or five servers");
        findings.push(finding);
    }
    let warning =
        |address, seen: String| Finding::new(FindingLevel::Warning, "quorum_node", address, seen);
    let failed =
        |address, error| Finding::failed(FindingLevel::Warning, "quorum_node", address, error);
    for QuorumNodeStatus {
        address,
        vote,
        waits_for_clock_of,
        ..
    } in all
    {
        let pause = "it does not vote until every lease that it may have forgotten is over";
        findings.push(match vote {
            QuorumVote::Votes(_) => continue,
            QuorumVote::Unmarked if is_new => continue,
            QuorumVote::Paused(left) => {
                let finding = warning(address, format!("votes in {left:.0?}"));
                match waits_for_clock_of {
                    None => finding.why(pause).remedy(WAIT_OR_SET_UP),
                    Some(clock) => finding.why(reports::awaited_clock(clock)).remedy(SET_UP),
                }
            }
            QuorumVote::Unlisted => warning(address, "is a member of the quorum".to_owned())
                .why("the URL does not name it")
                .remedy("name all members in the URL"),
            QuorumVote::Restarted(left) => {
                let seen = format!("was restarted: votes {left:.0?} after the next attempt");
                let remedy = "wait; `durable=yes` avoids it where appendfsync is always";
                warning(address, seen).why(pause).remedy(remedy)
            }
            QuorumVote::Unmarked => {
                let why = "it does not vote until a majority of the others has recorded it";
                let seen = "has no marker that counts: it is new, or was emptied".to_owned();
                warning(address, seen).why(why).remedy(SET_UP)
            }
            QuorumVote::Excluded(error) | QuorumVote::Refused(error) => failed(address, error)
                .why("its vote does not count")
                .remedy("see `Quorum` in docs/OPERATIONS.md"),
            QuorumVote::Unreachable(error) => failed(address, error)
                .why("fewer servers may fail")
                .remedy("start it, and check its address"),
        });
    }
    findings
}
