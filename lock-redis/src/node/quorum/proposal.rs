//! Votes of a quorum node: replies to attempts that propose their tokens.
//!
//! The rules are in `docs/DESIGN.md`, section Quorum. The script applies them.

use crate::connection::error_mapping::{self, Asked};
use crate::connection::{Batch, ConnectionLike, Reply, Request, Server, Text, info_field};
use crate::keys;
use crate::node::quorum::NodeView;
use crate::protocol::{Exchange, OwnedFormat, Received, busy_from_pttl, remaining};
use crate::receipt::{granted, token_range};
use lock_core::backend::{Answer, Attempt, Failure, Proposal, ProposalAnswer};
use lock_core::{FencingToken, Moment, TokenPolicy};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

/// The settings of the quorum under which a vote is requested, and the node that is expected to
/// vote.
#[derive(Clone, Copy, Debug)]
#[allow(
    clippy::exhaustive_structs,
    reason = "made by the crate of the same workspace"
)]
pub struct VoteTerms<'a> {
    /// The longest lease.
    pub max_lease: Duration,
    /// True if the operator declares that no write is lost.
    pub durable: bool,
    /// The expected node.
    pub view: &'a NodeView,
}

/// The reply to a proposal.
#[derive(Clone, Debug)]
#[allow(
    clippy::exhaustive_enums,
    reason = "made by the crate of the same workspace"
)]
pub enum ProposalReply {
    /// The vote.
    Answer(ProposalAnswer),
    /// The node does not vote until this much time has passed.
    Paused(Duration),
    /// The server is not the expected one.
    Stranger,
    /// The server has no marker, or its data may be those of another server.
    Unmarked,
    /// The marker names another quorum, epoch or node than the client expects, or other settings.
    Outdated,
    /// The proposed token is ahead of the clock of the node by this time, which is too far.
    Ahead(Duration),
}

/// The role and the settings of a server.
#[derive(Debug)]
pub(crate) struct ServerInfo {
    pub(super) run_id: String,
    is_master: bool,
    /// True if the server is a node of a cluster.
    is_cluster: bool,
    /// The server's `maxmemory-policy`.
    eviction: String,
    /// True if a sentinel watches the server; false if the user may not check that.
    has_sentinels: bool,
}

impl ServerInfo {
    /// Returns the reason for which the server cannot be a node of a quorum; `None` if it can.
    pub(super) fn why_no_voter(&self) -> Option<&'static str> {
        if self.is_cluster {
            Some(
                "is a node of a Redis Cluster: its replica may take its place without the last \
                 writes, and a quorum is of servers without failover",
            )
        } else if !self.is_master {
            Some("is a replica, and a quorum is of masters that know nothing of each other")
        } else if self.has_sentinels {
            Some(
                "is watched by a Sentinel, which may put a replica in its place that lacks the \
                 last writes: a quorum is of servers without failover; use `redis+sentinel://`, \
                 or have it watched no more (`SENTINEL REMOVE`)",
            )
        } else if self.eviction != "noeviction" {
            Some(
                "may throw keys away when its memory is full, locks among them: set \
                 `maxmemory-policy noeviction`",
            )
        } else {
            None
        }
    }
}

impl ProposalReply {
    /// Returns whether the expected server replied, and has a marker.
    pub(super) fn is_of_expected_server(&self) -> bool {
        !matches!(self, Self::Unmarked | Self::Stranger)
    }

    /// Returns the answer to a proposal without terms.
    fn into_answer(self, server: &Server) -> Result<ProposalAnswer, Failure> {
        match self {
            Self::Answer(answer) => Ok(answer),
            other => Err(Failure::Unknown(
                server.garbage(&format!("{other:?} without terms")),
            )),
        }
    }
}

