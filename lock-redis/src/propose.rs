//! A lock on one of a quorum's nodes: attempts that propose their tokens.
//!
//! The rules are those of the proposed tokens in `docs/DESIGN.md`. The script carries them out; what its answers mean is
//! said here, and nowhere else.

use crate::connection::{ConnectionLike, Request, Server};
use crate::error_mapping::{self, Asked};
use crate::format::{OwnedFormat, SetAside, remaining, run, token_range, unexpected};
use crate::keys;
use crate::marker::Standing;
use crate::reply::Reply;
use crate::text::Text;
use lock_core::backend::{Answer, Attempt, Failure, Grant, Receipt, Tokens};
use lock_core::{Error, ErrorKind, FencingToken, Moment, TokenPolicy};
use std::sync::Arc;
use std::time::Duration;

/// Under which terms a node votes, and who it is taken to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Voting<'a> {
    pub(crate) max_lease: Duration,
    /// Whether the operator declares that no write is ever lost.
    pub(crate) durable: bool,
    pub(crate) standing: &'a Standing,
}

/// What a node says to a proposal.
#[derive(Debug)]
pub(crate) enum Vote {
    Answer(Answer),
    /// It does not vote for so long.
    Paused(Duration),
    /// It is another server than it was taken for.
    Stranger,
    /// It has no marker.
    Unmarked,
    /// Its marker says something else than the client knows: another quorum, other members, other terms.
    Outdated,
    /// The proposal is so far ahead of its clock, and that is too far.
    Ahead(Duration),
}

/// What a server says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Introduction {
    pub(crate) run_id: String,
    pub(crate) is_master: bool,
    pub(crate) is_cluster: bool,
    /// What it does when its memory is full.
    pub(crate) eviction: String,
    /// Whether a sentinel listens there, as far as we may know.
    pub(crate) has_sentinels: bool,
}

impl Vote {
    /// The answer, where there are no terms that could be broken.
    pub(crate) fn into_answer(self, server: &Server) -> Result<Answer, Failure> {
        match self {
            Self::Answer(answer) => Ok(answer),
            other => Err(Failure::Unknown(server.garbage(&format!("{other:?} without terms")))),
        }
    }
}

impl OwnedFormat {
    /// An attempt whose token is proposed, or without one, on a node that votes under these terms; without terms on one
    /// that is never started again.
    pub(crate) fn propose(
        &self,
        link: &mut dyn ConnectionLike,
        attempt: &Attempt<'_>,
        voting: Option<&Voting<'_>>,
        by: Moment,
    ) -> Result<Vote, Failure> {
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
        let (token, tombstone) = (keys::token(&key), keys::tombstone(&key, &attempt.owner));
        let marker = self.keys.marker();
        let (lease, owner) = (Text::number(attempt.lease.as_millis()), Text::of(attempt.owner));
        let (keep, first_text) = (Text::of(self.keep().as_millis()), Text::number(first));
        let last = Text::number(first + u64::from(reserve));
        let longest = voting.map(|voting| Text::of(voting.max_lease.as_millis()));
        let flag = |is_set| if is_set { &b"1"[..] } else { b"0" };
        let is_to_be_asked = flag(!link.is_verified());
        let epoch = voting.map(|voting| Text::number(voting.standing.epoch));
        let known = |part: fn(&Standing) -> &Arc<str>| {
            voting.map_or(&b""[..], |voting| part(voting.standing).as_bytes())
        };
        let reply = run(
            &self.dialect.scripts.propose,
            link,
            &key,
            &[key.as_bytes(), token.as_bytes(), tombstone.as_bytes(), marker.as_bytes()],
            &[
                lease.as_bytes(),
                owner.as_bytes(),
                mode,
                keep.as_bytes(),
                first_text.as_bytes(),
                last.as_bytes(),
                longest.as_ref().map_or(b"", Text::as_bytes),
                known(|standing| &standing.run_id),
                is_to_be_asked,
                flag(voting.is_some_and(|voting| voting.durable)),
                known(|standing| &standing.quorum),
                epoch.as_ref().map_or(b"", Text::as_bytes),
                known(|standing| &standing.node),
            ],
            by,
        )?;
        let vote = match *numbers(&reply) {
            [1] => Vote::Answer(Answer::Granted(granted(mode != b"0", first, reserve))),
            [0, pttl, told] => Vote::Answer(self.busy(pttl, told == 1)),
            [2, stored] => Vote::Answer(Answer::Stale(FencingToken::new(stored.unsigned_abs()))),
            [3, -1] => return Ok(Vote::Unmarked),
            [3, left] => Vote::Paused(remaining(left).unwrap_or_default()),
            [4] => Vote::Outdated,
            [5] => return Ok(Vote::Stranger),
            [6, ahead] => Vote::Ahead(Duration::from_micros(ahead.unsigned_abs())),
            _ => return Err(unexpected(link, &self.dialect.scripts.propose)),
        };
        // All of these were said by the server that we took it for.
        link.mark_verified();
        Ok(vote)
    }
}

fn granted(has_tokens: bool, first: u64, reserve: u32) -> Grant {
    let tokens = i64::try_from(first).ok().and_then(|first| token_range(first, reserve));
    let tokens = tokens.filter(|_| has_tokens);
    let grant = Grant::new(tokens);
    match tokens {
        Some(tokens) if reserve > 0 => {
            grant.receipt(Receipt::new(SetAside { last: tokens.last() }))
        }
        _ => grant,
    }
}

/// The numbers of a list of them; of anything else, none.
fn numbers(reply: &Reply) -> Box<[i64]> {
    let number = |item: &Reply| if let Reply::Int(number) = item { Some(*number) } else { None };
    let items = reply.as_array().unwrap_or_default();
    items.iter().map(number).collect::<Option<_>>().unwrap_or_default()
}

/// Asks a server who it is.
pub(crate) fn introduction(
    link: &mut dyn ConnectionLike,
    by: Moment,
) -> Result<Introduction, Failure> {
    let reply = link.call(&Request(&[&[b"INFO"]]), by)?;
    if let Reply::Error(error) = &reply {
        return Err(error_mapping::refused(link.server(), error, &Asked::Introduction));
    }
    // Every sentinel listens to this on the masters that it watches. A user who may not ask goes on without knowing.
    let listeners = Request(&[&[b"PUBSUB", b"NUMSUB", b"__sentinel__:hello"]]);
    let told = link.call(&listeners, by)?;
    let count = told.as_array().and_then(|pair| pair.last());
    let has_sentinels = matches!(count, Some(Reply::Int(count)) if *count > 0);
    let text = reply.as_bytes().map(String::from_utf8_lossy).unwrap_or_default();
    let field = |name: &str| {
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::to_owned)
    };
    let Some(run_id) = field("run_id") else {
        link.close();
        return Err(Failure::Unknown(link.server().garbage("not what INFO says")));
    };
    Ok(Introduction {
        run_id,
        is_master: field("role").is_none_or(|role| role == "master"),
        is_cluster: field("redis_mode").is_some_and(|mode| mode == "cluster")
            || field("cluster_enabled").is_some_and(|enabled| enabled == "1"),
        eviction: field("maxmemory_policy").unwrap_or_else(|| "noeviction".to_owned()),
        has_sentinels,
    })
}
