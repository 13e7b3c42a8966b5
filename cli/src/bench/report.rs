//! [`Figure`]: a measured result; as a table, as JSON and as a chart.

use super::times::Times;
use crate::output;
use serde_json::{Value as Json, json};
use std::fmt::Write;
use std::time::Duration;

/// The result of one workload.
pub(super) struct Figure {
    id: &'static str,
    what: String,
    count: u64,
    per_second: Option<f64>,
    p50: Option<Duration>,
    p99: Option<Duration>,
}

impl Figure {
    /// Creates a figure from durations.
    pub(super) fn of(id: &'static str, what: &str, times: &Times) -> Self {
        let (p50, p99) = (times.quantile(0.5), times.quantile(0.99));
        Self {
            id,
            what: what.to_owned(),
            count: times.count,
            per_second: None,
            p50,
            p99,
        }
    }

    /// Sets the rate: `count` operations in `time`.
    pub(super) fn rate(mut self, count: u64, time: Duration) -> Self {
        self.count = count;
        self.per_second = Some(count as f64 / time.as_secs_f64().max(1e-9));
        self
    }
}

/// Formats a duration in microseconds, milliseconds or seconds, by its size.
fn short(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds < 0.001 => format!("{:.0} us", seconds * 1e6),
        seconds if seconds < 1.0 => format!("{:.2} ms", seconds * 1e3),
        seconds => format!("{seconds:.2} s"),
    }
}

pub(super) fn table(figures: &[Figure]) -> String {
    let head = ["MEASURED", "PER SECOND", "P50", "P99"].map(str::to_owned);
    let none = || "-".to_owned();
    let row = |figure: &Figure| {
        let rate = figure
            .per_second
            .map_or_else(none, |rate| format!("{rate:.0}"));
        let [p50, p99] = [figure.p50, figure.p99].map(|time| time.map_or_else(none, short));
        [figure.what.clone(), rate, p50, p99]
    };
    output::aligned(
        &[head]
            .into_iter()
            .chain(figures.iter().map(row))
            .collect::<Vec<_>>(),
    )
}

pub(super) fn json(figures: &[Figure]) -> String {
    let micros = |time: Option<Duration>| time.map(|time| (time.as_secs_f64() * 1e6).round());
    let each = figures.iter().map(|figure| {
        json!({
            "id": figure.id,
            "what": figure.what.trim(),
            "count": figure.count,
            "per_second": figure.per_second.map(f64::round),
            "p50_us": micros(figure.p50),
            "p99_us": micros(figure.p99),
        })
    });
    json!({ "figures": each.collect::<Vec<Json>>() }).to_string()
}

const WIDTH: f64 = 760.0;
/// The positions at which the scales begin and end.
const LEFT: f64 = 270.0;
const RIGHT: f64 = 660.0;
const BAR: f64 = 16.0;

/// Draws the rates and, below the rates, the times from P50 to P99; as SVG. The scales are
/// logarithmic, and begin at 1 per second and at 1 us.
pub(super) fn chart(figures: &[Figure]) -> String {
    let (mut body, mut y) = (String::new(), 10.0);
    let rates = figures.iter().filter_map(|it| {
        let rate = it.per_second?;
        Some((it.what.trim(), 1.0, rate, format!("{rate:.0}")))
    });
    let times = figures.iter().filter_map(|it| {
        let [p50, p99] = [it.p50?, it.p99?];
        let [from, to] = [p50, p99].map(|time| time.as_secs_f64() * 1e6);
        Some((
            it.what.trim(),
            from,
            to,
            format!("{} .. {}", short(p50), short(p99)),
        ))
    });
    let groups: [(&str, Vec<_>); 2] = [
        ("per second", rates.collect()),
        ("time, P50 to P99", times.collect()),
    ];
    for (title, bars) in groups {
        y += 18.0;
        text(&mut body, 10.0, y, title);
        let most = bars
            .iter()
            .fold(10.0_f64, |most, (_, _, to, _)| most.max(*to));
        let place = |value: f64| LEFT + value.max(1.0).log10() / most.log10() * (RIGHT - LEFT);
        for (what, from, to, label) in bars {
            y += BAR + 4.0;
            let (from, to) = (place(from), place(to));
            let (width, top) = ((to - from).max(2.0), y - BAR + 4.0);
            // The texts contain no character that must be escaped.
            let bar = format_args!(
                r##"<rect x="{from:.1}" y="{top:.0}" width="{width:.1}" height="{BAR}" fill="#2a78b5"/>"##
            );
            writeln!(body, "{bar}").expect("a String takes everything");
            text(&mut body, 10.0, y, what);
            text(&mut body, to + 8.0, y, &label);
        }
        y += 10.0;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {:.0}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n",
        y + 10.0
    )
}

fn text(body: &mut String, x: f64, y: f64, what: &str) {
    writeln!(body, r#"<text x="{x:.0}" y="{y:.0}">{what}</text>"#)
        .expect("a String takes everything");
}
