//! Maps a server's errors to errors of this library, most of them with advice.

use crate::connection::history::Shown;
use crate::connection::{Cause, Server, ServerError};
use crate::lua::Script;
use lock_core::backend::Failure;
use lock_core::{Error, ErrorKind};

/// The advice if the server may be too old.
pub(crate) const OLDEST: &str = "Redis 6.2, or Valkey 7.2, is the oldest that will do";

/// The request that the server refused.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Asked<'a> {
    /// The handshake of a new connection.
    Handshake,
    /// To run this script on this key.
    Script(&'static Script, &'a str),
    /// To carry out this command on this key.
    Command(&'static str, &'a str),
    /// To subscribe to this channel.
    Subscribe(&'a str),
    /// To publish on this channel, with this command.
    Publish(&'static str, &'a str),
    /// To return how many replicas have a write.
    Confirmation,
    /// To report on its cluster: the node's own ID, the state of the cluster, or the nodes of the
    /// slots.
    Cluster,
    /// To return `INFO`. Also stands for other requests that are not about a lock.
    Introduction,
}

impl Asked<'_> {
    /// Returns the list to which the script pushes to wake waiters, if it does.
    fn list(&self) -> Option<String> {
        let Self::Script(script, key) = self else {
            return None;
        };
        script.wakes?.list(key)
    }
}

/// Returns the failure of a request that the server answered with an error.
pub(crate) fn refused(server: &Server, answer: &ServerError, asked: &Asked<'_>) -> Failure {
    Failure::Refused(explain(server, answer, asked))
}

/// Returns `true` if this is the error of a server that refuses a request because it is a replica.
pub(crate) fn is_by_a_replica(error: &Error) -> bool {
    ServerError::behind(error)
        .is_some_and(|answer| matches!(answer.code.as_str(), "READONLY" | "MASTERDOWN"))
}

/// Returns the error of a server that, by its own report, grants no locks now: the error that it
/// would answer to a write.
pub(crate) fn unready(server: &Server, shown: &Shown) -> Option<Error> {
    let (code, message) = match (shown.is_loading, shown.is_master) {
        (Some(true), _) => ("LOADING", passing(server, "LOADING")),
        (_, Some(false)) => {
            let master = shown.master.as_deref().unwrap_or("another server");
            let lost = match shown.has_master_link {
                Some(false) => ", has lost its master",
                _ => "",
            };
            let message = format!(
                "{server} is a replica of {master}{lost} and takes no writes: connect to its master"
            );
            ("READONLY", message)
        }
        _ => return None,
    };
    let detail = "by what INFO says".to_owned();
    Some(Error::unavailable(message).with_source(ServerError {
        code: code.to_owned(),
        detail,
    }))
}

/// Returns `true` if the server, or a proxy before it, will probably never carry out this command.
/// Returns `false` for the codes of a passing state, a redirect, a failed or missing login, and
/// keys in different slots.
pub(crate) fn will_not(answer: &ServerError) -> bool {
    let answer = inside_script(answer).unwrap_or_else(|| answer.clone());
    !matches!(
        answer.code.as_str(),
        "MOVED"
            | "ASK"
            | "TRYAGAIN"
            | "CLUSTERDOWN"
            | "CROSSSLOT"
            | "LOADING"
            | "MASTERDOWN"
            | "READONLY"
            | "BUSY"
            | "NOAUTH"
            | "WRONGPASS"
            | "UNBLOCKED"
            | "OOM"
            | "MISCONF"
            | "NOREPLICAS"
    )
}

/// Returns `true` if the server refuses only this request, in whatever words, and not every request
/// on the connection.
pub(crate) fn is_only_of_request(answer: &ServerError) -> bool {
    let refuses_all = answer.code == "DENIED" || answer.detail.starts_with("max number of clients");
    will_not(answer) && !refuses_all
}

/// Returns `true` if a service refuses a script because of its text, whatever the script does.
pub(crate) fn checks_scripts(answer: &ServerError) -> bool {
    answer.detail.starts_with("bad lua script")
}

