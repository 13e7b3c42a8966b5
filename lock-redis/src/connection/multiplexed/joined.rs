//! Joins requests that are ready at the same time, usually each for another lock, into one request.
//!
//! A script for 16 locks takes the server three fifths of the time of 16 scripts. No request waits
//! to be joined: only requests that are sent in one write are joined. If the server refuses the
//! script, or answers with an error for one lock, the requests concerned are sent again alone,
//! unless they may have been carried out and must not be repeated.

use crate::connection::{Reply, ServerError, encoded_words, write_count, write_word};
use crate::lua::join::Join;
use lock_core::{Error, Moment};
use std::time::Duration;

/// The fewest requests that are joined: with two the server saves little, and joining takes time as
/// well.
pub(super) const MIN_REQUESTS: usize = 3;

/// The most requests that are joined, because the server serves no other client during the script.
pub(super) const MAX_REQUESTS: usize = 16;

/// The time for which nothing is joined after the server has refused a joined script, because the
/// same refusal is likely. Joining ends on this connection if the error is not temporary and the
/// server is not known to have carried out a joined script of this kind, as with keys on different
/// nodes.
const PAUSE: Duration = Duration::from_secs(1);

/// The words of a request from its first key on, each with its length and line ends.
pub(super) type Words<'a> = [&'a [u8]; Join::MAX_WORDS];

/// The position of a join in the format's list of joins, which begins with the join of releases.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct JoinKind(usize);

/// Decides which requests are joined, and by which script.
pub(super) struct Joiner {
    kinds: Vec<Kind>,
    /// The moment before which nothing is joined.
    paused_until: Option<Moment>,
}

/// The outcome of a request that was joined.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    Reply(Reply),
    /// The request is sent again alone, so that the server answers with the error of this request.
    Repeat {
        may_have_run: bool,
    },
    /// The request may have been carried out, so it must not be sent again.
    Unknown(Error),
}

struct Kind {
    join: &'static Join,
    /// The first bytes of every request of this kind.
    beginning: Vec<u8>,
    /// True if the server has carried out the joined script, and so knows its hash.
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

    /// Returns `true` if requests are joined now.
    pub(super) fn is_on(&self, now: Moment) -> bool {
        !self.kinds.is_empty() && self.paused_until.is_none_or(|until| until <= now)
    }

    /// Returns the kind and the words of this request, if it can be joined.
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

    /// Returns `true` if these two requests of a kind can be joined: their common arguments are
    /// equal.
    pub(super) fn can_join(&self, kind: JoinKind, one: &Words<'_>, other: &Words<'_>) -> bool {
        self.kinds[kind.0]
            .join
            .common
            .iter()
            .all(|place| one[*place] == other[*place])
    }

    /// Returns the join of this kind, and the command that runs the joined script: the command's
    /// name, and the script's hash or text. The script is sent by its text until the server knows
    /// it. Otherwise a release could fail because the hash is unknown, and the next attempt would
    /// overtake the repetition of that release.
    pub(super) fn script(&self, kind: JoinKind) -> (&'static Join, [&'static str; 2]) {
        let Kind { join, is_known, .. } = &self.kinds[kind.0];
        let script = match is_known {
            true => ["EVALSHA", join.many.hash()],
            false => ["EVAL", join.many.source],
        };
        (join, script)
    }

    /// Records the reply to a joined request.
    pub(super) fn replied(&mut self, kind: JoinKind, reply: &Reply, now: Moment) {
        let is_error = |reply: &Reply| matches!(reply, Reply::Error(_));
        match reply {
            // An array of only errors, as from a server without free memory, is a refusal: see the
            // last arm.
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
                    // The server is not known to have carried out this script, so the error is
                    // probably not temporary: the user has no right to a key, or the locks are on
                    // different nodes.
                    _ => self.paused_until = Some(Moment::NEVER),
                }
            }
            _ => self.paused_until = Some(now + PAUSE),
        }
    }

    /// Returns the outcome of each of `count` requests whose joined script has this reply.
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
            // Each request gets this reply, and is sent again by the text of its own script.
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

/// Appends the request that replaces all these requests.
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

/// Returns `true` if a script that was answered with this error was not carried out. After any
/// other error, the script may have been carried out: a proxy may have lost its server meanwhile.
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
