//! Requests that are ready at the same time, usually each for another lock, sent as one.
//!
//! A script for 16 locks takes the server three fifths of the time of 16 scripts. No request waits
//! to be joined: only what leaves in one write anyway is. What was not carried out, because the
//! server refused the script or answered for one lock with an error, is sent again alone.

use crate::connection::{Reply, ServerError, encoded_words, write_count, write_word};
use crate::lua::join::Join;
use lock_core::{Error, Moment};
use std::time::Duration;

/// The fewest that are joined: of two the server saves little, and joining takes time as well.
pub(super) const MIN_REQUESTS: usize = 3;

/// The most that are joined: the server serves no other client meanwhile.
pub(super) const MAX_REQUESTS: usize = 16;

/// The time for which nothing is joined after the server has refused a joined script, because the
/// same refusal is likely. It lasts until the connection ends if no joined script was carried out
/// on it yet, as where keys are on different nodes.
const PAUSE: Duration = Duration::from_secs(1);

/// The words of a request from its first key on, each as it is sent.
pub(super) type Words<'a> = [&'a [u8]; Join::MAX_WORDS];

/// A place in the list of a format's joins: releases come first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct JoinKind(usize);

/// Finds requests that can be joined, and says how.
pub(super) struct Joiner {
    kinds: Vec<Kind>,
    /// Nothing is joined before this moment.
    paused_until: Option<Moment>,
}

/// What becomes of a request that was joined.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    Reply(Reply),
    /// It is sent again alone, so that the server says of itself why not.
    Repeat {
        may_have_run: bool,
    },
    /// It may have been carried out, and then must not be sent again.
    Unknown(Error),
}

struct Kind {
    join: &'static Join,
    /// How every request begins that can be joined by it.
    beginning: Vec<u8>,
    /// Whether the server has carried it out, so that it knows the script by its hash.
    is_known: bool,
}

impl Joiner {
    pub(super) fn new(joins: &'static [Join]) -> Self {
        let kind = |join: &'static Join| {
            let mut beginning = Vec::new();
            write_count(b'*', 3 + join.word_count(), &mut beginning);
            for word in ["EVALSHA", join.one.hash(), &join.keys.len().to_string()] {
                write_word(word.as_bytes(), &mut beginning);
            }
            Kind {
                join,
                beginning,
                is_known: false,
            }
        };
        Self {
            kinds: joins.iter().map(kind).collect(),
            paused_until: None,
        }
    }

    /// Whether anything is joined now.
    pub(super) fn is_on(&self, now: Moment) -> bool {
        !self.kinds.is_empty() && self.paused_until.is_none_or(|until| until <= now)
    }

    /// With which others this request can be joined, and its words.
    pub(super) fn parse<'a>(&self, request: &'a [u8]) -> Option<(JoinKind, Words<'a>)> {
        self.kinds.iter().enumerate().find_map(|(place, kind)| {
            let mut words = [b"".as_slice(); Join::MAX_WORDS];
            let found = encoded_words(request.strip_prefix(kind.beginning.as_slice())?);
            words
                .iter_mut()
                .zip(found)
                .for_each(|(word, it)| *word = it);
            Some((JoinKind(place), words))
        })
    }

    /// Whether these two of a kind can be joined.
    pub(super) fn can_join(&self, kind: JoinKind, one: &Words<'_>, other: &Words<'_>) -> bool {
        self.kinds[kind.0]
            .join
            .common
            .iter()
            .all(|place| one[*place] == other[*place])
    }

    /// How they are joined, and the command and its script. That is sent by its text until the
    /// server knows it: a release that comes back because its hash is unknown would be overtaken by
    /// the next attempt.
    pub(super) fn script(&self, kind: JoinKind) -> (&'static Join, [&'static str; 2]) {
        let Kind { join, is_known, .. } = &self.kinds[kind.0];
        let script = match is_known {
            true => ["EVALSHA", join.many.hash()],
            false => ["EVAL", join.many.source],
        };
        (join, script)
    }

    /// A joined request has this reply.
    pub(super) fn replied(&mut self, kind: JoinKind, reply: &Reply, now: Moment) {
        let is_error = |reply: &Reply| matches!(reply, Reply::Error(_));
        match reply {
            // Errors only, as from a full server, are a refusal: see the last arm.
            Reply::Array(answers) if !answers.iter().all(is_error) => {
                self.kinds[kind.0].is_known = true;
            }
            Reply::Error(error) => {
                let is_known = &mut self.kinds[kind.0].is_known;
                match error.code.as_str() {
                    "NOSCRIPT" => *is_known = false,
                    "LOADING" | "BUSY" | "READONLY" | "MASTERDOWN" => {
                        self.paused_until = Some(now + PAUSE);
                    }
                    _ if *is_known => self.paused_until = Some(now + PAUSE),
                    // It was never carried out here, so that this is no passing state: a key that
                    // the user may not use, locks on different nodes behind a proxy.
                    _ => self.paused_until = Some(Moment::NEVER),
                }
            }
            _ => self.paused_until = Some(now + PAUSE),
        }
    }

    /// What becomes of each of `count` requests whose joined script has this reply.
    pub(super) fn outcomes(&self, kind: JoinKind, reply: Reply, count: usize) -> Vec<Outcome> {
        let of_one = |answer| match answer {
            Reply::Error(_) => Outcome::Repeat {
                may_have_run: false,
            },
            answer => Outcome::Reply(answer),
        };
        match reply {
            Reply::Array(answers) => answers.into_iter().map(of_one).collect(),
            reply => vec![self.after_failure(kind, reply); count],
        }
    }

    fn after_failure(&self, kind: JoinKind, reply: Reply) -> Outcome {
        match reply {
            // Each is sent by its own text then, in the place that it had.
            reply if reply.is_noscript() => Outcome::Reply(reply),
            Reply::Error(error) if did_not_run(&error) => Outcome::Repeat {
                may_have_run: false,
            },
            Reply::Error(_) if self.kinds[kind.0].join.is_repeatable => {
                Outcome::Repeat { may_have_run: true }
            }
            Reply::Error(error) => {
                let message = "a script for several locks failed, and may have been carried out";
                Outcome::Unknown(Error::unavailable(message).with_source(error))
            }
            reply => Outcome::Reply(reply),
        }
    }
}

/// Appends the request that stands for all of these.
pub(super) fn encode(
    (join, [command, script]): (&Join, [&str; 2]),
    all: &[Words<'_>],
    into: &mut Vec<u8>,
) {
    let keys = all.len() * join.keys.len();
    write_count(
        b'*',
        3 + keys + join.common.len() + all.len() * join.each.len(),
        into,
    );
    for word in [command, script, &keys.to_string()] {
        write_word(word.as_bytes(), into);
    }
    let of_all = |places: &'static [usize]| {
        places
            .iter()
            .flat_map(|place| all.iter().map(|it| it[*place]))
    };
    let common = join.common.iter().map(|place| all[0][*place]);
    for word in of_all(join.keys).chain(common).chain(of_all(join.each)) {
        into.extend_from_slice(word);
    }
}

/// Whether nothing of a script was carried out that was answered with this error. By any other one
/// it may have been: it can be of a proxy that lost its server meanwhile.
fn did_not_run(error: &ServerError) -> bool {
    matches!(
        error.code.as_str(),
        "CROSSSLOT"
            | "MOVED"
            | "ASK"
            | "TRYAGAIN"
            | "CLUSTERDOWN"
            | "NOPERM"
            | "NOAUTH"
            | "READONLY"
            | "LOADING"
            | "BUSY"
            | "MASTERDOWN"
    )
}
