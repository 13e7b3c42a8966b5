//! [`Rights`]: the commands, keys and channels of the library that the user may use.
//!
//! A script checks the user's right to each command, with each key that needs the command, and
//! executes none of the commands. If a command is refused with every key, the user lacks the
//! command. If a command is refused with a key, the user lacks the right to that key when every
//! command is refused with it, or when the command is allowed with another key.

use super::{Asking, Examination, StoreKind};
use crate::connection::error_mapping::acl_pattern;
use crate::connection::{Reply, ServerError, Text};
use crate::keys;
use crate::lua::{MARK, RIGHTS};
use crate::protocol::Format;
use crate::wakeups::{ChannelKind, Tracking};
use lock_core::FindingLevel::{Danger, Unknown, Warning};
use lock_core::backend::Failure;
use lock_core::{LockName, Replicas};

/// The lock that [`Client::ping`](lock_core::Client::ping) reads.
const PROBE: &str = "distlock:ping";

/// A placeholder for a value.
const ANY: &str = "1";

/// A key or a channel.
struct Resource {
    /// The rule of an access control list that allows the resource.
    rule: String,
    name: String,
    /// True if this is the key of a lock, or a companion key that begins with the name of the lock,
    /// and no prefix is configured. Then it is not known which locks the user is meant to use.
    is_any_lock: bool,
}

/// A question to the server: may the user run this command, with this resource?
struct Question {
    /// The command as an access control list writes it, such as `client|tracking`.
    command: String,
    resource: Option<usize>,
    is_needed: bool,
    words: Vec<String>,
    answer: Answer,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Allowed,
    Refused,
    NoSuchCommand,
}

/// The questions about the user's rights, with the server's answers.
pub(super) struct Rights {
    resources: Vec<Resource>,
    questions: Vec<Question>,
    outcome: Outcome,
}

/// The outcome of the questions.
enum Outcome {
    Answered,
    /// Scripts cannot be run.
    NoScripts(ServerError),
    /// The server cannot check rights in a script, because it is older than Redis 7; or its answer
    /// is invalid.
    Unknown,
}

/// The rules that the user lacks.
#[derive(Default)]
struct Missing {
    /// The rules that grant the commands and keys that locks need.
    needed: Vec<String>,
    /// The rules that grant optional commands and keys.
    optional: Vec<String>,
    /// The rules for channels, of which nothing is known while no command for channels is allowed.
    channels: Vec<String>,
    /// True if the user may not use the key of a lock that was checked, and no prefix shows which
    /// locks the user is meant to use.
    is_lock_unknown: bool,
}

/// Returns a command with as many words as it needs; `None` for a command that is not listed here.
/// The server looks for keys among the words before it checks their number, so it might crash if
/// there were too few words.
fn words(command: &str, name: &str) -> Option<Vec<String>> {
    let more: &[&str] = match command {
        "exec" | "info" | "multi" | "ping" | "role" | "sunsubscribe" | "time" | "unsubscribe" => {
            &[]
        }
        "del" | "exists" | "get" | "getex" | "hkeys" | "hlen" | "incr" | "pttl" | "ssubscribe"
        | "strlen" | "subscribe" | "type" | "unlink" | "zcard" => &[name],
        "zadd" | "zcount" | "zrange" | "zrangebyscore" | "zremrangebyrank" => &[name, "0", "0"],
        "expire" | "getset" | "hdel" | "hexists" | "hget" | "hmget" | "incrby" | "lpush"
        | "pexpire" | "publish" | "set" | "setnx" | "spublish" | "zmscore" | "zrem" => &[name, ANY],
        "getrange" | "hset" => &[name, ANY, ANY],
        "hrandfield" => &[name, "1"],
        "select" => &["0"],
        "wait" => &["0", "0"],
        "eval" => &["return 1", "0"],
        "evalsha" => &["0000000000000000000000000000000000000000", "0"],
        "client|setname" => &["x"],
        "client|tracking" => &["on"],
        "client|caching" => &["yes"],
        "pubsub|numsub" => &["x"],
        "cluster|info" | "cluster|myid" | "cluster|shards" | "cluster|slots" | "asking" => &[],
        _ => return None,
    };
    Some(
        command
            .split('|')
            .chain(more.iter().copied())
            .map(str::to_owned)
            .collect(),
    )
}

