//! Writes the tables of `benches/NOTES.md` between marks. The text outside the marks is written by
//! hand and is not changed.

use super::Scale;
use super::goals::{Verdict, verdicts};
use super::summary::{Spread, Summary};
use std::fmt::Write;
use std::path::Path;

/// The two lines in a document between which generated text is written.
#[derive(Clone, Copy)]
pub(super) struct Marks(pub(super) &'static str, pub(super) &'static str);

pub(super) const MEASURED: Marks = Marks(
    "<!-- measured: written by the benchmarks -->",
    "<!-- end of what was measured -->",
);
pub(super) const COUNTED: Marks = Marks(
    "<!-- counted: written by the benchmarks' `instructions` -->",
    "<!-- end of what was counted -->",
);

/// Returns all tables, as Markdown.
pub(super) fn tables(summaries: &[Summary<'_>], scale: Scale) -> String {
    let mut text = String::from(
        "## Goals\n\n| what | goal | median | least - most | met |\n|---|---|---|---|---|\n",
    );
    for verdict in verdicts(summaries) {
        let (begin, rest) = goal(&verdict);
        line(&mut text, format_args!("{begin}{rest}"));
    }
    for summary in summaries {
        table(&mut text, summary);
    }
    if scale == Scale::Quick {
        text.push_str("\nFrom a quick run (`--quick`): short turns, few rounds, fewer locks.\n");
    }
    text
}

/// Returns a line of the table of goals in two parts: the goal, by which the line is found again,
/// and the measured figures.
fn goal(verdict: &Verdict) -> (String, String) {
    let Spread {
        median,
        least,
        most,
    } = verdict.measured;
    let (median, least, most) = (short(median), short(least), short(most));
    let met = verdict
        .met
        .map_or("-", |met| if met { "yes" } else { "**no**" });
    let begin = format!("| {} | {} | ", verdict.what, verdict.bound);
    (begin, format!("{median} | {least} - {most} | {met} |"))
}

/// Replaces the tables of these workloads in the notes, and the lines of their goals.
pub(super) fn update(notes: &Path, summaries: &[Summary<'_>]) {
    let Marks(begin, end) = MEASURED;
    let old = std::fs::read_to_string(notes).expect("notes with all tables");
    let (_, rest) = old.split_once(begin).expect("notes with all tables");
    let (old, _) = rest.split_once(end).expect("notes with all tables");
    let mut sections: Vec<String> = old
        .trim()
        .split("\n## ")
        .map(|section| section.trim_end().to_owned())
        .collect();
    for summary in summaries {
        let mut fresh = String::new();
        table(&mut fresh, summary);
        let fresh = fresh.trim().trim_start_matches("## ").to_owned();
        let title = format!("{}\n", summary.work.title);
        match sections
            .iter_mut()
            .find(|section| section.starts_with(&title))
        {
            Some(known) => *known = fresh,
            None => sections.push(fresh),
        }
    }
    let mut goals: Vec<_> = sections[0].lines().map(str::to_owned).collect();
    for verdict in verdicts(summaries) {
        let (begin, rest) = goal(&verdict);
        match goals.iter().position(|line| line.starts_with(&begin)) {
            Some(known) => goals[known] = begin + &rest,
            // A new goal is added after the last one.
            None => {
                let last = goals.iter().rposition(|line| line.starts_with('|'));
                goals.insert(last.map_or(goals.len(), |last| last + 1), begin + &rest);
            }
        }
    }
    sections[0] = goals.join("\n");
    rewrite(notes, MEASURED, &(sections.join("\n\n## ") + "\n"));
}

fn table(text: &mut String, summary: &Summary<'_>) {
    let work = summary.work;
    let heads: Vec<_> = work.metrics.iter().map(|(_, head)| *head).collect();
    line(text, format_args!("\n## {}\n", work.title));
    let left_out = match work.left_out.join(", ") {
        none if none.is_empty() => none,
        names => format!(" Left out on request: {names}."),
    };
    line(
        text,
        format_args!(
            "{} rounds; least and most in brackets.{left_out}\n",
            work.rounds
        ),
    );
    line(text, format_args!("| | {} | ratio |", heads.join(" | ")));
    line(
        text,
        format_args!("|---{}|---|", "|---".repeat(heads.len())),
    );
    let first = work.columns[0].name;
    for column in summary.columns() {
        let figure = |(metric, _): &(&str, &str)| {
            summary
                .figure(column, metric)
                .map_or("-".to_owned(), |spread| short(spread.median))
        };
        let figures: Vec<_> = work.metrics.iter().map(figure).collect();
        let ratio = summary.ratio(column, first, work.metrics[0].0);
        let ratio = ratio.map_or(
            "-".to_owned(),
            |Spread {
                 median,
                 least,
                 most,
             }| { format!("{} ({} - {})", short(median), short(least), short(most)) },
        );
        line(
            text,
            format_args!("| {column} | {} | {ratio} |", figures.join(" | ")),
        );
    }
}

/// Formats a figure with about three significant digits; from 100 to a million, as a whole number.
pub(super) fn short(figure: f64) -> String {
    match figure.abs() {
        0.0 => "0".to_owned(),
        size if size >= 1e6 => format!("{:.2} M", figure / 1e6),
        size if size >= 100.0 => {
            let digits = format!("{figure:.0}");
            let split = digits.len().saturating_sub(3);
            if split == 0 || figure < 0.0 {
                digits
            } else {
                format!("{},{}", &digits[..split], &digits[split..])
            }
        }
        size if size >= 10.0 => format!("{figure:.1}"),
        size if size >= 0.1 => format!("{figure:.2}"),
        _ => format!("{figure:.4}"),
    }
}

fn line(text: &mut String, what: std::fmt::Arguments<'_>) {
    writeln!(text, "{what}").expect("a String takes everything");
}

/// Writes the tables between the marks, or at the end of a document without these marks.
pub(super) fn rewrite(document: &Path, Marks(begin, end): Marks, tables: &str) {
    let old = std::fs::read_to_string(document).unwrap_or_default();
    let (head, rest) = old.split_once(begin).unwrap_or((&old, ""));
    let tail = rest.split_once(end).map_or("\n", |(_, tail)| tail);
    let new = format!("{head}{begin}\n\n{tables}\n{end}{tail}");
    std::fs::write(document, new).unwrap_or_else(|error| panic!("{}: {error}", document.display()));
}
