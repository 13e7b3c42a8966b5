//! The tables of `docs/PERFORMANCE.md`, from the recorded figures. The text around the tables is
//! written by hand and is not changed.

use super::figures::median;
use super::notes::{Marks, short};
use serde_json::Value;

pub(super) const FILE: &str = "PERFORMANCE.md";

/// A function that returns a table, as Markdown, from the lines of figures.
type Table = fn(&[Value]) -> String;

/// The tables of the page, each with its marks.
pub(super) const TABLES: [(Marks, Table); 3] = [
    (
        Marks(
            "<!-- libraries: written by the benchmarks -->",
            "<!-- end of libraries -->",
        ),
        libraries,
    ),
    (
        Marks(
            "<!-- cost: written by the benchmarks -->",
            "<!-- end of cost -->",
        ),
        cost,
    ),
    (
        Marks(
            "<!-- scale: written by the benchmarks -->",
            "<!-- end of scale -->",
        ),
        scale,
    ),
];

/// A row of the table of libraries.
struct Row {
    title: &'static str,
    work: &'static str,
    metric: &'static str,
    ours: &'static str,
    /// True for a rate, false for a time.
    more_is_better: bool,
}

const fn rate(
    title: &'static str,
    [work, metric, ours]: [&'static str; 3],
    more_is_better: bool,
) -> Row {
    Row {
        title,
        work,
        metric,
        ours,
        more_is_better,
    }
}

const ROWS: [Row; 15] = [
    rate("1 thread, pairs/s", ["own-1", "rate", "ours"], true),
    rate("8 threads, pairs/s", ["own-8", "rate", "ours"], true),
    rate("32 threads, pairs/s", ["own-32", "rate", "ours"], true),
    rate("128 threads, pairs/s", ["own-128", "rate", "ours"], true),
    rate(
        "128 threads, guards dropped, pairs/s",
        ["own-128", "rate", "ours-drop"],
        true,
    ),
    rate(
        "one lock, 8 threads of a process: changes of owner/s",
        ["contended", "changes_per_s", "ours"],
        true,
    ),
    rate(
        "one lock, 8 processes of 4 threads: changes of owner/s",
        ["processes", "changes_per_s", "ours"],
        true,
    ),
    rate(
        "one lock, 8 processes of 4 threads: changes of process/s",
        ["processes", "process_changes_per_s", "ours"],
        true,
    ),
    rate(
        "one fair lock, 8 processes of 1 thread: changes of process/s",
        ["order", "process_changes_per_s", "ours-fair"],
        true,
    ),
    rate(
        "`unlock()` to the grant in another process, us",
        ["handoff", "handoff_p50_us", "ours"],
        false,
    ),
    rate(
        "one read-write lock, 8 readers, pairs/s",
        ["kind-read", "rate", "ours"],
        true,
    ),
    rate(
        "8 writers of read-write locks, pairs/s",
        ["kind-write", "rate", "ours"],
        true,
    ),
    rate(
        "one semaphore of 100 permits, 8 threads, pairs/s",
        ["kind-permits", "rate", "ours"],
        true,
    ),
    rate(
        "8 threads, fair locks, pairs/s",
        ["kind-fair", "rate", "ours"],
        true,
    ),
    rate(
        "nested lock and unlock, pairs/s",
        ["nested", "rate", "ours"],
        true,
    ),
];

/// The other libraries: the column of the figures, and the name for readers.
const OTHERS: [(&str, &str); 6] = [
    ("redisson", "Redisson"),
    ("rslock", "rslock"),
    ("rlock", "rlock"),
    ("redlock", "redlock"),
    ("redsync", "redsync"),
    ("redis-py", "redis-py"),
];

/// Stands for a figure that was not measured.
const NONE: &str = "-";

fn head(cells: &[&str]) -> String {
    format!(
        "| {} |\n|{}\n",
        cells.join(" | "),
        "---|".repeat(cells.len())
    )
}

fn libraries(figures: &[Value]) -> String {
    let mut cells = vec!["", "times better than Redisson", "distlock"];
    cells.extend(OTHERS.map(|(_, name)| name));
    let row = |row: &Row| {
        let of = |column| median(figures, row.work, column, row.metric);
        let ours = of(row.ours);
        let is_ahead = |other: f64| ours.is_some_and(|ours| (other > ours) == row.more_is_better);
        let ratio = ours.zip(of("redisson")).map(|(ours, other)| {
            if row.more_is_better {
                ours / other
            } else {
                other / ours
            }
        });
        let shown = |figure: Option<f64>| figure.map_or_else(|| NONE.to_owned(), short);
        let others = OTHERS.map(|(column, _)| match of(column) {
            Some(other) if is_ahead(other) => format!("**{}**", short(other)),
            other => shown(other),
        });
        let ratio = ratio.map_or_else(|| NONE.to_owned(), times);
        format!(
            "| {} | {ratio} | {} | {} |\n",
            row.title,
            shown(ours),
            others.join(" | ")
        )
    };
    head(&cells) + &ROWS.iter().map(row).collect::<String>()
}

/// Formats a ratio with one decimal, or without decimals from 10 on.
fn times(ratio: f64) -> String {
    if ratio < 10.0 {
        format!("{ratio:.1}")
    } else {
        format!("{ratio:.0}")
    }
}

fn cost(figures: &[Value]) -> String {
    const COLUMNS: [(&str, &str); 9] = [
        ("ours", "distlock"),
        ("ours-drop", "distlock, guards dropped"),
        ("rslock", "rslock"),
        ("rlock", "rlock"),
        ("rlock-sync", "rlock, blocking"),
        ("redlock", "redlock"),
        ("redsync", "redsync"),
        ("redisson", "Redisson"),
        ("redis-py", "redis-py"),
    ];
    let of = |column: &str, metric| median(figures, "own-128", column, metric);
    let both = |column: &str| Some((of(column, "client_us")?, of(column, "server_us")?));
    let ours = both("ours").map(|(client, server)| client + server);
    let row = |(column, name): (&str, &str)| {
        let ((client, server), ours) = both(column).zip(ours)?;
        let ratio = times((client + server) / ours);
        Some(format!(
            "| {name} | {ratio} | {} | {} |\n",
            short(client),
            short(server)
        ))
    };
    let rows: String = COLUMNS.into_iter().filter_map(row).collect();
    head(&["", "times distlock's", "client, us", "server, us"]) + &rows
}

fn scale(figures: &[Value]) -> String {
    const COLUMNS: [(&str, &str); 2] = [("ours", "distlock"), ("redisson", "Redisson")];
    const METRICS: [&str; 6] = [
        "client_s_per_min",
        "server_net_s_per_min",
        "ping_p99_us",
        "threads",
        "memory",
        "lost",
    ];
    let mut rows = String::new();
    for (work, number) in [
        ("held-1000", "1,000"),
        ("held-10000", "10,000"),
        ("held-100000", "100,000"),
    ] {
        for (column, name) in COLUMNS {
            let of = |metric| median(figures, work, column, metric);
            let cells = METRICS.map(|metric| match of(metric) {
                // Small counts, as of threads, without decimals. Redisson's memory is not recorded,
                // because it is that of a heap.
                Some(figure) if figure.fract() == 0.0 && figure < 100.0 => figure.to_string(),
                Some(figure) => short(figure),
                None => NONE.to_owned(),
            });
            rows += &format!("| {number} | {name} | {} |\n", cells.join(" | "));
        }
    }
    head(&[
        "locks held",
        "",
        "client, s/min",
        "server, s/min",
        "PING p99 of another client, us",
        "threads",
        "bytes for each",
        "lost",
    ]) + &rows
}

#[cfg(test)]
mod tests {
    use super::{FILE, Marks, TABLES};
    use crate::suite::{chart, figures};
    use std::path::Path;

    fn docs() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs"))
    }

    #[test]
    fn page_has_the_recorded_figures() {
        let page = std::fs::read_to_string(docs().join(FILE)).unwrap();
        let figures = figures::read(docs());
        for (Marks(begin, end), table) in TABLES {
            let (_, rest) = page.split_once(begin).expect(begin);
            let (on_page, _) = rest.split_once(end).expect(end);
            assert_eq!(on_page.trim(), table(&figures).trim(), "run `draw`");
        }
    }

    #[test]
    fn chart_has_the_recorded_figures() {
        let chart = std::fs::read_to_string(docs().join("performance.svg")).unwrap();
        assert!(
            chart == chart::draw(&figures::read(docs())),
            "docs/performance.svg is not drawn from docs/performance.jsonl: run `draw`"
        );
    }
}