impl OwnedFormat {
    /// Proposes a token, or none, to a node that votes under these terms. `is_verified` is true if
    /// the server has already proved its identity on this connection.
    pub(crate) fn propose<'a>(
        &'a self,
        attempt: &'a Attempt<'a>,
        proposal: Option<Proposal>,
        terms: Option<&VoteTerms<'a>>,
        is_tracked: &'a dyn Fn(&str, bool) -> bool,
        is_verified: bool,
    ) -> Result<Exchange<'a, ProposalReply>, Failure> {
        self.propose_once(
            attempt,
            proposal,
            terms,
            is_tracked,
            is_verified,
            |_, reply| Ok(reply),
        )
    }

    /// Proposes a token to a server that loses no data.
    pub(crate) fn propose_without_terms<'a>(
        &'a self,
        attempt: &'a Attempt<'a>,
        proposal: Proposal,
        is_tracked: &'a dyn Fn(&str, bool) -> bool,
    ) -> Result<Exchange<'a, ProposalAnswer>, Failure> {
        let read = |server: &Server, reply: ProposalReply| reply.into_answer(server);
        self.propose_once(attempt, Some(proposal), None, is_tracked, false, read)
    }

    fn propose_once<'a, T: 'a>(
        &'a self,
        attempt: &'a Attempt<'a>,
        proposal: Option<Proposal>,
        terms: Option<&VoteTerms<'a>>,
        is_tracked: &'a dyn Fn(&str, bool) -> bool,
        is_verified: bool,
        read: impl FnOnce(&Server, ProposalReply) -> Result<T, Failure> + 'a,
    ) -> Result<Exchange<'a, T>, Failure> {
        let proposal = ProposalRequest::new(self, attempt, proposal, terms);
        let (keys, arguments) = (proposal.keys(), proposal.arguments(is_verified));
        let batch = Batch::script(&self.dialect.scripts.propose, &keys, &arguments);
        Ok(Exchange::call(batch, move |received| {
            let reply = received.take_reply();
            let vote = self.vote(received, &proposal, &reply, is_tracked)?;
            read(received.server(), vote)
        }))
    }

    /// Sends several proposals in one write. Returns an answer for each, in the same order.
    pub(crate) fn propose_all<'a>(
        &'a self,
        attempts: &'a [(Attempt<'a>, Option<Proposal>)],
        terms: &VoteTerms<'a>,
        is_verified: bool,
    ) -> Result<Exchange<'a, Vec<Result<ProposalReply, Failure>>>, Failure> {
        let script = &self.dialect.scripts.propose;
        let proposals = attempts
            .iter()
            .map(|(attempt, proposal)| ProposalRequest::new(self, attempt, *proposal, Some(terms)));
        let proposals: Vec<_> = proposals.collect();
        let mut batch = Batch::new();
        for proposal in &proposals {
            batch.add_script(script, &proposal.keys(), &proposal.arguments(is_verified));
        }
        Ok(Exchange::call(batch, move |received| {
            let replies = received.take_replies();
            let mut votes: Vec<_> = replies
                .iter()
                .zip(&proposals)
                .enumerate()
                .map(|(place, (reply, proposal))| match reply {
                    Reply::Error(error) => Err(received.refused_at(place, error)),
                    reply => self.vote(received, proposal, reply, &|_, _| false),
                })
                .collect();
            if let Err(error) = received.take_outcome() {
                votes.resize(attempts.len(), Err(Failure::from(error)));
            }
            Ok(votes)
        }))
    }

    /// Reads the script's reply to a proposal.
    fn vote(
        &self,
        received: &mut Received<'_>,
        proposal: &ProposalRequest<'_>,
        reply: &Reply,
        is_tracked: &dyn Fn(&str, bool) -> bool,
    ) -> Result<ProposalReply, Failure> {
        Ok(match *numbers(reply) {
            [1] => {
                let ProposalRequest { first, reserve, .. } = *proposal;
                let first = i64::try_from(first).ok().filter(|_| proposal.mode != b"0");
                let tokens = first.and_then(|first| token_range(first, reserve));
                ProposalReply::Answer(ProposalAnswer::Answer(Answer::Granted(granted(
                    tokens, reserve,
                ))))
            }
            [0, pttl, told] => {
                let busy = match proposal.waits {
                    true => self.busy(pttl, told == 1, is_tracked(&proposal.key, true)),
                    false => busy_from_pttl(pttl),
                };
                ProposalReply::Answer(ProposalAnswer::Answer(busy))
            }
            [2, stored] => {
                let stored = FencingToken::new(stored.unsigned_abs());
                ProposalReply::Answer(ProposalAnswer::Stale(stored))
            }
            [3, -1] => ProposalReply::Unmarked,
            [3, left] => ProposalReply::Paused(remaining(left).unwrap_or_default()),
            [4] => ProposalReply::Outdated,
            [5] => ProposalReply::Stranger,
            [6, ahead] => ProposalReply::Ahead(Duration::from_micros(ahead.unsigned_abs())),
            _ => return Err(received.unexpected(&self.dialect.scripts.propose)),
        })
    }
}

/// The request of a proposal.
struct ProposalRequest<'a> {
    key: Cow<'a, str>,
    counter: String,
    tombstone: String,
    marker: String,
    lease: Text,
    owner: Text,
    /// The use of the token counter, as the script encodes it.
    mode: &'static [u8],
    first: u64,
    reserve: u32,
    /// The time for which the counter is stored, and the first and the last token, as text.
    numbers: [Text; 3],
    /// True if a majority has already granted the proposal.
    is_granted: bool,
    /// False for a caller that makes no further attempt.
    waits: bool,
    terms: Option<SentTerms<'a>>,
}

/// The terms of a vote, as text.
struct SentTerms<'a> {
    longest: Text,
    epoch: Text,
    durable: bool,
    view: &'a NodeView,
}

