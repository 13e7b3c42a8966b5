//! [`OneStore`]: the check that all keys that a connection reaches are on one server.
//!
//! A proxy may send each script to the server of its first key, and `INFO` to any of its servers. A
//! script for several locks would then look for most of them on the wrong server, and grant a lock
//! to a second owner. So a new connection begins with scripts, each for a pair of random keys,
//! unless `joined=off` is set or the server belongs to a cluster's slot map. A script returns the
//! ID of the server on which it ran.

use super::Reply;
use crate::lua::WHICH;
use lock_core::{Config, Error};
use std::sync::OnceLock;

/// The option: `auto`, the default, or `off`.
pub(crate) const OPTION: &str = "joined";

/// The number of scripts that a connection begins with. They fail to find the second of two servers
/// once in 2^32 if both have equal shares of the keys, and once in 29 if the second server has a
/// tenth of the keys.
pub(crate) const PROBES: usize = 32;

/// The condition for putting several locks into one script.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum OneStore {
    Proven,
    #[default]
    Off,
}

impl OneStore {
    pub(crate) fn of(config: &Config) -> Result<Self, Error> {
        config.scheme_word(OPTION, &[("auto", Self::Proven), ("off", Self::Off)])
    }

    /// Returns the scripts that a new connection begins with.
    pub(super) fn probes(self) -> Vec<Probe> {
        let count = if self == Self::Proven { PROBES } else { 0 };
        // Every client has the right to such keys, whatever the names of its locks.
        let key = || format!("distlock_closed:{{{:016x}}}:probe", fastrand::u64(..));
        let keys: Vec<_> = (0..=count).map(|_| key()).collect();
        keys.windows(2)
            .enumerate()
            .map(|(at, pair)| Probe::new(at == 0, pair))
            .collect()
    }

    /// Returns `true` if these replies to the probes prove that all keys are on one server.
    /// `run_id` is that of the connection's server, if the server has reported it.
    pub(super) fn is_proven(self, replies: &[Reply], run_id: Option<&str>) -> bool {
        let expected = run_id
            .map(str::as_bytes)
            .or_else(|| replies.first()?.as_bytes());
        let is_it = |reply: &Reply| expected.is_some() && reply.as_bytes() == expected;
        self == Self::Proven && replies.len() == PROBES && replies.iter().all(is_it)
    }
}

/// One of the scripts that a connection begins with.
pub(super) struct Probe {
    command: [&'static [u8]; 3],
    keys: [String; 2],
}

impl Probe {
    /// Creates a probe. The first probe sends the script's text, and the others send its hash: a
    /// server that does not know the script refuses them.
    fn new(brings_text: bool, keys: &[String]) -> Self {
        static HASH: OnceLock<String> = OnceLock::new();
        let hash = HASH.get_or_init(|| redis::Script::new(WHICH).get_hash().to_owned());
        let command: [&[u8]; 3] = match brings_text {
            true => [b"EVAL", WHICH.as_bytes(), b"2"],
            false => [b"EVALSHA", hash.as_bytes(), b"2"],
        };
        Self {
            command,
            keys: [keys[0].clone(), keys[1].clone()],
        }
    }

    pub(super) fn words(&self) -> Vec<&[u8]> {
        let keys = self.keys.iter().map(String::as_bytes);
        self.command.into_iter().chain(keys).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys;

    fn reply(run_id: &str) -> Reply {
        Reply::Bulk(run_id.as_bytes().to_vec())
    }

    #[test]
    fn only_equal_replies_to_all_probes_prove_it() {
        let all = |count| vec![reply("a"); count];
        let is_proven = |replies: &[Reply], run_id| OneStore::Proven.is_proven(replies, run_id);
        assert!(is_proven(&all(PROBES), Some("a")) && is_proven(&all(PROBES), None));
        assert!(!is_proven(&all(PROBES), Some("b")));
        assert!(!is_proven(&all(PROBES - 1), Some("a")) && !is_proven(&[], None));
        for wrong in [reply("b"), Reply::Nil, Reply::Int(1)] {
            for place in [0, 1, PROBES - 1] {
                let mut replies = all(PROBES);
                replies[place] = wrong.clone();
                assert!(!is_proven(&replies, Some("a")), "{place}");
                assert!(!is_proven(&replies, None), "{place}");
            }
        }
        assert!(!OneStore::Off.is_proven(&all(PROBES), Some("a")));
    }

    #[test]
    fn probes_have_keys_of_different_slots() {
        assert_eq!(OneStore::Off.probes().len(), 0);
        let probes = OneStore::Proven.probes();
        assert_eq!(probes.len(), PROBES);
        let slots: Vec<_> = probes
            .iter()
            .map(|probe| keys::slot(&probe.keys[0]))
            .collect();
        let apart = probes
            .iter()
            .filter(|it| keys::slot(&it.keys[0]) != keys::slot(&it.keys[1]));
        assert!(apart.count() > PROBES / 2, "{slots:?}");
        let others = OneStore::Proven.probes();
        assert_ne!(
            others[0].keys, probes[0].keys,
            "each connection has keys of its own"
        );
    }
}
