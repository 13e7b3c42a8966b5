//! The library's user on every server of a test: it has only the rights that `docs/OPERATIONS.md`
//! lists. A test's own connections use the server's default user.

use super::probe::{Probe, Value};
use super::version::is_before_7;

/// Name and password, as in the userinfo of a URL.
pub const LOGIN: &str = "locker:SECRET";

/// Returns the words of the rule for one server in `docs/OPERATIONS.md`, from the user's name on.
pub fn documented() -> Vec<&'static str> {
    rule("locker on")
}

/// Returns the words of [`documented`], and the rights that a cluster needs in addition.
pub fn documented_for_cluster() -> Vec<&'static str> {
    with("locker +cluster", documented())
}

/// Returns this rule with the rights of the documented rule that begins with `begin`.
fn with(begin: &str, rule_so_far: Vec<&'static str>) -> Vec<&'static str> {
    rule_so_far
        .into_iter()
        .chain(rule(begin).into_iter().skip(1))
        .collect()
}

/// Returns the words of the documented rule that begins with `begin`.
fn rule(begin: &str) -> Vec<&'static str> {
    let operations = include_str!("../../docs/OPERATIONS.md");
    let mut rules = operations
        .lines()
        .filter_map(|line| line.strip_prefix("ACL SETUSER "));
    let rule = rules.find(|rule| rule.starts_with(begin));
    rule.expect("the document has the rule")
        .split(' ')
        .collect()
}

/// Returns the rights for all features and locks of any name: without a prefix, the document says,
/// `~*` replaces the patterns of keys.
pub(super) fn without_prefix() -> Vec<&'static str> {
    of_any_name(with(LISTS, with(WAKES, with(FORMATS, documented()))))
}

/// The beginning of the rule for other formats.
const FORMATS: &str = "locker &distlock";

/// The beginning of the rule for `wakes=`.
const WAKES: &str = "locker ~lock-signal";

/// The beginning of the rule for lists of locks.
const LISTS: &str = "locker +scan";

fn of_any_name(rule: Vec<&'static str>) -> Vec<&'static str> {
    let (keys, mut rest): (Vec<_>, Vec<_>) =
        rule.into_iter().partition(|word| word.starts_with('~'));
    assert_eq!(keys.len(), 7, "{keys:?}");
    rest.push("~*");
    rest
}

/// Returns the rights for all features and locks of any name on a node of a cluster.
pub(super) fn on_cluster() -> Vec<&'static str> {
    let rule = with(LISTS, with(WAKES, with(FORMATS, documented_for_cluster())));
    known(of_any_name(rule))
}

/// Removes the rights that the server does not know, as the document says.
pub(super) fn known(mut rule: Vec<&str>) -> Vec<&str> {
    let is_sharded = |word: &str| ["+spublish", "+ssubscribe", "+sunsubscribe"].contains(&word);
    rule.retain(|word| !is_before_7() || !is_sharded(word));
    rule
}

/// Returns what the server refused to the library's user, from `ACL LOG`, except failed logins;
/// nothing if the server does not answer.
pub(super) fn refused(port: u16) -> Vec<String> {
    let log = Probe::try_connect(port).and_then(|mut probe| probe.try_command(&["ACL", "LOG"]));
    let Ok(Value::List(entries)) = log else {
        return Vec::new();
    };
    let shown = entries.iter().map(|entry| format!("{entry:?}"));
    shown
        .filter(|entry| entry.contains("\"locker\"") && !entry.contains("\"auth\""))
        .collect()
}
