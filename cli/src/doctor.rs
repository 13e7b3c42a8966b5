//! `doctor`: settings and states of the store that endanger locks.

use crate::arguments::DoctorArguments;
use crate::exit::{DANGER, Failure};
use crate::output;
use crate::store::Clients;
use crate::trial::try_kinds;
use distlock::admin::{Finding, FindingLevel};
use serde_json::{Value as Json, json};
use std::io::{self, IsTerminal};
use std::time::Duration;

/// The time limit for the diagnosis of one backend, without the trial of the locks. Each single
/// request is limited by `command_timeout`.
const BOUND: Duration = Duration::from_secs(120);

/// The width of a terminal, and the column at which the text of a finding begins.
const WIDTH: usize = 80;
const INDENT: usize = 9;

/// Examines all backends, shows the findings, and returns the exit status.
pub(crate) fn doctor(arguments: &DoctorArguments) -> Result<u8, Failure> {
    // Two clients, as in two processes: threads of one hand a lock to each other.
    let [clients, second] = [arguments.store.clients()?, arguments.store.clients()?];
    let (mut findings, mut failures) = (Vec::new(), Vec::new());
    for backend in clients.settings().backends() {
        match examine(&clients, &second, backend) {
            Ok(found) => findings.extend(found),
            Err(failure) => failures.push(failure),
        }
    }
    // All failures but the first are reported here. The first is returned after the findings of the
    // other backends have been shown.
    let mut failures = failures.into_iter();
    let failed = failures.next();
    failures.for_each(output::report);
    if findings.is_empty()
        && let Some(failure) = failed
    {
        return Err(failure);
    }
    let report = Report::new(findings, &arguments.accept);
    if arguments.json {
        output::line(&report.json().to_string())?;
    } else {
        output::write(format!("{}\n", report.text(has_colours())).as_bytes())?;
    }
    for id in report.unused(&arguments.accept) {
        output::report(format_args!("--accept {id}: no finding has this name"));
    }
    let status = match report.count(FindingLevel::Danger) {
        0 => 0,
        _ => DANGER,
    };
    failed.map_or(Ok(status), Err)
}

/// Examines a backend, and tries each kind of lock on it, unless the findings say why that fails.
fn examine(
    clients: &Clients,
    second: &Clients,
    backend: Option<&str>,
) -> Result<Vec<Finding>, Failure> {
    let client = clients.of_backend(backend)?;
    let mut findings = client.diagnose(BOUND)?;
    let has = |ids: &[&str], level| {
        let is_it = |finding: &Finding| ids.contains(&finding.id) && finding.level == level;
        findings.iter().any(is_it)
    };
    // No lock can be acquired if these are dangers, and an attempt would begin a new quorum.
    if !has(
        &["rights", "role", "memory", "quorum"],
        FindingLevel::Danger,
    ) {
        // Without a prefix, the user may have rights to other names alone.
        let is_name_unknown = has(&["rights"], FindingLevel::Unknown);
        let clients = [&client, &second.of_backend(backend)?];
        findings.extend(try_kinds(clients, is_name_unknown));
    }
    Ok(findings)
}

/// The findings, in two lists: those that the operator does not accept, and those that the operator
/// accepts. Each list begins with the worst finding.
struct Report {
    findings: Vec<Finding>,
    accepted: Vec<Finding>,
}

impl Report {
    fn new(findings: Vec<Finding>, accepted: &[String]) -> Self {
        let is_accepted = |finding: &Finding| {
            finding.level > FindingLevel::Ok && accepted.iter().any(|id| id == finding.id)
        };
        let (mut accepted, mut findings): (Vec<_>, Vec<_>) =
            findings.into_iter().partition(is_accepted);
        for findings in [&mut accepted, &mut findings] {
            findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
        }
        Self { findings, accepted }
    }

    /// Returns the number of findings of this level that are not accepted.
    fn count(&self, level: FindingLevel) -> usize {
        let is_it = |finding: &&Finding| finding.level == level;
        self.findings.iter().filter(is_it).count()
    }

    /// Returns the accepted IDs that no finding has.
    fn unused<'a>(&self, accepted: &'a [String]) -> impl Iterator<Item = &'a String> {
        let all = self.findings.iter().chain(&self.accepted);
        let known: Vec<_> = all.map(|finding| finding.id).collect();
        accepted
            .iter()
            .filter(move |id| !known.contains(&id.as_str()))
    }

    fn json(&self) -> Json {
        let findings = json(&self.findings, false).chain(json(&self.accepted, true));
        json!({
            "dangers": self.count(FindingLevel::Danger),
            "findings": findings.collect::<Vec<_>>(),
        })
    }

    /// Formats each finding as a paragraph, with a last line of totals.
    fn text(&self, has_colours: bool) -> String {
        let mut lines = Vec::new();
        for finding in &self.findings {
            lines.extend(paragraph(finding, &marked(finding.level, has_colours)));
        }
        for finding in &self.accepted {
            let word = format!("{ACCEPTED:<width$}", width = INDENT - 1);
            lines.extend(paragraph(finding, &word));
        }
        let number = |level, one: &str, more: &str| match self.count(level) {
            1 => format!("1 {one}"),
            count => format!("{count} {more}"),
        };
        let mut totals = format!(
            "{}, {}, {} unknown, {} ok",
            number(FindingLevel::Danger, "danger", "dangers"),
            number(FindingLevel::Warning, "warning", "warnings"),
            self.count(FindingLevel::Unknown),
            self.count(FindingLevel::Ok),
        );
        if !self.accepted.is_empty() {
            totals += &format!(", {} {ACCEPTED}", self.accepted.len());
        }
        lines.push(totals);
        lines.join("\n")
    }
}

