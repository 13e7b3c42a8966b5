//! Votes of a quorum node: attempts that propose their tokens.
//!
//! The rules are in `docs/DESIGN.md`, section Quorum. The script applies them.

use crate::connection::error_mapping::{self, Asked};
use crate::connection::{ConnectionLike, Reply, Request, Server, Text, info_field};
use crate::format::{OwnedFormat, granted, remaining, run, token_range, unexpected};
use crate::keys;
use crate::node::quorum::NodeView;
use lock_core::backend::{Answer, Attempt, Failure, Tokens};
use lock_core::{Error, ErrorKind, FencingToken, Moment, TokenPolicy};
use std::sync::Arc;
use std::time::Duration;

/// The terms of a vote, and the node that is expected to give it.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_structs, reason = "made by the crate of the same workspace")]
pub struct VoteTerms<'a> {
    /// The longest lease.
    pub max_lease: Duration,
    /// Whether the operator declares that no write is lost.
    pub durable: bool,
    /// The expected node.
    pub view: &'a NodeView,
}

/// The reply to a proposal.
#[derive(Debug)]
#[allow(clippy::exhaustive_enums, reason = "made by the crate of the same workspace")]
pub enum ProposalReply {
    /// The vote.
    Answer(Answer),
    /// The node does not vote for this time.
    Paused(Duration),
    /// Another server than expected.
    Stranger,
    /// A server without a marker.
    Unmarked,
    /// The marker names another quorum, other members or other terms.
    Outdated,
    /// The proposal is too far ahead of the clock of the node: by this time.
    Ahead(Duration),
}

/// The role and the settings of a server.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(clippy::exhaustive_structs, reason = "made by the crate of the same workspace")]
pub struct ServerInfo {
    /// Its `run_id`.
    pub run_id: String,
    /// Whether it is a master.
    pub is_master: bool,
    /// Whether it is a node of a cluster.
    pub is_cluster: bool,
    /// Its `maxmemory-policy`.
    pub eviction: String,
    /// Whether a sentinel listens there, if the user may ask.
    pub has_sentinels: bool,
}

impl ProposalReply {
    /// The answer to a proposal without terms.
    pub(crate) fn into_answer(self, server: &Server) -> Result<Answer, Failure> {
        match self {
            Self::Answer(answer) => Ok(answer),
            other => Err(Failure::Unknown(server.garbage(&format!("{other:?} without terms")))),
        }
    }
}

impl OwnedFormat {
    /// Proposes a token, or none, to a node that votes under these terms; without terms to a server
    /// that loses no data.
    pub(crate) fn propose(
        &self,
        link: &mut dyn ConnectionLike,
        attempt: &Attempt<'_>,
        terms: Option<&VoteTerms<'_>>,
        is_tracked: &dyn Fn(&str) -> bool,
        by: Moment,
    ) -> Result<ProposalReply, Failure> {
        let (mode, first, reserve) = match (self.policy, attempt.tokens) {
            (TokenPolicy::Off, _) | (_, Tokens::None) => (b"0", 0, 0),
            (TokenPolicy::Keep, Tokens::Propose { first, reserve }) => (b"2", first.get(), reserve),
            (_, Tokens::Propose { first, reserve }) => (b"1", first.get(), reserve),
            (_, tokens) => {
                return Err(Failure::NotSent(Error::new(
                    ErrorKind::Unsupported,
                    format!("a node of a quorum cannot make {tokens:?}: they are proposed to it"),
                )));
            }
        };
        let key = self.keys.lock(attempt.name);
        let (lease, owner) = (Text::number(attempt.lease.as_millis()), Text::owner(attempt.owner));
        let (token, tombstone) = (keys::token_counter(&key), keys::tombstone(&key, &owner));
        let marker = self.keys.marker();
        let (keep, first_text) = (Text::millis(self.keep()), Text::number(first));
        let last = Text::number(first + u64::from(reserve));
        let longest = terms.map(|terms| Text::millis(terms.max_lease));
        let flag = |is_set| if is_set { &b"1"[..] } else { b"0" };
        let is_to_be_asked = flag(!link.is_verified());
        let epoch = terms.map(|terms| Text::number(terms.view.epoch));
        let known = |part: fn(&NodeView) -> &Arc<str>| {
            terms.map_or(&b""[..], |terms| part(terms.view).as_bytes())
        };
        let reply = run(
            &self.dialect.scripts.propose,
            link,
            &[key.as_bytes(), token.as_bytes(), tombstone.as_bytes(), marker.as_bytes()],
            &[
                lease.as_bytes(),
                owner.as_bytes(),
                mode,
                keep.as_bytes(),
                first_text.as_bytes(),
                last.as_bytes(),
                longest.as_ref().map_or(b"", Text::as_bytes),
                known(|view| &view.run_id),
                is_to_be_asked,
                flag(terms.is_some_and(|terms| terms.durable)),
                known(|view| &view.quorum),
                epoch.as_ref().map_or(b"", Text::as_bytes),
                known(|view| &view.node),
            ],
            by,
        )?;
        let vote = match *numbers(&reply) {
            [1] => {
                let first = i64::try_from(first).ok().filter(|_| mode != b"0");
                let tokens = first.and_then(|first| token_range(first, reserve));
                ProposalReply::Answer(Answer::Granted(granted(tokens, reserve)))
            }
            [0, pttl, told] => ProposalReply::Answer(self.busy(pttl, told == 1, is_tracked(&key))),
            [2, stored] => {
                ProposalReply::Answer(Answer::Stale(FencingToken::new(stored.unsigned_abs())))
            }
            [3, -1] => return Ok(ProposalReply::Unmarked),
            [3, left] => ProposalReply::Paused(remaining(left).unwrap_or_default()),
            [4] => ProposalReply::Outdated,
            [5] => return Ok(ProposalReply::Stranger),
            [6, ahead] => ProposalReply::Ahead(Duration::from_micros(ahead.unsigned_abs())),
            _ => return Err(unexpected(link, &self.dialect.scripts.propose)),
        };
        // All of these are replies of the expected server.
        link.mark_verified();
        Ok(vote)
    }
}

/// The numbers of a list of numbers; none of any other reply.
fn numbers(reply: &Reply) -> Box<[i64]> {
    let number = |item: &Reply| if let Reply::Int(number) = item { Some(*number) } else { None };
    let items = reply.as_array().unwrap_or_default();
    items.iter().map(number).collect::<Option<_>>().unwrap_or_default()
}

/// Asks a server for its role and settings.
pub(crate) fn server_info(
    link: &mut dyn ConnectionLike,
    by: Moment,
) -> Result<ServerInfo, Failure> {
    let reply = link.call(&Request(&[&[b"INFO"]]), by)?;
    if let Reply::Error(error) = &reply {
        return Err(error_mapping::refused(link.server(), error, &Asked::Introduction));
    }
    // Every sentinel listens to this on the masters that it watches. Without the right to ask, the
    // client continues.
    let listeners = Request(&[&[b"PUBSUB", b"NUMSUB", b"__sentinel__:hello"]]);
    let told = link.call(&listeners, by)?;
    let count = told.as_array().and_then(|pair| pair.last());
    let has_sentinels = matches!(count, Some(Reply::Int(count)) if *count > 0);
    let text = reply.as_bytes().map(String::from_utf8_lossy).unwrap_or_default();
    let field = |name| info_field(&text, name).map(str::to_owned);
    let Some(run_id) = field("run_id") else {
        link.close();
        return Err(Failure::Unknown(link.server().garbage("not what INFO says")));
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
