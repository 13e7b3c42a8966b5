//! Standard output and standard error. Writing to a closed pipe causes no panic.

use crate::exit::{self, Failure};
use std::fmt;
use std::io::{self, IsTerminal, Write};

/// Escapes control characters other than the line end, in JSON's notation: text of servers and
/// other clients must not control the terminal.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() && c != '\n' {
            shown.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Writes a line to standard error. `eprintln` would panic if standard error is closed.
pub(crate) fn report(what: impl fmt::Display) {
    let _closed = writeln!(io::stderr(), "distlock: {}", printable(&what.to_string()));
}

/// Writes to standard output, flushes it, and returns the exit status of success.
pub(crate) fn write(text: &[u8]) -> Result<u8, Failure> {
    let mut output = io::stdout().lock();
    output
        .write_all(text)
        .and_then(|()| output.flush())
        .map(|()| 0)
        .map_err(|error| {
            let what =
                format!("standard output is not read any more ({error}): keep the pipe open");
            Failure::new(exit::SOFTWARE, what)
        })
}

/// Writes a line to standard output, with control characters escaped.
pub(crate) fn line(text: &str) -> Result<u8, Failure> {
    write(format!("{}\n", printable(text)).as_bytes())
}

/// Asks the user on the terminal for confirmation. Returns whether the answer is yes.
pub(crate) fn is_confirmed(question: &str) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        let what = "standard input is no terminal, so there is no one to ask: add --yes";
        return Err(Failure::new(exit::USAGE, what));
    }
    let asked = write!(io::stderr(), "{question} [y/N] ");
    let mut answer = String::new();
    let read = asked.and_then(|()| io::stdin().read_line(&mut answer));
    read.map_err(|error| Failure::system("the terminal cannot be asked", error))?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

/// Formats rows as lines with aligned columns.
pub(crate) fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|cells| cells[column].chars().count()).max();
    let widths: [usize; N] = std::array::from_fn(|column| width(column).unwrap_or(0));
    let lines = rows.iter().map(|cells| {
        let cells = cells
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_shown_as_escapes() {
        assert_eq!(
            printable("a\u{1b}[2J\r\u{7f}\u{9b}2J"),
            r"a\u001b[2J\u000d\u007f\u009b2J"
        );
        assert_eq!(printable("Łódź\nb"), "Łódź\nb");
    }
}