/// The word for a finding that the operator accepts.
const ACCEPTED: &str = "accepted";

fn json(findings: &[Finding], is_accepted: bool) -> impl Iterator<Item = Json> {
    let text = |text: &str| {
        if text.is_empty() {
            Json::Null
        } else {
            Json::from(text)
        }
    };
    findings.iter().map(move |finding| {
        json!({
            "id": finding.id,
            "level": finding.level.as_str(),
            "accepted": is_accepted,
            "subject": finding.subject,
            "seen": finding.seen,
            "why": text(&finding.why),
            "remedy": text(&finding.remedy),
        })
    })
}

/// Returns whether standard output is a terminal and the user has not turned colours off.
fn has_colours() -> bool {
    let is_off = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    io::stdout().is_terminal() && !is_off
}

/// Returns the lines of a finding, the first behind `mark`.
fn paragraph(finding: &Finding, mark: &str) -> Vec<String> {
    let Finding {
        id,
        subject,
        seen,
        why,
        remedy,
        ..
    } = finding;
    let mut text = vec![format!("{id} ({subject}): {seen}")];
    let more = [("why", why), ("fix", remedy)];
    let more = more.into_iter().filter(|(_, more)| !more.is_empty());
    text.extend(more.map(|(name, more)| format!("{name}: {more}")));
    let mut wrapped = text
        .iter()
        .flat_map(|text| wrap(&output::printable(text), WIDTH - INDENT));
    let first = wrapped.next().unwrap_or_default();
    let mut lines = vec![format!("{mark} {first}")];
    lines.extend(wrapped.map(|line| format!("{:INDENT$}{line}", "")));
    lines
}

/// Returns the word for a level, padded to the column of the text, and in colour if `has_colours`
/// is true.
fn marked(level: FindingLevel, has_colours: bool) -> String {
    let word = format!("{level:<width$}", width = INDENT - 1);
    let colour = match level {
        _ if !has_colours => return word,
        FindingLevel::Danger => "1;31",
        FindingLevel::Warning => "33",
        FindingLevel::Ok => "32",
        _ => "36",
    };
    format!("\x1b[{colour}m{word}\x1b[0m")
}

/// Breaks a text between words into lines of this width. A longer word gets a separate line; a
/// quoted command that fits into a line counts as one word.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut is_quoted = false;
    for word in text.split_whitespace() {
        match words.last_mut() {
            Some(quoted) if is_quoted => *quoted = format!("{quoted} {word}"),
            _ => words.push(word.to_owned()),
        }
        is_quoted ^= word.matches('`').count() % 2 == 1;
    }
    let fits = |word: &str| word.chars().count() <= width;
    let words = words.iter().flat_map(|word| {
        if fits(word) {
            vec![word.as_str()]
        } else {
            word.split_whitespace().collect()
        }
    });
    let mut lines = vec![String::new()];
    for word in words {
        let line = lines.last_mut().expect("there is one");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_broken_between_words() {
        assert_eq!(wrap("aa bb cc dddddd e", 5), ["aa bb", "cc", "dddddd", "e"]);
        assert_eq!(wrap("", 5), [""]);
        assert_eq!(wrap("a `b c` d", 5), ["a", "`b c`", "d"]);
        assert_eq!(wrap("a `b c d` e", 5), ["a `b", "c d`", "e"]);
    }

    #[test]
    fn only_the_level_has_a_colour() {
        let findings = [Finding::new(FindingLevel::Danger, "a", "b", "c")
            .why("d")
            .remedy("e")];
        let report = |accepted: &[String]| Report::new(findings.to_vec(), accepted);
        let plain = "danger   a (b): c\n         why: d\n         fix: e\n";
        assert_eq!(
            report(&[]).text(false),
            format!("{plain}1 danger, 0 warnings, 0 unknown, 0 ok")
        );
        assert!(
            report(&[])
                .text(true)
                .starts_with("\x1b[1;31mdanger  \x1b[0m a (b)")
        );
        let accepted = report(&["a", "x"].map(str::to_owned));
        assert_eq!(
            accepted.text(true),
            plain.replace("danger  ", "accepted")
                + "0 dangers, 0 warnings, 0 unknown, 0 ok, 1 accepted"
        );
        assert_eq!(accepted.json()["dangers"], 0);
        let names = ["a", "x"].map(str::to_owned);
        assert_eq!(accepted.unused(&names).collect::<Vec<_>>(), ["x"]);
    }
}
