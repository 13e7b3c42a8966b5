//! [`Script`]: a piece of Lua that the server runs whole, known to it by the hash of its text.

use crate::connection::{
    CallError, CallbackRequest, ConnectionLike, ReplyCheck, Request, SharedConnection, script_hash,
};
use crate::foreign_client::ForeignClient;
use crate::reply::Reply;
use crate::text::Text;
use lock_core::Moment;
use lock_core::backend::Failure;
use std::sync::OnceLock;

/// A script. What it takes and returns, and why it must be atomic, stands at its head.
#[derive(Debug)]
pub(crate) struct Script {
    name: &'static str,
    source: &'static str,
    /// What the channels are called on which it tells of releases; nothing where it tells of none.
    channel: &'static str,
    /// Whose waiters its format wakes besides our own.
    wakes: Option<ForeignClient>,
    hash: OnceLock<String>,
    /// The script's own bit in the set of scripts that a connection has used, each once.
    bit: u64,
}

/// What a script is run on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run<'a> {
    pub(crate) keys: &'a [&'a [u8]],
    pub(crate) arguments: &'a [&'a [u8]],
}

/// What a format with owners is made of: each script with the words of its
/// [dialect](crate::format::Dialect) before it.
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

/// The scripts, numbered from here on, each with those words of this format before it that it uses;
/// behind those that free a lock, how this one does it.
macro_rules! scripts {
    ($first:literal, $format:literal, $free:literal, $channel:expr, $wakes:expr) => {
        $crate::script::Scripts {
            acquire: $crate::script::scripts!(@ $first, $format, $channel, $wakes, "acquire": "look", "take", "tells";),
            release: $crate::script::scripts!(@ $first + 1, $format, $channel, $wakes, "release": "look", "gone"; $free),
            close: $crate::script::scripts!(@ $first + 2, $format, $channel, $wakes, "close": "look", "gone"; $free),
            renew: $crate::script::scripts!(@ $first + 3, $format, $channel, $wakes, "renew": "look", "gone";),
            inspect: $crate::script::scripts!(@ $first + 4, $format, $channel, $wakes, "inspect": "holder", "gone";),
            force: $crate::script::scripts!(@ $first + 5, $format, $channel, $wakes, "force": "holder"; $free),
            propose: $crate::script::scripts!(@ $first + 6, $format, $channel, $wakes, "propose": "look", "take", "tells";),
        }
    };
    (@ $number:expr, $format:literal, $channel:expr, $wakes:expr, $name:literal: $($word:literal),*; $($free:literal)?) => {
        $crate::script::Script::new(
            $number,
            $name,
            $channel,
            concat!(
                $(include_str!(concat!("../lua/", $format, "/", $word, ".lua")),)*
                include_str!(concat!("../lua/", $name, ".lua")),
                $(include_str!(concat!("../lua/free/", $free, ".lua")),)?
            ),
        )
        .waking($wakes)
    };
}
pub(crate) use scripts;

pub(crate) static MARK: Script = Script::new(0, "mark", "", include_str!("lua/mark.lua"));
pub(crate) static COUNT: Script = Script::new(15, "count", "", include_str!("lua/count.lua"));
pub(crate) static CLEAR: Script = Script::new(16, "clear", "", include_str!("lua/clear.lua"));

impl Script {
    pub(crate) const fn new(
        number: u32,
        name: &'static str,
        channel: &'static str,
        source: &'static str,
    ) -> Self {
        assert!(number < u64::BITS, "no bit is left for another script");
        Self { name, source, channel, wakes: None, hash: OnceLock::new(), bit: 1 << number }
    }

    /// The same of a format that wakes others' waiters, too.
    pub(crate) const fn waking(mut self, wakes: Option<ForeignClient>) -> Self {
        self.wakes = wakes;
        self
    }