impl Rights {
    /// Queries the server about the user's rights.
    pub(super) fn ask(
        asking: &mut Asking<'_>,
        format: &Format,
        store: StoreKind,
    ) -> Result<Self, Failure> {
        let mut rights = Self::of(asking, format, store);
        let words = rights.questions.iter().flat_map(|question| {
            let count = Text::number(question.words.len() as u64)
                .as_str()
                .to_owned();
            [count].into_iter().chain(question.words.iter().cloned())
        });
        let words: Vec<_> = words.collect();
        let mut request: Vec<&[u8]> = vec![b"EVAL", RIGHTS.as_bytes(), b"0"];
        request.extend(words.iter().map(|word| word.as_bytes()));
        rights.outcome = match asking.ask(&request)? {
            Reply::Array(answers) if answers.len() == rights.questions.len() => {
                for (question, answer) in rights.questions.iter_mut().zip(&answers) {
                    question.answer = match answer {
                        Reply::Int(1) => Answer::Allowed,
                        Reply::Int(2) => Answer::NoSuchCommand,
                        _ => Answer::Refused,
                    };
                }
                Outcome::Answered
            }
            Reply::Error(error) => Outcome::NoScripts(error),
            _ => Outcome::Unknown,
        };
        Ok(rights)
    }

    /// Returns the questions, not yet answered.
    fn of(asking: &Asking<'_>, format: &Format, store: StoreKind) -> Self {
        let terms = &asking.node.inner.terms;
        let mut rights = Self {
            resources: Vec::new(),
            questions: Vec::new(),
            outcome: Outcome::Unknown,
        };
        let name = LockName::new(PROBE).expect("it is a name");
        let key = format.keys().lock(&name).into_owned();
        let mut commands = format.commands();
        let prefix = key.strip_suffix(PROBE).unwrap_or_default();
        let lock = rights.add(format!("~{prefix}*"), key, !terms.has_prefix);
        let mut keys = vec![lock];
        let mut queue = None;
        if let Some(owned) = format.as_owned() {
            keys.extend(
                owned
                    .names_beside(&name)
                    .map(|name| rights.add(acl_pattern('~', &name), name, false)),
            );
            // The queue is checked even if this client no longer uses it because the server has
            // refused it.
            let is_quorum = matches!(store, StoreKind::Quorum { .. });
            queue = (owned.dialect.wakes().is_none() && !is_quorum).then(|| {
                let name = keys::queue(&owned.keys.lock(&name));
                rights.add(acl_pattern('~', &name), name, false)
            });
            if is_quorum {
                for command in owned.dialect.scripts.propose.commands(None) {
                    if !commands.contains(&command) {
                        commands.push(command);
                    }
                }
                let marker = owned.keys.marker();
                let marker = rights.add(format!("~{marker}"), marker, false);
                for command in MARK.commands(None) {
                    rights.question(&command, Some(marker), true);
                }
            }
            let label = keys::label(&owned.keys.lock(&name));
            let label = rights.add("~distlock_owner:*".to_owned(), label, false);
            for command in ["set", "get"] {
                rights.question(command, Some(label), false);
            }
            for (names, commands) in owned.kinds_beside(&name) {
                let mut places = vec![lock];
                places.extend(names.into_iter().map(|name| {
                    let is_any_lock = !terms.has_prefix && name.starts_with(&format!("{{{PROBE}"));
                    rights.add(acl_pattern('~', &name), name, is_any_lock)
                }));
                let of_keys = |command: &&String| !matches!(command.as_str(), "time" | "publish");
                for command in commands.iter().filter(of_keys) {
                    for place in &places {
                        rights.question(command, Some(*place), false);
                    }
                }
            }
            let verbs = match owned.channels() {
                ChannelKind::Plain => ["publish", "subscribe", "unsubscribe"],
                ChannelKind::Sharded => ["spublish", "ssubscribe", "sunsubscribe"],
            };
            let inbox = owned.inbox(&name, asking.node.inner.client);
            for channel in owned.channels_of_all(&name).into_iter().chain(inbox) {
                let place = rights.add(acl_pattern('&', &channel), channel, false);
                // Unsubscribing requires no right to the channel.
                for (verb, place) in verbs.into_iter().zip([Some(place), Some(place), None]) {
                    rights.question(verb, place, false);
                }
            }
            if terms.tracking == Tracking::Auto {
                rights.question("client|tracking", None, false);
                rights.question("client|caching", None, false);
            }
        }
        // Votes in a quorum and fencing tokens need the server's time. Otherwise only the queue and
        // semaphores need it, which are optional.
        let is_quorum = matches!(store, StoreKind::Quorum { .. });
        let has_tokens = format.as_owned().is_none_or(|owned| owned.has_tokens());
        for command in commands {
            match command.as_str() {
                "time" => rights.question(&command, None, is_quorum || has_tokens),
                "info" | "multi" | "exec" => rights.question(&command, None, true),
                // A question about this command, with its channel, exists already.
                "publish" => {}
                "pubsub" => rights.question("pubsub|numsub", None, false),
                _ => {
                    // The queue is a mutex's only sorted set, and is optional: clients that may not
                    // use the queue compete for the lock.
                    let is_of_queue = command.starts_with('z');
                    for key in keys.iter().copied().chain(queue) {
                        let is_needed = !is_of_queue && Some(key) != queue;
                        rights.question(&command, Some(key), is_needed);
                    }
                }
            }
        }
        let of_topology: &[&str] = match store {
            StoreKind::Standalone => &[],
            StoreKind::Sentinel | StoreKind::Quorum { .. } => &["info"],
            StoreKind::Cluster => &[
                "cluster|myid",
                "cluster|info",
                "cluster|shards",
                "cluster|slots",
                "asking",
            ],
        };
        let with_database: &[&str] = if terms.database == 0 {
            &[]
        } else {
            &["select"]
        };
        let with_replicas: &[&str] = if terms.replicas == Replicas::Off {
            &[]
        } else {
            &["wait"]
        };
        for command in [
            &["evalsha", "ping"],
            of_topology,
            with_database,
            with_replicas,
        ]
        .concat()
        {
            rights.question(command, None, true);
        }
        let to_see_sentinels = matches!(store, StoreKind::Quorum { .. });
        let optional = to_see_sentinels.then_some("pubsub|numsub");
        for command in ["client|setname", "info"].into_iter().chain(optional) {
            rights.question(command, None, false);
        }
        rights
    }

