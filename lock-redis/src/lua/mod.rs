//! [`Script`]: a Lua script, which the server runs atomically and knows by the hash of its text.
//!
//! Scripts are assembled here, and run by [`protocol`](crate::protocol). A format with owners is a
//! folder of files. Each file defines a Lua function that the scripts call (`call` is `redis.call`
//! or `redis.pcall`; with the latter, a function may return an error):
//!
//! - `look(call, key, owner)`: 1 if this owner holds the lock, else 0
//! - `gone(call, key, owner)`: 0; called after a `look` that returned 0. `look` or `gone` must run
//!   a write command, which a replica refuses: otherwise a former master, now a replica, could
//!   answer that a lock is gone
//! - `take(key, owner, lease)`: grants the free lock, and returns nothing; or returns the error,
//!   and the lock is still free
//! - `holder(key, takes_many)`: owner and hold count, for `inspect` and `force`; an empty table if
//!   the lock is free; an error for data that is no lock of this format
//! - `tells(key)`: 1 if the holder publishes its release, else 0
//! - `drop(call, key, owner)`: frees the lock and returns 1 if this owner held it; else 0, after a
//!   command that a replica refuses
//!
//! Every command is written as `call('NAME', ..`, so that [`Script::commands`] finds it. A file of
//! `endings` has the last step of a script that has freed a lock, or that has found a lock busy.
//! `acquire.lua` acquires a lock if the keys of the lock, its queue and its tombstone do not exist;
//! otherwise `attempt.lua` tries to acquire it. Both call `grant.lua`, which grants the lock, with
//! fencing tokens if the arguments request them.
//!
//! A file must follow the files whose functions it calls. For example, `grant.lua` and `queue.lua`
//! follow `timestamp.lua`, which reads the server's clock; `enter.lua` and `give_up.lua` follow
//! `leave.lua`; and `give_up.lua` also follows `let_next_in.lua`.
//!
//! [`join`] describes the scripts that have a counterpart for several locks.

pub(crate) mod foreign_client;
pub(crate) mod join;
mod script_set;

pub(crate) use script_set::ScriptSet;

use foreign_client::ForeignClient;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// A Lua script. The head of its text describes its arguments and its reply, and why it must be
/// atomic.
#[derive(Debug)]
pub(crate) struct Script {
    /// The script's name in this library.
    pub(crate) name: &'static str,
    /// The script's text.
    pub(crate) source: &'static str,
    /// The prefix, before the lock's key, of the channels on which the script publishes releases,
    /// or a glob for this prefix; empty if the script publishes none.
    pub(crate) channel: &'static str,
    /// The library whose waiters the script wakes when it frees a lock, as it wakes our own
    /// waiters.
    pub(crate) wakes: Option<ForeignClient>,
    /// Returns the companion keys that a lock of this kind has in addition to those of a mutex.
    pub(crate) names_beside: fn(key: &str) -> Vec<String>,
    hash: OnceLock<String>,
    /// The number of the script in a [`ScriptSet`].
    number: OnceLock<u32>,
}

/// The scripts of a format with owners, each preceded by the Lua functions of its
/// [dialect](crate::protocol::Dialect).
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) acquire: Script,
    pub(crate) release: Script,
    pub(crate) close: Script,
    pub(crate) renew: Script,
    pub(crate) inspect: Script,
    pub(crate) force: Script,
    pub(crate) propose: Script,
}

