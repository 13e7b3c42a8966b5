//! Requests that are ready at the same time, each for a lock of its own, sent as one.
//!
//! A script for eight locks takes the server two thirds of the time of eight scripts. Nothing is
//! waited for: only what leaves in one write anyway is joined. Whatever the server refuses of it is
//! sent again alone. An acquire that the script has granted before it failed is granted again then,
//! with the same token; the script for releases fails for none that it has freed.

use super::pending::PendingRequest;
use crate::connection::{Reply, ServerError, encoded_words, write_count, write_word};
use crate::lua::join::Join;
use lock_core::Moment;
use std::time::Duration;

/// The fewest that are joined: of two the server saves little, and joining takes time as well.
pub(super) const LEAST: usize = 3;

/// The most that are joined: the server serves no other client meanwhile.
pub(super) const MOST: usize = 16;

/// How long nothing is joined after the server has refused it, as a proxy in front of a cluster
/// does each time.
const PAUSE: Duration = Duration::from_secs(1);

/// The words of a request from its first key on, each as it is sent.
pub(super) type Words<'a> = [&'a [u8]; Join::MOST];

/// Finds requests that can be joined, and joins them.
#[derive(Default)]
pub(super) struct Joiner {
    kinds: Vec<Kind>,
    /// Nothing is joined before.
    from: Option<Moment>,
}

struct Kind {
    join: &'static Join,
    /// How every request begins that can be joined by it.
    beginning: Vec<u8>,
    /// Whether the server did not know the script when it was last sent by its hash.
    by_text: bool,
}

/// Requests that were sent as one.
pub(super) struct JoinedRequests {
    pub(super) kind: usize,
    /// Their own bytes, of which each has its part.
    pub(super) bytes: Vec<u8>,
    pub(super) members: Vec<PendingRequest>,
}

impl Joiner {
    pub(super) fn new(joins: &'static [Join]) -> Self {
        let kind = |join: &'static Join| {
            let mut beginning = Vec::new();
            write_count(b'*', 3 + join.count(), &mut beginning);
            for word in ["EVALSHA", join.one.hash(), &join.keys.len().to_string()] {
                write_word(word.as_bytes(), &mut beginning);
            }
            Kind { join, beginning, by_text: false }
        };
        Self { kinds: joins.iter().map(kind).collect(), from: None }
    }

    /// Whether anything is joined now.
    pub(super) fn is_on(&self, now: Moment) -> bool {
        !self.kinds.is_empty() && self.from.is_none_or(|from| from <= now)
    }

    /// By what this request can be joined with others, and its words.
    pub(super) fn look<'a>(&self, request: &'a [u8]) -> Option<(usize, Words<'a>)> {
        self.kinds.iter().enumerate().find_map(|(number, kind)| {
            let mut words = [b"".as_slice(); Join::MOST];
            let mut found = encoded_words(request.strip_prefix(kind.beginning.as_slice())?);
            words.iter_mut().zip(&mut found).for_each(|(word, it)| *word = it);
            Some((number, words))
        })
    }

    /// Whether these two can be joined.
    pub(super) fn fit(&self, kind: usize, one: &Words<'_>, other: &Words<'_>) -> bool {
        self.kinds[kind].join.common.iter().all(|place| one[*place] == other[*place])
    }

    /// Appends the request that stands for all of these.
    pub(super) fn encode(&self, kind: usize, all: &[Words<'_>], into: &mut Vec<u8>) {
        let Kind { join, by_text, .. } = &self.kinds[kind];
        let keys = all.len() * join.keys.len();
        write_count(b'*', 3 + keys + join.common.len() + all.len() * join.each.len(), into);
        let [command, script] = match by_text {
            true => ["EVAL", join.many.source],
            false => ["EVALSHA", join.many.hash()],
        };
        for word in [command, script, &keys.to_string()] {
            write_word(word.as_bytes(), into);
        }
        let of_all = |places: &'static [usize]| {
            places.iter().flat_map(|place| all.iter().map(|words| words[*place]))
        };
        let common = join.common.iter().map(|place| all[0][*place]);
        for word in of_all(join.keys).chain(common).chain(of_all(join.each)) {
            into.extend_from_slice(word);
        }
    }

    /// The server has refused a joined request whole.
    pub(super) fn refused(&mut self, kind: usize, error: &ServerError, now: Moment) {
        if error.code == "NOSCRIPT" {
            self.kinds[kind].by_text = true;
        } else {
            self.from = Some(now + PAUSE);
        }
    }

    /// A joined request was carried out.
    pub(super) fn carried_out(&mut self, kind: usize) {
        self.kinds[kind].by_text = false;
    }
}

impl JoinedRequests {
    /// Whether this can be the reply.
    pub(super) fn expects(&self, reply: &Reply) -> bool {
        match reply {
            Reply::Array(answers) => answers.len() == self.members.len(),
            reply => matches!(reply, Reply::Error(_)),
        }
    }
}
