//! [`Script`]: a piece of Lua that the server runs whole, known to it by the hash of its text.
//!
//! Scripts are put together here, and run by [`protocol`](crate::protocol). A format with owners is a
//! folder of files, each a Lua function that the scripts call:
//!
//! - `look(call, key, owner)`: 1 if this owner holds it, else 0
//! - `gone(call, key, owner)`: 0, behind a `look` that found another. One of the two must be a
//!   write that a replica refuses: a former master must not say that a lock is gone
//! - `take(key, owner, lease)`: nothing, or the error, and then nothing was written
//! - `holder(key, takes_many)`: owner and hold count, for `inspect`; a table with an error for
//!   other data
//! - `tells(key)`: 1 if the holder publishes its release
//! - `drop(call, key, owner)`: 1 if this owner held it, and it is free now; else 0, behind what a
//!   replica refuses
//!
//! Commands are called as `call('NAME', ..`, by which [`Script::commands`] finds them. The files in
//! `endings` end the scripts that free a lock; `attempt.lua` tries to take one, and
//! `grant.lua` gives it, with tokens where they are asked for. That, and the queue of fair locks,
//! need `timestamp.lua` before them, the server's clock.
//!
//! [`join`] says which have another beside them that does the same for several locks.

pub(crate) mod foreign_client;
pub(crate) mod join;
mod script_set;

pub(crate) use script_set::ScriptSet;

use foreign_client::ForeignClient;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// A script. What it takes and returns, and why it must be atomic, stands at its head.
#[derive(Debug)]
pub(crate) struct Script {
    /// What we call it.
    pub(crate) name: &'static str,
    /// Its text.
    pub(crate) source: &'static str,
    /// What the channels are called on which it tells of releases; nothing where it tells of none.
    pub(crate) channel: &'static str,
    /// Whose waiters its format wakes besides our own.
    pub(crate) wakes: Option<ForeignClient>,
    /// The keys of a lock that a mutex has not.
    pub(crate) names_beside: fn(key: &str) -> Vec<String>,
    hash: OnceLock<String>,
    /// Its place in a [`ScriptSet`].
    number: OnceLock<u32>,
}

/// What a format with owners is made of: each script with the words of its
/// [dialect](crate::protocol::Dialect) before it.
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

/// The scripts, each with those words of this format before it that it uses;
/// behind those that free a lock, how this one does it.
macro_rules! scripts {
    (
        words: $format:literal,
        ending: $ending:literal,
        channel: $channel:expr,
        wakes: $wakes:expr
    ) => {{
        use $crate::lua::{Script, Scripts, words};
        const fn script(name: &'static str, source: &'static str) -> Script {
            Script::new(name, $channel, $wakes, source)
        }
        Scripts {
            acquire: script("acquire", words!($format attempts: "acquire")),
            release: script("release",
                words!($format: "look", "gone", "../tell"; "release", "endings/" $ending),
            ),
            close: script("close",
                words!(
                    $format: "look", "gone", "take", "../pass", "../tell";
                    "close", "endings/" $ending
                ),
            ),
            renew: script("renew", words!($format: "look", "gone"; "renew")),
            inspect: script("inspect", words!($format: "holder", "gone"; "inspect")),
            force: script("force",
                words!($format: "holder", "../tell"; "force", "endings/" $ending),
            ),
            propose: script("propose", words!($format: "look", "take", "tells"; "propose")),
        }
    }};
}
pub(crate) use scripts;

/// How releases and acquires of this format are joined, by two scripts. Releases come first: joined
/// requests leave in this order, so no acquire overtakes a release of its lock.
macro_rules! joins {
    ($dialect:ident, words: $format:literal, channel: $channel:expr) => {{
        use $crate::lua::join::Join;
        use $crate::lua::{Script, words};
        const fn script(name: &'static str, source: &'static str) -> Script {
            Script::new(name, $channel, None, source)
        }
        [
            // Of the words lock, owner, channel, PUBLISH.
            Join {
                one: &$dialect.scripts.release,
                many: script("release_many",
                    words!($format: "look", "drop", "../tell"; "release_many"),
                ),
                keys: &[0],
                common: &[3],
                each: &[1, 2],
                is_repeatable: false,
            },
            // Of the words lock, counter, tombstone, lease, owner, keep.
            Join {
                one: &$dialect.scripts.acquire,
                many: script("acquire_many", words!($format attempts: "acquire_many")),
                keys: &[0, 2, 1],
                common: &[3, 5],
                each: &[4],
                is_repeatable: true,
            },
        ]
    }};
}
pub(crate) use joins;

/// The text of words of a format, and of files for all formats behind them; and of what attempts to
/// take locks.
macro_rules! words {
    ($format:literal attempts: $file:literal) => {
        $crate::lua::words!(
            $format: "look", "take", "tells", "../timestamp", "../grant", "../attempt"; $file
        )
    };
    ($format:literal: $($word:literal),*; $($folder:literal $($file:literal)?),*) => {
        concat!(
            $(include_str!(concat!("../lua/", $format, "/", $word, ".lua")),)*
            $(include_str!(concat!("../lua/", $folder, $($file,)? ".lua")),)*
        )
    };
}
pub(crate) use words;

pub(crate) static MARK: Script = Script::new("mark", "", None, include_str!("mark.lua"));
/// Sent by its text: a diagnosis runs it once.
pub(crate) const RIGHTS: &str = include_str!("rights.lua");
/// Sent by its text on each new connection.
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

    /// The name under which a server keeps it: the SHA1 of its text, in hexadecimal digits.
    pub(crate) fn hash(&self) -> &str {
        self.hash
            .get_or_init(|| redis::Script::new(self.source).get_hash().to_owned())
    }

    /// A number of its own in this process, from 0 on in the order of their first use.
    pub(crate) fn number(&self) -> u32 {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        *self
            .number
            .get_or_init(|| NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The commands it may run, as an ACL writes them, in the order they stand; `line` (counted
    /// from 1) narrows that to the one that stands there.
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
                    // The one command that comes as an argument.
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
        assert_eq!(
            release.commands(None),
            ["hexists", "hdel", "publish", "del"]
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

    /// What an access control list allows covers them, and what a diagnosis asks about.
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