/// Assembles the scripts of a format. Each script follows the functions of the format that it uses,
/// and a script that frees a lock or finds it busy is followed by an ending. `wakes` names the
/// library whose waiters the ending wakes; without `wakes`, waiters are queued in the store.
macro_rules! scripts {
    (words: $format:literal, channel: $channel:expr) => {
        $crate::lua::scripts!(
            words: $format, channel: $channel, wakes: None, ending: "usual",
            acquire: [
                "take", "../timestamp", "../grant", "../acquire",
                "look", "tells", "../queue", "../leave", "../enter", "../attempt",
                "../endings/busy"
            ],
            release: [
                "look", "drop", "../tell", "../queue_of", "../release",
                "take", "../timestamp", "../grant", "../queue", "../let_next_in",
                "../endings/next", "../leave", "../give_up", "../endings/waiting"
            ],
            free: [
                "look", "drop", "gone", "take", "../timestamp", "../grant", "../tell",
                "../queue_of", "../queue", "../let_next_in", "../leave", "../give_up",
                "../free_first"
            ]
        )
    };
    (
        words: $format:literal, channel: $channel:expr, wakes: $wakes:expr, ending: $ending:literal
    ) => {
        $crate::lua::scripts!(
            words: $format, channel: $channel, wakes: Some($wakes), ending: $ending,
            acquire: [
                "look", "take", "../timestamp", "../grant", "../acquire",
                "tells", "../tell", "../no_queue", "../attempt", "../endings/busy"
            ],
            release: ["look", "gone", "../tell", "../release_last", "../endings/" $ending],
            free: ["look", "gone", "take", "../tell", "../no_queue", "../free_last"]
        )
    };
    (
        words: $format:literal, channel: $channel:expr, wakes: $wakes:expr, ending: $ending:literal,
        acquire: [$($acquire:literal),*],
        release: [$($release:literal $($name:literal)?),*],
        free: [$($free:literal),*]
    ) => {{
        use $crate::lua::{Script, Scripts, words};
        const fn script(name: &'static str, source: &'static str) -> Script {
            Script::new(name, $channel, $wakes, source)
        }
        Scripts {
            acquire: script("acquire", words!($format: $($acquire),*)),
            release: script("release", words!($format: $($release $($name)?),*)),
            close: script("close",
                words!($format: $($free),*, "../pass", "../close", "../endings/" $ending),
            ),
            renew: script("renew", words!($format: "look", "gone", "../renew")),
            inspect: script("inspect", words!($format: "holder", "gone", "../inspect")),
            force: script("force",
                words!($format: "holder", $($free),*, "../force", "../endings/" $ending),
            ),
            propose: script("propose", words!($format: "look", "take", "tells", "../propose")),
        }
    }};
}
pub(crate) use scripts;

/// Returns the joins for the releases and the acquires of a format. Releases come first: joined
/// requests are sent in this order, so that no acquire overtakes a release of the same lock.
macro_rules! joins {
    ($dialect:ident, words: $format:literal, channel: $channel:expr) => {{
        use $crate::lua::join::Join;
        use $crate::lua::{Script, words};
        const fn script(name: &'static str, source: &'static str) -> Script {
            Script::new(name, $channel, None, source)
        }
        [
            // The words of a request: the lock, the owner, the channel, and the command that
            // publishes.
            Join {
                one: &$dialect.scripts.release,
                many: script("release_many",
                    words!(
                        $format: "look", "drop", "../tell", "../queue_of", "../release_many",
                        "take", "../timestamp", "../grant", "../queue", "../let_next_in",
                        "../leave", "../give_up", "../endings/waiting_many"
                    ),
                ),
                keys: &[0],
                common: &[3],
                each: &[1, 2],
                is_repeatable: false,
            },
            // The words of a request: the lock, the counter, the tombstone, the queue, the lease,
            // the owner, and the time for which the counter is kept.
            Join {
                one: &$dialect.scripts.acquire,
                many: script("acquire_many",
                    words!(
                        $format: "take", "../timestamp", "../grant", "../acquire_many",
                        "look", "tells", "../queue", "../leave", "../enter", "../attempt",
                        "../endings/busy_many"
                    ),
                ),
                keys: &[0, 2, 3, 1],
                common: &[4, 6],
                each: &[5],
                is_repeatable: true,
            },
        ]
    }};
}
pub(crate) use joins;

/// Joins the texts of files in a format's folder.
macro_rules! words {
    ($format:literal: $($file:literal $($name:literal)?),*) => {
        concat!($(include_str!(concat!("../lua/", $format, "/", $file, $($name,)? ".lua")),)*)
    };
}
pub(crate) use words;

pub(crate) static MARK: Script = Script::new("mark", "", None, include_str!("mark.lua"));
/// Sent as text and not by its hash, because a diagnosis runs this script only once.
pub(crate) const RIGHTS: &str = include_str!("rights.lua");
/// The script by which a new connection checks that all keys are in one store, sent as text once
/// and by its hash after that.
pub(crate) const WHICH: &str = include_str!("which.lua");
pub(crate) static COUNT: Script = Script::new("count", "", None, include_str!("count.lua"));
pub(crate) static CLEAR: Script = Script::new("clear", "", None, include_str!("clear.lua"));

impl Script {
    pub(crate) const fn new(
        name: &'static str,
        channel: &'static str,
        wakes: Option<ForeignClient>,
        source: &'static str,
    ) -> Self {
        let names_beside = |_: &str| Vec::new();
        Self {
            name,
            source,
            channel,
            wakes,
            names_beside,
            hash: OnceLock::new(),
            number: OnceLock::new(),
        }
    }