    fn add(&mut self, rule: String, name: String, is_any_lock: bool) -> usize {
        self.resources.push(Resource {
            rule,
            name,
            is_any_lock,
        });
        self.resources.len() - 1
    }

    fn question(&mut self, command: &str, resource: Option<usize>, is_needed: bool) {
        let name = resource.map_or("", |resource| self.resources[resource].name.as_str());
        let Some(words) = words(command, name) else {
            return;
        };
        let (command, answer) = (command.to_owned(), Answer::Refused);
        self.questions.push(Question {
            command,
            resource,
            is_needed,
            words,
            answer,
        });
    }

    /// Returns the error for a command that is known to be refused; `None` for any other command.
    pub(super) fn refusal_of(&self, command: &str) -> Option<ServerError> {
        let is_it = |it: &&Question| it.command == command && it.answer == Answer::Refused;
        let is_refused = matches!(self.outcome, Outcome::Answered)
            && self.questions.iter().any(|question| is_it(&question));
        is_refused.then(|| {
            ServerError::parse(&format!(
                "NOPERM the user may not run the '{command}' command"
            ))
        })
    }

    /// Returns whether any of the questions that `about` selects was answered with "allowed".
    fn is_allowed(&self, mut about: impl FnMut(&Question) -> bool) -> bool {
        let mut questions = self.questions.iter();
        questions.any(|question| question.answer == Answer::Allowed && about(question))
    }

    fn missing(&self) -> Missing {
        let mut missing = Missing::default();
        for question in self
            .questions
            .iter()
            .filter(|it| it.answer == Answer::Refused)
        {
            let rules = if question.is_needed {
                &mut missing.needed
            } else {
                &mut missing.optional
            };
            let mut add = |rule: String| {
                if !rules.contains(&rule) {
                    rules.push(rule);
                }
            };
            let resource = question
                .resource
                .map(|place| (place, &self.resources[place]));
            let is_refused_resource = resource
                .is_some_and(|(place, _)| !self.is_allowed(|it| it.resource == Some(place)));
            let is_refused_command = !self.is_allowed(|it| it.command == question.command);
            if let Some((_, resource)) = resource
                && resource.is_any_lock
                && is_refused_resource
            {
                missing.is_lock_unknown |= question.is_needed;
                continue;
            }
            if is_refused_command {
                add(format!("+{}", question.command));
            }
            // The user may have all channels, and `ACL SETUSER` refuses a pattern beside `&*`.
            let is_unknown = |(place, resource): (usize, &Resource)| {
                resource.rule.starts_with('&')
                    && self.questions.iter().all(|it| {
                        it.resource != Some(place)
                            || !self.is_allowed(|other| other.command == it.command)
                    })
            };
            if let Some((place, resource)) = resource
                && (is_refused_resource || !is_refused_command)
            {
                if !is_unknown((place, resource)) {
                    add(resource.rule.clone());
                } else if !missing.channels.contains(&resource.rule) {
                    missing.channels.push(resource.rule.clone());
                }
            }
        }
        // An optional rule that is also needed is named only once.
        missing
            .optional
            .retain(|rule| !missing.needed.contains(rule));
        missing
    }