    /// What the channels are called on which it tells of releases.
    pub(crate) fn channel(&self) -> &'static str {
        self.channel
    }

    /// Whose waiters its format wakes besides our own.
    pub(crate) fn wakes(&self) -> Option<ForeignClient> {
        self.wakes
    }

    /// What we call it.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    #[cfg(test)]
    pub(crate) fn source(&self) -> &'static str {
        self.source
    }

    /// Runs it by its hash, which is short; and if the server does not know it (a restart, `SCRIPT
    /// FLUSH`, the first time ever), by its text, from which on the server knows it. `NOSCRIPT`
    /// says that nothing was carried out.
    pub(crate) fn run(
        &self,
        link: &mut dyn ConnectionLike,
        keys: &[&[u8]],
        arguments: &[&[u8]],
        by: Moment,
    ) -> Result<Reply, CallError> {
        let count = Text::number(keys.len() as u64);
        let by_hash: &[&[u8]] = &[b"EVALSHA", self.hash().as_bytes(), count.as_bytes()];
        let by_text: &[&[u8]] = &[b"EVAL", self.source.as_bytes(), count.as_bytes()];
        if link.needs_script_text(self.bit) {
            return link.call(&Request(&[by_text, keys, arguments]), by);
        }
        match link.call(&Request(&[by_hash, keys, arguments]), by)? {
            Reply::Error(error) if error.is_noscript() => {
                link.call(&Request(&[by_text, keys, arguments]), by)
            }
            reply => Ok(reply),
        }
    }

    /// Runs it several times in one go, each time with keys and arguments of its own. The answers
    /// are in the same order; fewer, and why, if not all came.
    pub(crate) fn run_many(
        &self,
        link: &mut dyn ConnectionLike,
        runs: &[Run<'_>],
        by: Moment,
    ) -> (Vec<Reply>, Result<(), CallError>) {
        if link.needs_script_text(self.bit) {
            return Self::send_many([b"EVAL", self.source.as_bytes()], link, runs, by);
        }
        let (mut replies, outcome) =
            Self::send_many([b"EVALSHA", self.hash().as_bytes()], link, runs, by);
        let unknown = |reply: &Reply| matches!(reply, Reply::Error(error) if error.is_noscript());
        if outcome.is_err() || !replies.iter().any(unknown) {
            return (replies, outcome);
        }
        let unknown: Vec<_> = (0..runs.len()).filter(|run| unknown(&replies[*run])).collect();
        let again: Vec<_> = unknown.iter().map(|run| runs[*run]).collect();
        // Each by its text: the first may be turned away before the server learns the script from
        // it.
        let (answers, outcome) =
            Self::send_many([b"EVAL", self.source.as_bytes()], link, &again, by);
        for (run, answer) in unknown.into_iter().zip(answers) {
            replies[run] = answer;
        }
        match outcome {
            Ok(()) => (replies, Ok(())),
            // What was unknown the first time was not carried out then; now it may have been. None
            // is left out in the middle: nothing here tells one from the other, and a renewal may
            // be repeated.
            Err(error) => (Vec::new(), Err(error)),
        }
    }

    fn send_many(
        how: [&[u8]; 2],
        link: &mut dyn ConnectionLike,
        runs: &[Run<'_>],
        by: Moment,
    ) -> (Vec<Reply>, Result<(), CallError>) {
        let counts: Vec<_> = runs.iter().map(|run| Text::number(run.keys.len() as u64)).collect();
        let heads: Vec<_> = counts.iter().map(|count| [how[0], how[1], count.as_bytes()]).collect();
        let words: Vec<[&[&[u8]]; 3]> = heads
            .iter()
            .zip(runs)
            .map(|(head, run)| [head.as_slice(), run.keys, run.arguments])
            .collect();
        let requests: Vec<_> = words.iter().map(|words| Request(words)).collect();
        link.call_many(&requests, by)
    }

    /// Runs it once, without waiting for the answer: that goes to `done`.
    pub(crate) fn submit(
        &self,
        link: &SharedConnection,
        keys: &[&[u8]],
        arguments: &[&[u8]],
        by: Moment,
        done: impl FnOnce(Result<Reply, Failure>) -> ReplyCheck + Send + 'static,
    ) {
        let count = Text::number(keys.len() as u64);
        let text: &[&[u8]] = &[b"EVAL", self.source.as_bytes(), count.as_bytes()];
        let hash: &[&[u8]] = &[b"EVALSHA", self.hash().as_bytes(), count.as_bytes()];
        let (text, hash) = ([text, keys, arguments], [hash, keys, arguments]);
        let (by_text, by_hash) = (Request(&text), Request(&hash));
        let errand =
            CallbackRequest { by_hash: Vec::new(), text: self.source, done: Box::new(done) };
        link.submit(self.bit, &by_text, &by_hash, by, errand);
    }

    fn hash(&self) -> &str {
        self.hash.get_or_init(|| script_hash(self.source))
    }

    /// The commands it may run, as an ACL writes them, in the order they stand; `line` (counted
    /// from 1) narrows that to the one that stands there.
    pub(crate) fn commands(&self, line: Option<usize>) -> Vec<String> {
        let lines = self.source.lines().enumerate();
        let mut commands = Vec::new();
        for (_, text) in lines.filter(|(index, _)| line.is_none_or(|line| index + 1 == line)) {
            for call in text.split("call(").skip(1) {
                let command = match call.strip_prefix('\'').and_then(|call| call.split_once('\'')) {
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
    use super::*;
    use crate::format::{PYTHON_REDIS_LOCK, REDISSON, SPRING_INTEGRATION, TOKEN};

    #[test]
    fn scripts_know_their_commands() {
        let Scripts { acquire, release, inspect, .. } = &REDISSON.scripts;
        assert_eq!(release.commands(None), ["hexists", "hdel", "publish", "del"]);
        assert_eq!(inspect.commands(None), ["hlen", "hexists", "hkeys", "hmget", "hdel", "pttl"]);
        let hset = acquire.source.lines().position(|line| line.contains("'HSET'")).unwrap();
        assert_eq!(acquire.commands(Some(hset + 1)), ["hset"]);
        assert_eq!(acquire.commands(Some(1)), [""; 0]);
    }

    fn all(scripts: &Scripts) -> [&Script; 7] {
        let Scripts { acquire, release, close, renew, inspect, force, propose } = scripts;
        [acquire, release, close, renew, inspect, force, propose]
    }

    #[test]
    fn scripts_have_a_head_and_a_number_of_their_own() {
        let mut bits = 0_u64;
        for script in [&REDISSON, &TOKEN, &PYTHON_REDIS_LOCK, &SPRING_INTEGRATION]
            .into_iter()
            .flat_map(|it| all(&it.scripts))
            .chain([&MARK, &COUNT, &CLEAR])
        {
            assert_eq!(bits & script.bit, 0, "{}", script.name);
            bits |= script.bit;
            let head = format!("-- {}: ", script.name);
            assert!(script.source.lines().any(|line| line.starts_with(&head)), "{}", script.name);
            for part in ["-- KEYS[", "-- Returns ", "-- Atomic because "] {
                assert!(script.source.contains(part), "{} lacks {part}", script.name);
            }
        }
    }
}