    pub(crate) const fn with_names_beside(mut self, names: fn(&str) -> Vec<String>) -> Self {
        self.names_beside = names;
        self
    }

    /// Returns the hash by which a server knows the script: the SHA1 of its text, in hexadecimal
    /// digits.
    pub(crate) fn hash(&self) -> &str {
        self.hash
            .get_or_init(|| redis::Script::new(self.source).get_hash().to_owned())
    }

    /// Returns the script's number, unique in this process. Scripts are numbered from 0 on, in the
    /// order of their first use.
    pub(crate) fn number(&self) -> u32 {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        *self
            .number
            .get_or_init(|| NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the commands that the script may run, in lower case as in an access control list, in
    /// the order of the script's text. With a `line` (counted from 1), returns only the commands in
    /// that line.
    pub(crate) fn commands(&self, line: Option<usize>) -> Vec<String> {
        let lines = self.source.lines().enumerate();
        let mut commands = Vec::new();
        for (_, text) in lines.filter(|(index, _)| line.is_none_or(|line| index + 1 == line)) {
            for call in text.split("call(").skip(1) {
                let command = match call
                    .strip_prefix('\'')
                    .and_then(|call| call.split_once('\''))
                {
                    Some((command, _)) => command.to_ascii_lowercase(),
                    // The command that publishes. It is the only command that is an argument of a
                    // script.
                    None => "publish".to_owned(),
                };
                if !commands.contains(&command) {
                    commands.push(command);
                }
            }
        }
        commands
    }
}

#[cfg(test)]
mod tests {
    use super::join::Join;
    use super::*;
    use crate::protocol::{DIALECTS, REDISSON, kinds};

    #[test]
    fn script_hash_is_the_sha1_of_its_text() {
        let script = Script::new("", "", None, "return 1");
        assert_eq!(script.hash(), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }

    #[test]
    fn scripts_know_their_commands() {
        let Scripts {
            acquire,
            release,
            inspect,
            ..
        } = &REDISSON.scripts;
        let commands = release.commands(None);
        assert!(
            ["hdel", "publish", "zrange"]
                .iter()
                .all(|it| commands.contains(&(*it).to_owned()))
        );
        assert_eq!(
            inspect.commands(None),
            ["hlen", "hexists", "hmget", "hkeys", "hdel", "pttl"]
        );
        let hset = acquire
            .source
            .lines()
            .position(|line| line.contains("'HSET'"))
            .unwrap();
        assert_eq!(acquire.commands(Some(hset + 1)), ["hset"]);
        assert_eq!(acquire.commands(Some(1)), [""; 0]);
    }

    fn all(scripts: &Scripts) -> [&Script; 7] {
        let Scripts {
            acquire,
            release,
            close,
            renew,
            inspect,
            force,
            propose,
        } = scripts;
        [acquire, release, close, renew, inspect, force, propose]
    }

    /// An access control list that allows the script for one lock must also allow the joined
    /// script, because a diagnosis does not check the joined one.
    #[test]
    fn joined_scripts_run_no_other_commands() {
        for join in DIALECTS.into_iter().flat_map(|it| it.joins) {
            let commands = join.one.commands(None);
            assert!(
                join.many
                    .commands(None)
                    .iter()
                    .all(|it| commands.contains(it))
            );
            assert!(join.word_count() <= Join::MAX_WORDS);
        }
    }

    #[test]
    fn scripts_have_a_head_and_a_number_of_their_own() {
        let mut numbers = std::collections::HashSet::new();
        let of_formats = DIALECTS.into_iter().flat_map(|it| all(&it.scripts));
        let of_kinds = kinds::ALL
            .iter()
            .flat_map(|kind| kind.scripts().iter().copied());
        let of_joins = DIALECTS
            .into_iter()
            .flat_map(|it| it.joins)
            .map(|join| &join.many);
        for script in of_formats
            .chain(of_kinds)
            .chain(of_joins)
            .chain([&MARK, &COUNT, &CLEAR])
        {
            assert!(numbers.insert(script.number()), "{}", script.name);
            let head = format!("-- {}: ", script.name);
            assert!(
                script.source.lines().any(|line| line.starts_with(&head)),
                "{}",
                script.name
            );
            for part in ["-- KEYS[", "-- Returns ", "-- Atomic because "] {
                assert!(script.source.contains(part), "{} lacks {part}", script.name);
            }
            let first = |text| script.source.find(text);
            let defined = first("function timestamp()").map(|at| at + "function ".len());
            assert_eq!(
                first("timestamp()"),
                defined,
                "{} lacks timestamp.lua",
                script.name
            );
        }
    }
}