    /// Returns the commands that the server, or a proxy in front of the server, does not know.
    fn unknown_commands(&self, is_needed: bool) -> Vec<String> {
        let mut names = Vec::new();
        for question in &self.questions {
            let is_it = question.answer == Answer::NoSuchCommand && question.is_needed == is_needed;
            let name = question.command.replace('|', " ").to_uppercase();
            if is_it && !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}

impl Examination<'_> {
    pub(super) fn judge_rights(&mut self, rights: &Rights) {
        const ID: &str = "rights";
        const OPTIONAL: &str = "rights_optional";
        let user = self.node.inner.dialer.server().user();
        let line = |rules: &[String]| format!("`ACL SETUSER {user} {}`", rules.join(" "));
        match &rights.outcome {
            Outcome::Answered => {}
            Outcome::NoScripts(error) if error.code == "NOPERM" => {
                let (seen, remedy) = (
                    format!("the user `{user}` may run no scripts"),
                    line(&["+eval".into()]),
                );
                return self.bad(Danger, ID, seen, "no lock can be taken", remedy);
            }
            Outcome::NoScripts(error) => {
                let seen = format!("no script can be run ({})", error.code);
                let why = "no lock can be taken";
                let remedy = "connect to the server itself, and allow EVAL and EVALSHA there";
                return self.bad(Danger, "commands", seen, why, remedy);
            }
            Outcome::Unknown => {
                let remedy = "compare the user's rights with docs/OPERATIONS.md";
                return self.unknown(ID, "servers before Redis 7 do not say them", remedy);
            }
        }
        self.judge_commands(rights);
        let missing = rights.missing();
        if !missing.needed.is_empty() {
            let seen = format!("the user `{user}` lacks {}", missing.needed.join(" "));
            let remedy = line(&missing.needed);
            self.bad(
                Danger,
                ID,
                seen,
                "locks cannot be taken, kept or released",
                remedy,
            );
        } else if missing.is_lock_unknown {
            let seen = format!("the user `{user}` may not use the key {PROBE:?}");
            let finding = lock_core::Finding::new(Unknown, ID, self.server(), seen)
                .why("without a prefix it is not known which locks it is to use")
                .remedy(format!("{}, or name the locks", line(&["~*".into()])));
            self.findings.push(finding);
        } else {
            self.ok(ID, format!("the user `{user}` has those that locks need"));
        }
        if !missing.optional.is_empty() {
            let seen = format!("the user `{user}` lacks {}", missing.optional.join(" "));
            let why = "clients may overtake those that wait, waiters may wake later, a changed \
                       server is noticed later, holders have no label, or only mutexes can be \
                       taken";
            let remedy = match &*missing.channels {
                [] => line(&missing.optional),
                channels => format!(
                    "{}; unless the user has `&*`, also {}",
                    line(&missing.optional),
                    line(channels)
                ),
            };
            self.bad(Warning, OPTIONAL, seen, why, remedy);
        }
    }

    fn judge_commands(&mut self, rights: &Rights) {
        const ID: &str = "commands";
        let (needed, optional) = (
            rights.unknown_commands(true),
            rights.unknown_commands(false),
        );
        let remedy = "remove `rename-command` for them, or connect to the server itself, not to a \
                      proxy";
        if !needed.is_empty() {
            let seen = format!("the server does not know {}", needed.join(", "));
            self.bad(
                Danger,
                ID,
                seen,
                "locks cannot be taken, kept or released",
                remedy,
            );
        } else if !optional.is_empty() {
            let seen = format!("the server does not know {}", optional.join(", "));
            let why = "clients may overtake those that wait, waiters may wake later, or losses \
                       are noticed later";
            self.bad(Warning, ID, seen, why, remedy);
        } else {
            self.ok(ID, "the server knows those that locks need");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lua::Scripts;
    use crate::protocol::{DIALECTS, kinds};

    /// The diagnosis skips a command that `words` does not know.
    #[test]
    fn every_command_of_a_script_can_be_asked_about() {
        for dialect in DIALECTS {
            let Scripts {
                acquire,
                release,
                close,
                renew,
                inspect,
                force,
                propose,
            } = &dialect.scripts;
            let scripts = [acquire, release, close, renew, inspect, force, propose];
            for command in scripts.into_iter().flat_map(|script| script.commands(None)) {
                let is_known = command == "pubsub" || words(&command, "k").is_some();
                assert!(is_known, "{command} of {}", dialect.name);
            }
        }
        for script in kinds::ALL.iter().flat_map(|kind| kind.scripts().iter()) {
            let mut commands = script.commands(None).into_iter();
            assert!(
                commands.all(|it| it == "publish" || words(&it, "k").is_some()),
                "{}",
                script.name
            );
        }
        assert!(
            MARK.commands(None)
                .iter()
                .all(|command| words(command, "k").is_some())
        );
    }
}