/// Returns the cause of a refusal to serve a channel. Its `change` is equal for all channels that
/// one rule of the access control list would allow.
pub(crate) fn cause_on_channel<'a>(
    server: &Server,
    answer: &ServerError,
    channel: &'a str,
    asked: impl FnOnce(&'a str) -> Asked<'a>,
) -> Cause {
    let family = channel.split_inclusive(':').next().unwrap_or(channel);
    let change = explain(server, answer, &asked(family)).to_string();
    let is_about_channel = is_about_channel(server, answer);
    Cause {
        change,
        channel: is_about_channel.then(|| channel.to_owned()),
    }
}

/// Returns `true` if the channel is not allowed; `false` if the command is not allowed.
fn is_about_channel(server: &Server, answer: &ServerError) -> bool {
    let detail = without_arguments(answer).detail;
    unquoted(&without_user(server, &detail)).contains("channel")
}

/// Returns an error text without the name of the connection's user, which may be any word.
fn without_user(server: &Server, detail: &str) -> String {
    detail.replacen(&format!("User {} ", server.user()), "User ", 1)
}

/// Returns an error text without quotations: a quoted key may contain any word.
fn unquoted(detail: &str) -> String {
    // The remaining apostrophes all belong to quotations.
    detail
        .replace("can't", "cannot")
        .split('\'')
        .step_by(2)
        .collect()
}

/// Returns this library's error for a server's error, with advice.
pub(crate) fn explain(server: &Server, answer: &ServerError, asked: &Asked<'_>) -> Error {
    if let Some(inner) = inside_script(answer) {
        return explain(server, &inner, asked);
    }
    let answer = without_arguments(answer);
    let (kind, message) = match answer.code.as_str() {
        // The list has the wrong type, not the lock, which is unchanged and still held.
        "WRONGTYPE" if answer.detail.starts_with("the list of signals") => {
            (ErrorKind::Configuration, no_list(&answer, asked))
        }
        "WRONGTYPE" => (ErrorKind::ForeignFormat, foreign(&answer, asked)),
        "NOAUTH" => (
            ErrorKind::Configuration,
            format!(
                "{server} asks for a password: put it into the URL, as in \
                 `redis://:password@host`, or name its file with `password_file`"
            ),
        ),
        "WRONGPASS" => (
            ErrorKind::Configuration,
            format!(
                "{server} does not accept the password of the user `{}`, or the user is disabled \
                 there: check the URL, or where else the password comes from",
                server.user()
            ),
        ),
        "NOPERM" => (ErrorKind::Configuration, permission(server, &answer, asked)),
        "DENIED" => (
            ErrorKind::Configuration,
            format!(
                "{server} runs in protected mode and refuses connections from outside: give it a \
                 password"
            ),
        ),
        "CROSSSLOT" if asked.list().is_some() => (
            ErrorKind::Configuration,
            apart(&asked.list().unwrap_or_default()),
        ),
        "MOVED" | "ASK" | "CROSSSLOT" => (
            ErrorKind::Configuration,
            format!(
                "{server} is a Redis Cluster node, and the key is on another one: the URL is `{}`",
                server.url("redis+cluster")
            ),
        ),
        "ERR" => general(server, &answer, asked),
        code => (ErrorKind::Unavailable, passing(server, code)),
    };
    Error::new(kind, message).with_source(answer)
}

/// Returns the message for a state that may have passed at the next request.
fn passing(server: &Server, code: &str) -> String {
    let meaning = match code {
        "LOADING" => "is still reading its data from the disk after a start",
        "READONLY" => "is a replica and takes no writes: connect to its master",
        "MASTERDOWN" => "is a replica that has lost its master",
        "BUSY" => "is busy with a script that runs for too long (see SCRIPT KILL)",
        "OOM" => "has used up its `maxmemory`, and its `maxmemory-policy` frees nothing",
        "MISCONF" => "takes no writes because it cannot save them to its disk",
        "NOREPLICAS" => {
            "takes no writes because fewer replicas than `min-replicas-to-write` are connected"
        }
        "CLUSTERDOWN" => "is a Redis Cluster node, and the cluster is down",
        "UNBLOCKED" => "has become a replica while its own were waited for",
        "TRYAGAIN" => "is a Redis Cluster node that is just moving this key",
        _ => "refused",
    };
    format!("{server} {meaning}")
}

