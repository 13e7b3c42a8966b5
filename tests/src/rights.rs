//! The library's user on every server of a test, with the rights that `docs/OPERATIONS.md` lists
//! and no others. A test's own connections use the server's default user.

use super::probe::{Probe, Value};
use super::version::is_before_7;

/// Name and password, as they stand in a URL.
pub const LOGIN: &str = "locker:SECRET";

/// The rule as the document has it, word by word, from the user's name on.
pub fn documented() -> Vec<&'static str> {
    rule("locker on")
}

/// The same with what is needed on a cluster.
pub fn documented_for_cluster() -> Vec<&'static str> {
    with("locker +cluster", documented())
}

/// This rule, and what stands in the document behind the name of the user in the one that begins
/// like that.
fn with(begin: &str, rule_so_far: Vec<&'static str>) -> Vec<&'static str> {
    rule_so_far
        .into_iter()
        .chain(rule(begin).into_iter().skip(1))
        .collect()
}

/// The rule that begins like this.
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

/// The rule for locks of any name, as the document says to write it where there is no prefix.
pub(super) fn without_prefix() -> Vec<&'static str> {
    of_any_name(with(LISTS, with(WAKES, with(FORMATS, documented()))))
}

/// How the rule begins of what formats need that are asked for.
const FORMATS: &str = "locker &distlock";

/// And of what `wakes=` needs.
const WAKES: &str = "locker ~lock-signal";

/// And of what lists of locks need.
const LISTS: &str = "locker +scan";

fn of_any_name(rule: Vec<&'static str>) -> Vec<&'static str> {
    let (keys, mut rest): (Vec<_>, Vec<_>) =
        rule.into_iter().partition(|word| word.starts_with('~'));
    assert_eq!(keys.len(), 7, "{keys:?}");
    rest.push("~*");
    rest
}

/// The same on a node of a cluster.
pub(super) fn on_cluster() -> Vec<&'static str> {
    let rule = with(LISTS, with(WAKES, with(FORMATS, documented_for_cluster())));
    known(of_any_name(rule))
}

/// Without what the server does not know, as the document says.
pub(super) fn known(mut rule: Vec<&str>) -> Vec<&str> {
    let is_sharded = |word: &str| ["+spublish", "+ssubscribe", "+sunsubscribe"].contains(&word);
    rule.retain(|word| !is_before_7() || !is_sharded(word));
    rule
}

/// What the server refused to that user, as `ACL LOG` tells it; nothing if it cannot be asked.
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
