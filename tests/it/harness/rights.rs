//! The user that the library is on every server of a test: one who may do what `docs/OPERATIONS.md` lists, and nothing
//! else. What a test does with its own connections it does as the server's default user.

use super::probe::{Probe, Value};

/// Name and password, as they stand in a URL.
pub(crate) const LOGIN: &str = "locker:SECRET";

/// The rule as the document has it, word by word, from the user's name on.
pub(crate) fn documented() -> Vec<&'static str> {
    let operations = include_str!("../../../docs/OPERATIONS.md");
    let rule = operations.lines().find_map(|line| line.strip_prefix("ACL SETUSER "));
    rule.expect("the document has the rule").split(' ').collect()
}

/// The same for locks of any name, as the document says to write it where there is no prefix.
pub(super) fn without_prefix() -> Vec<&'static str> {
    let (keys, mut rest): (Vec<_>, Vec<_>) =
        documented().into_iter().partition(|word| word.starts_with('~'));
    assert_eq!(keys.len(), 3, "{keys:?}");
    rest.push("~*");
    rest
}

/// What the server refused to that user, as `ACL LOG` tells it; nothing if it cannot be asked.
pub(super) fn refused(port: u16) -> Vec<String> {
    let log = Probe::try_connect(port).and_then(|mut probe| probe.try_command(&["ACL", "LOG"]));
    let Ok(Value::List(entries)) = log else { return Vec::new() };
    let shown = entries.iter().map(|entry| format!("{entry:?}"));
    shown.filter(|entry| entry.contains("\"locker\"") && !entry.contains("\"auth\"")).collect()
}