/// Returns the kind and the message of an error with the general code `ERR`.
fn general(server: &Server, answer: &ServerError, asked: &Asked<'_>) -> (ErrorKind, String) {
    let detail = answer.detail.as_str();
    let begins = |beginnings: &[&str]| beginnings.iter().any(|it| detail.starts_with(it));
    let message = if begins(&["This instance has cluster support disabled"]) {
        let url = server.url("redis");
        format!("{server} is no node of a cluster: for one server on its own the URL is `{url}`")
    } else if begins(&["DB index is out of range", "SELECT is not allowed"]) {
        format!(
            "{server} has no database with this number: see `databases` in its configuration \
             (Redis Cluster has only 0)"
        )
    } else if detail.contains("not allowed from script")
        || begins(&[
            "unknown command",
            "Unknown Redis command",
            "Unknown command",
        ])
    {
        match detail.get(17..23) {
            _ if matches!(asked, Asked::Script(..))
                && missing_commands(detail, asked) == ["time"] =>
            {
                format!(
                    "{server} does not run TIME in scripts, as some managed services: set \
                     `tokens=off`; without TIME there are no fencing tokens, no semaphores and no \
                     order of arrival"
                )
            }
            _ if matches!(asked, Asked::Confirmation) => format!(
                "{server} does not know WAIT, as some managed services: leave `replicas` out"
            ),
            Some("SELECT") => format!(
                "{server} does not know SELECT, as some managed services: it has one database, so \
                 leave its number out"
            ),
            _ => format!(
                "{server} lacks a command that is needed: it was renamed or disabled there, or \
                 the server is too old: {OLDEST}"
            ),
        }
    } else if begins(&[
        // The server knows the command, but not these arguments: options of `SET`, several keys of
        // `EXISTS` in the script that acquires (before Redis 3), or a user of `AUTH`.
        "syntax error",
        "Wrong number of args calling Redis command",
        "wrong number of arguments for 'auth'",
    ]) {
        format!("{server} is too old: {OLDEST}")
    } else if detail.contains("AUTH") && detail.contains("without any password configured") {
        format!("{server} has no password, and the URL gives one: check which server this is")
    } else if begins(&[
        "The user executing the script can't",
        "ACL failure in script",
    ]) {
        permission(server, answer, asked)
    } else if checks_scripts(answer) {
        format!(
            "{server} refuses scripts by their text, as services do that look for literal keys in \
             it: switch that check off (Alibaba Cloud: `script_check_enable 0`), or connect to \
             the server itself"
        )
    } else if begins(&["Write commands not allowed after non deterministic"]) {
        format!(
            "{server} runs with `lua-replicate-commands no`: set it to `yes`; or it is too old: \
             {OLDEST}"
        )
    } else if begins(&[
        "value is not an integer",
        "increment or decrement would overflow",
    ]) {
        return (ErrorKind::ForeignFormat, foreign(answer, asked));
    } else if begins(&["max number of clients"]) {
        let message = format!(
            "{server} has as many connections as its `maxclients` allows: raise that, or use \
             smaller pools"
        );
        return (ErrorKind::Unavailable, message);
    } else {
        return (ErrorKind::Unavailable, format!("{server} refused"));
    };
    (ErrorKind::Configuration, message)
}

/// Returns the message for a value that is not a list, under the key of the list on which
/// python-redis-lock's waiters sleep.
fn no_list(answer: &ServerError, asked: &Asked<'_>) -> String {
    let list = asked.list().unwrap_or_default();
    format!(
        "{} under the key {list:?}, and so python-redis-lock's waiters cannot be woken; nothing \
         was released: delete what is there, or leave out `wakes=`",
        answer.detail
    )
}

/// Returns why a lock cannot be released on a cluster: the script also pushes to this list, which
/// is in another hash slot.
pub(crate) fn apart(list: &str) -> String {
    format!(
        "python-redis-lock's waiters sleep on the list {list:?}, which on a cluster is in another \
         hash slot than the lock: give the name a hash tag, as `{{orders}}:42` has one, or leave \
         out `wakes=` (and a cluster's URL begins with `redis+cluster://`)"
    )
}

