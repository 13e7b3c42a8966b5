//! The label of an owner: accepted values, and the default.

use std::path::Path;

/// The value that switches labels off.
pub(super) const OFF: &str = "off";

/// Describes what is wrong with a label; `None` if nothing is.
pub(super) fn complaint(label: &str, longest: usize) -> Option<String> {
    let what = if label.is_empty() {
        "is empty: `owner=off` switches it off".to_owned()
    } else if label.len() > longest {
        format!("has {} bytes, which is more than {longest}", label.len())
    } else if label.contains(char::is_control) {
        format!("{label:?} has a control character in it, such as a line end")
    } else {
        return None;
    };
    Some(format!("owner {what}"))
}

/// Returns `HOST:PROCESS:PROGRAM`, cut off after at most `longest` bytes, with `?` in place of each
/// control character.
pub(super) fn of_this_process(longest: usize) -> String {
    let program = std::env::args_os().next().unwrap_or_default();
    let program = Path::new(&program)
        .file_name()
        .unwrap_or_default()
        .to_string_lossy();
    of_process(&host(), std::process::id(), &program, longest)
}

fn of_process(host: &str, process: u32, program: &str, longest: usize) -> String {
    let mut label = format!("{host}:{process}:{program}").replace(char::is_control, "?");
    while label.len() > longest {
        label.pop();
    }
    label
}

#[cfg(unix)]
fn host() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

#[cfg(not(unix))]
fn host() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_default()
}

/// Puts `_` in place of each character that the name of a connection cannot contain.
pub(super) fn printable(label: &str) -> String {
    label
        .chars()
        .map(|c| if is_printable(c) { c } else { '_' })
        .collect()
}

/// Returns whether a connection's name can contain the character: printable ASCII, without the
/// space.
pub(super) fn is_printable(c: char) -> bool {
    ('!'..='~').contains(&c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_label_is_bounded_and_without_control_characters() {
        assert_eq!(of_process("web-1", 42, "till", 128), "web-1:42:till");
        assert_eq!(of_process("a\n", 1, "ü\u{1b}", 128), "a?:1:ü?");
        let cut = of_process("h", 7, &"ü".repeat(100), 128);
        assert_eq!((cut.len(), cut.chars().count()), (128, 66), "{cut}");
        assert_eq!(complaint(&of_this_process(128), 128), None);
    }

    #[test]
    fn connection_name_of_any_label_is_printable() {
        assert_eq!(printable("Łódź till 7\"'"), "__d__till_7\"'");
    }
}