impl<'a> ProposalRequest<'a> {
    fn new(
        format: &'a OwnedFormat,
        attempt: &Attempt<'a>,
        proposal: Option<Proposal>,
        terms: Option<&VoteTerms<'a>>,
    ) -> Self {
        let mode: &[u8] = match format.policy {
            _ if proposal.is_none() => b"0",
            TokenPolicy::Off => b"0",
            TokenPolicy::Keep => b"2",
            _ => b"1",
        };
        let is_granted = proposal.is_some_and(|it| it.is_granted);
        let numbers = proposal.map_or((0, 0), |it| (it.first.get(), it.reserve));
        let (first, reserve) = if mode == b"0" { (0, 0) } else { numbers };
        let key = format.keys.lock(attempt.name);
        let owner = Text::owner(attempt.owner);
        let sent = |terms: &VoteTerms<'a>| SentTerms {
            longest: Text::millis(terms.max_lease),
            epoch: Text::number(terms.view.epoch),
            durable: terms.durable,
            view: terms.view,
        };
        Self {
            counter: keys::token_counter(&key),
            tombstone: keys::tombstone(&key, &owner),
            marker: format.keys.marker(),
            key,
            lease: Text::number(attempt.lease.as_millis()),
            owner,
            mode,
            first,
            reserve,
            numbers: [
                Text::millis(format.keep()),
                Text::number(first),
                Text::number(first + u64::from(reserve)),
            ],
            is_granted,
            waits: attempt.waits,
            terms: terms.map(sent),
        }
    }

    fn keys(&self) -> [&[u8]; 4] {
        [&*self.key, &self.counter, &self.tombstone, &self.marker].map(str::as_bytes)
    }

    /// Returns the arguments. Unless the server has proved its identity on this connection, the
    /// script checks its `run_id`.
    fn arguments(&self, is_verified: bool) -> [&[u8]; 14] {
        let flag = |is_set| if is_set { &b"1"[..] } else { b"0" };
        let [keep, first, last] = self.numbers.each_ref().map(Text::as_bytes);
        let terms = self.terms.as_ref();
        let known = |part: fn(&NodeView) -> &Arc<str>| {
            terms.map_or(&b""[..], |it| part(it.view).as_bytes())
        };
        [
            self.lease.as_bytes(),
            self.owner.as_bytes(),
            self.mode,
            keep,
            first,
            last,
            terms.map_or(b"", |it| it.longest.as_bytes()),
            known(|view| &view.run_id),
            flag(!is_verified),
            flag(terms.is_some_and(|it| it.durable)),
            known(|view| &view.quorum),
            terms.map_or(b"", |it| it.epoch.as_bytes()),
            known(|view| &view.node),
            flag(self.is_granted),
        ]
    }
}

/// Returns the numbers of a list of numbers; none for any other reply.
fn numbers(reply: &Reply) -> Box<[i64]> {
    let number = |item: &Reply| {
        if let Reply::Int(number) = item {
            Some(*number)
        } else {
            None
        }
    };
    let items = reply.as_array().unwrap_or_default();
    items
        .iter()
        .map(number)
        .collect::<Option<_>>()
        .unwrap_or_default()
}

/// Queries the role and the settings of a server.
pub(crate) fn server_info(
    link: &mut dyn ConnectionLike,
    by: Moment,
) -> Result<ServerInfo, Failure> {
    let reply = link.call(&Request(&[&[b"INFO"]]), by)?;
    if let Reply::Error(error) = &reply {
        return Err(error_mapping::refused(
            link.server(),
            error,
            &Asked::Introduction,
        ));
    }
    // Every sentinel subscribes to this channel on the masters that it watches. If the user may not
    // query the subscribers, the server counts as one without sentinels.
    let listeners = Request(&[&[b"PUBSUB", b"NUMSUB", b"__sentinel__:hello"]]);
    let told = link.call(&listeners, by)?;
    let count = told.as_array().and_then(|pair| pair.last());
    let has_sentinels = matches!(count, Some(Reply::Int(count)) if *count > 0);
    let text = reply
        .as_bytes()
        .map(String::from_utf8_lossy)
        .unwrap_or_default();
    let field = |name| info_field(&text, name).map(str::to_owned);
    let Some(run_id) = field("run_id") else {
        link.close();
        return Err(Failure::Unknown(
            link.server().garbage("not what INFO says"),
        ));
    };
    Ok(ServerInfo {
        run_id,
        is_master: field("role").is_none_or(|role| role == "master"),
        is_cluster: field("redis_mode").is_some_and(|mode| mode == "cluster")
            || field("cluster_enabled").is_some_and(|enabled| enabled == "1"),
        eviction: field("maxmemory_policy").unwrap_or_else(|| "noeviction".to_owned()),
        has_sentinels,
    })
}