fn foreign(answer: &ServerError, asked: &Asked<'_>) -> String {
    let (Asked::Script(_, key) | Asked::Command(_, key)) = asked else {
        return "something that is not a lock of this format is there".to_owned();
    };
    if answer.detail.starts_with("the token counter") {
        format!("what is under the key of the tokens of {key:?} is no counter that can be used")
    } else if answer.detail.starts_with("the number of permits") {
        format!("under the key {key:?} is a text that is no whole number: a semaphore is one")
    } else if answer.detail.starts_with("the permits") {
        format!("the key beside the semaphore {key:?} is no set of permits")
    } else if let Some(field) = answer.detail.strip_prefix("the hash has the field ") {
        format!(
            "under the key {key:?} is a hash that is no lock: its field {field:?} is no owner with \
             a count"
        )
    } else if let Some(size) = answer.detail.strip_prefix("the hash has ") {
        format!("under the key {key:?} is a hash of {size} that is no lock: a lock has one")
    } else {
        let has_tokens = matches!(asked, Asked::Script(script, _)
            if ["acquire", "close", "propose"].contains(&script.name));
        let or = if has_tokens {
            ", or under its token counter"
        } else {
            ""
        };
        format!("something that is not a lock of this format is under the key {key:?}{or}")
    }
}

/// Returns the message that names the missing rule of the server's access control list.
fn permission(server: &Server, answer: &ServerError, asked: &Asked<'_>) -> String {
    let user = server.user();
    let detail = without_user(server, &answer.detail).replace("can't", "cannot");
    let unquoted = unquoted(&detail);
    let (what, rules) = if unquoted.contains("channel") {
        let (what, name) = match asked {
            Asked::Subscribe(channel) | Asked::Publish(_, channel) => {
                (format!("use the channel {channel:?}"), *channel)
            }
            Asked::Script(script, _) => (
                "publish on the channel of the lock".to_owned(),
                script.channel,
            ),
            _ => ("use a channel".to_owned(), ""),
        };
        (what, acl_pattern('&', name))
    } else if unquoted.contains("key") {
        let key = match asked {
            Asked::Script(_, key) | Asked::Command(_, key) => *key,
            _ => "*",
        };
        let mut rules = format!("~{key} ~redisson_lock_token:* ~distlock_closed:*");
        if asked.list().is_some() {
            rules.push_str(" ~lock-signal:*");
        }
        if let Asked::Script(script, _) = asked {
            for name in (script.names_beside)(key) {
                rules.push(' ');
                rules.push_str(&acl_pattern('~', &name));
            }
        }
        (format!("use the key {key:?} or those beside it"), rules)
    } else {
        let commands = missing_commands(&detail, asked);
        let rules: Vec<_> = commands
            .iter()
            .map(|command| format!("+{command}"))
            .collect();
        (
            format!("run {}", commands.join(", ").to_uppercase()),
            rules.join(" "),
        )
    };
    format!(
        "the user `{user}` on {server} may not {what}: allow it with `ACL SETUSER {user} {rules}`"
    )
}

/// Returns the pattern of an access control list for all keys (`~`) or channels (`&`) that begin
/// like `name` up to its first colon. The part after the colon differs from lock to lock.
pub(crate) fn acl_pattern(mark: char, name: &str) -> String {
    let begin = name.split(':').next().unwrap_or_default();
    format!("{mark}{begin}:*")
}

/// Returns the commands that the server may have refused to run: the command that the error names;
/// otherwise the commands on the line of the script that the error names; otherwise all commands of
/// the request, or their category.
fn missing_commands(detail: &str, asked: &Asked<'_>) -> Vec<String> {
    if let Some(named) = detail.split('\'').nth(1) {
        return vec![named.to_owned()];
    }
    let script = match asked {
        Asked::Script(script, _) => script,
        Asked::Command(command, _) | Asked::Publish(command, _) => {
            return vec![command.to_ascii_lowercase()];
        }
        Asked::Confirmation => return vec!["wait".to_owned()],
        Asked::Cluster => {
            return ["myid", "info", "shards", "slots"]
                .map(|it| format!("cluster|{it}"))
                .into();
        }
        Asked::Introduction => return vec!["info".to_owned()],
        Asked::Handshake | Asked::Subscribe(_) => return vec!["@pubsub".to_owned()],
    };
    let line = detail.rsplit_once("@user_script:").and_then(|(_, rest)| {
        rest.split(|c: char| !c.is_ascii_digit())
            .next()
            .and_then(|line| line.parse().ok())
    });
    let there = line
        .map(|line| script.commands(Some(line)))
        .unwrap_or_default();
    if there.is_empty() {
        script.commands(None)
    } else {
        there
    }
}

/// Unwraps the error of a command inside a script. Redis before 7 wraps it once or twice: `ERR
/// Error running script (call to f_..): @user_script:9: @user_script: 9: -OOM command not allowed
/// ..`.
fn inside_script(answer: &ServerError) -> Option<ServerError> {
    let wrapped = answer.code == "ERR" && answer.detail.starts_with("Error running script");
    if !wrapped && answer.code != "@user_script:" {
        return None;
    }
    let whole = answer.to_string();
    let (_, place) = whole.rsplit_once("@user_script:")?;
    let (_, text) = place.split_once(": ")?;
    let inner = ServerError::parse(text.trim_start_matches('-'));
    let has_code = inner.code.len() > 1 && inner.code.bytes().all(|b| b.is_ascii_uppercase());
    Some(if has_code {
        inner
    } else {
        // Adds the line number, by which `missing_commands` finds the command: these servers do not
        // name it.
        let line = place.split(':').next().unwrap_or_default().trim();
        ServerError {
            code: "ERR".to_owned(),
            detail: format!("{text} @user_script:{line}"),
        }
    })
}

/// Returns the error without the arguments of an unknown command, which the server repeats: one of
/// the arguments may be the password.
fn without_arguments(answer: &ServerError) -> ServerError {
    let mut answer = answer.clone();
    if let Some(at) = answer.detail.find(", with args") {
        answer.detail.truncate(at);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Endpoint;
    use crate::lua::Script;
    use crate::protocol::{PYTHON_REDIS_LOCK, REDISSON, SPRING_INTEGRATION, kinds};

    static ACQUIRE: &Script = &REDISSON.scripts.acquire;

    fn explained(text: &str) -> Error {
        let server = Server::new(Endpoint::tcp("h", 1), Some("me"));
        explain(
            &server,
            &ServerError::parse(text),
            &Asked::Script(ACQUIRE, "k"),
        )
    }

    #[test]
    fn errors_of_wait_name_the_missing_right_or_the_demotion() {
        let server = Server::new(Endpoint::tcp("h", 1), Some("me"));
        let said = |text: &str| explain(&server, &ServerError::parse(text), &Asked::Confirmation);
        for text in [
            "NOPERM this user has no permissions to run the 'wait' command",
            "NOPERM this user has no permissions to run the 'wait' command or its subcommand",
        ] {
            let error = said(text);
            let rule = "`ACL SETUSER me +wait`";
            assert!(
                error.is_configuration() && error.to_string().contains(rule),
                "{error:?}"
            );
        }
        let error = said(
            "UNBLOCKED force unblock from blocking operation, instance state changed (master -> \
             replica?)",
        );
        assert!(
            error.is_unavailable() && error.to_string().contains("a replica"),
            "{error:?}"
        );
    }

    /// The texts are from redis-server 7.0.15, and from 6.0, 6.2 and 7.2 where they differ.
    #[test]
    fn every_error_of_a_server_has_a_kind_and_a_meaning() {
        use ErrorKind::{Configuration, ForeignFormat, Unavailable};
        for (text, kind, says) in [
            (
                "WRONGTYPE Operation against a key",
                ForeignFormat,
                "under the key \"k\"",
            ),
            (
                "ERR unknown command 'SELECT'",
                Configuration,
                "leave its number out",
            ),
            (
                "ERR unknown command `SELECT`, with args beginning with: `1`",
                Configuration,
                "one",
            ),
            (
                "WRONGTYPE the token counter is not",
                ForeignFormat,
                "no counter",
            ),
            (
                "ERR Error running script (call to f_0): @user_script:9: WRONGTYPE Operation",
                ForeignFormat,
                "\"k\"",
            ),
            (
                "ERR Error running script (call to f_0): @user_script:9: @user_script: 9: -OOM \
                 command not",
                Unavailable,
                "maxmemory",
            ),
            (
                "@user_script: 9: -READONLY You can't",
                Unavailable,
                "replica",
            ),
            (
                "ERR Error running script (call to f_0): @user_script:1: @user_script: 1: The user \
                 executing the script can't run this command",
                Configuration,
                "+pexpire",
            ),
            (
                "ERR Error running script (call to f_0): @user_script:9: ERR syntax error",
                Configuration,
                "too old",
            ),
            (
                "ERR Error running script (call to f_0): @user_script:28: @user_script: 28: Wrong \
                 number of args calling Redis command From Lua script",
                Configuration,
                "too old",
            ),
            (
                "ERR wrong number of arguments for 'auth' command",
                Configuration,
                "too old",
            ),
            ("NOAUTH Authentication required.", Configuration, "password"),
            (
                "WRONGPASS invalid username-password pair",
                Configuration,
                "`me`",
            ),
            (
                "NOPERM this user has no permissions to run the 'client|setname' command",
                Configuration,
                "ACL SETUSER me +client|setname`",
            ),
            (
                "NOPERM this user has no permissions to access one of the keys used",
                Configuration,
                "~k ",
            ),
            (
                "NOPERM this user has no permissions to access one of the channels",
                Configuration,
                "&redisson_lock__channel:*`",
            ),
            (
                "ERR ACL failure in script: User me has no permissions to run the 'pexpire' \
                 command",
                Configuration,
                "me +pexpire`",
            ),
            (
                "ERR ACL failure in script: User me has no permissions to access the 'channel' key",
                Configuration,
                "~k ",
            ),
            (
                "ERR The user executing the script can't publish to the channel mentioned in the \
                 command",
                Configuration,
                "&redisson_lock__channel:*`",
            ),
            (
                "DENIED Redis is running in protected mode",
                Configuration,
                "protected",
            ),
            ("MOVED 1 h:2", Configuration, "Redis Cluster"),
            (
                "MOVED 1 h:2",
                Configuration,
                "the URL is `redis+cluster://h:1`",
            ),
            ("ASK 1 h:2", Configuration, "Redis Cluster"),
            ("ERR DB index is out of range", Configuration, "database"),
            (
                "ERR unknown command 'EVALSHA', with args beginning with: 'x' ",
                Configuration,
                "6.2",
            ),
            (
                "ERR Unknown Redis command called from script",
                Configuration,
                "renamed or disabled",
            ),
            (
                "ERR Unknown command called from script",
                Configuration,
                "renamed or disabled",
            ),
            (
                "ERR max number of clients reached",
                Unavailable,
                "maxclients",
            ),
            (
                "LOADING Redis is loading the dataset in memory",
                Unavailable,
                "reading its data",
            ),
            ("MASTERDOWN Link with MASTER is down", Unavailable, "master"),
            ("BUSY Redis is busy running a script", Unavailable, "script"),
            ("MISCONF Redis is configured to save", Unavailable, "disk"),
            (
                "NOREPLICAS Not enough good replicas to write.",
                Unavailable,
                "replicas",
            ),
            ("CLUSTERDOWN Hash slot not served", Unavailable, "Cluster"),
            ("TRYAGAIN Multiple keys request", Unavailable, "moving"),
            ("STRANGE things", Unavailable, "refused"),
            ("ERR strange things", Unavailable, "refused"),
        ] {
            let error = explained(text);
            assert_eq!(error.kind(), kind, "{text}: {error:?}");
            assert!(error.to_string().contains(says), "{text}: {error:?}");
            if !text.contains("WRONGTYPE") {
                assert!(error.to_string().contains("h:1"), "{text}: {error:?}");
            }
        }
    }

    /// Since Redis 7 the error names the user, whose name may be any word.
    #[test]
    fn user_name_is_not_read_as_the_missing_right() {
        for user in ["monkey", "key", "channels", "o'key"] {
            let server = Server::new(Endpoint::tcp("h", 1), Some(user));
            for prefix in ["NOPERM", "ERR ACL failure in script:"] {
                for (forbidden, rule) in [
                    ("run the 'pexpire' command", "+pexpire`"),
                    ("access the 'k' key", "~k "),
                ] {
                    let text = format!("{prefix} User {user} has no permissions to {forbidden}");
                    let answer = ServerError::parse(&text);
                    let error = explain(&server, &answer, &Asked::Script(ACQUIRE, "k"));
                    let rule = format!("`ACL SETUSER {user} {rule}");
                    assert!(error.to_string().contains(&rule), "{error:?}");
                }
            }
        }
    }

    /// A script that pushes to a list has an additional key, which a server may refuse.
    #[test]
    fn errors_of_signal_lists_and_channels_are_explained() {
        let server = Server::new(Endpoint::tcp("h", 1), Some("me"));
        let release = Asked::Script(&PYTHON_REDIS_LOCK.scripts.release, "lock:a");
        let said = |text: &str| explain(&server, &ServerError::parse(text), &release);
        for (text, says) in [
            (
                "WRONGTYPE the list of signals is a hash",
                "the list of signals is a hash under the key \"lock-signal:a\"",
            ),
            (
                "CROSSSLOT Keys in request don't hash to the same slot",
                "a hash tag",
            ),
            (
                "NOPERM this user has no permissions to access one of the keys used",
                "~lock:a ~redisson_lock_token:* ~distlock_closed:* ~lock-signal:*`",
            ),
            (
                "ERR ACL failure in script: User me has no permissions to run the 'lpush' command",
                "me +lpush`",
            ),
        ] {
            let error = said(text);
            // None of these errors is reported as a loss: the client still holds the lock.
            assert!(
                error.is_configuration() && error.to_string().contains(says),
                "{error:?}"
            );
        }
        let release = Asked::Script(&SPRING_INTEGRATION.scripts.release, "registry:a");
        let text = "ERR The user executing the script can't publish to the channel mentioned";
        let error = explain(&server, &ServerError::parse(text), &release);
        assert!(
            error.to_string().contains("`ACL SETUSER me &*-channel:*`"),
            "{error:?}"
        );
    }

    /// One `ACL SETUSER` grants all keys, whichever key the server named.
    #[test]
    fn rights_to_the_keys_of_each_kind_are_named() {
        let server = Server::new(Endpoint::tcp("h", 1), Some("me"));
        let refusal = "NOPERM this user has no permissions to access one of the keys used";
        for kind in kinds::ALL {
            for script in kind.scripts() {
                let asked = Asked::Script(script, "lock:a");
                let error = explain(&server, &ServerError::parse(refusal), &asked).to_string();
                for name in kind.names_beside("lock:a") {
                    let named = error.split(' ').filter_map(|word| word.strip_prefix('~'));
                    let mut begins = named.map(|rule| rule.trim_end_matches(['*', '`']));
                    assert!(
                        begins.any(|begin| name.starts_with(begin)),
                        "{name}: {error}"
                    );
                }
            }
        }
    }

    /// Redis before 7 names the line of the script, but not the command.
    #[test]
    fn command_is_found_by_its_script_line() {
        let at = |text| {
            1 + ACQUIRE
                .source
                .lines()
                .position(|line| line.contains(text))
                .unwrap()
        };
        for (text, command) in [
            ("'HSET'", "hset"),
            ("'EXISTS'", "exists"),
            ("'TIME'", "time"),
        ] {
            let (line, cannot) = (
                at(text),
                "The user executing the script can't run this command",
            );
            for wrapped in [
                format!(
                    "ERR Error running script (call to f_0): @user_script:{line}: @user_script: \
                     {line}: {cannot}"
                ),
                format!("@user_script: {line}: {cannot}"),
            ] {
                let error = explained(&wrapped);
                let rule = format!("ACL SETUSER me +{command}`");
                assert!(
                    error.is_configuration() && error.to_string().contains(&rule),
                    "{error:?}"
                );
            }
        }
    }

    #[test]
    fn server_error_text_is_kept_without_arguments() {
        let shown = format!(
            "{:?}",
            explained("ERR unknown command 'AUTH', with args beginning with: 's3cret'")
        );
        assert!(
            shown.contains("unknown command 'AUTH'") && !shown.contains("s3cret"),
            "{shown}"
        );
        assert!(format!("{:?}", explained("STRANGE things")).contains("STRANGE things"));
    }
}
