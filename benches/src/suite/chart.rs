//! The chart: rates of lock and unlock of all libraries on a linear axis, for each number of
//! threads.

use super::figures::spread;
use super::notes::short;
use serde_json::Value;
use std::fmt::Write;

const WIDTH: f64 = 900.0;
/// The x coordinate at which the bars begin.
const LEFT: f64 = 210.0;
/// The x coordinate at which the axis ends.
const RIGHT: f64 = 860.0;
const BAR: f64 = 14.0;
/// The rate at the end of the axis, in lock and unlock pairs per second. Its lines are [`STEP`]
/// apart.
const LONGEST: f64 = 120_000.0;
const STEP: f64 = 20_000.0;

const GROUPS: [(&str, &str); 4] = [
    ("own-1", "1 thread"),
    ("own-8", "8 threads"),
    ("own-32", "32 threads"),
    ("own-128", "128 threads"),
];

/// A colour, and its meaning in the legend.
type Family = (&'static str, &'static str);

const OURS: Family = ("#2a78b5", "distlock");
const RUST: Family = ("#e0a030", "other Rust libraries");
const OTHERS: Family = ("#a3adb8", "libraries of other languages");

/// The bars of each group: the column of the figures, its name in the chart, and its family.
const BARS: [(&str, &str, Family); 9] = [
    ("ours-drop", "distlock, guards dropped", OURS),
    ("ours", "distlock, unlock()", OURS),
    ("rslock", "rslock (asynchronous)", RUST),
    ("rlock", "rlock (asynchronous)", RUST),
    ("rlock-sync", "rlock, blocking", RUST),
    ("redlock", "redlock (Node.js)", OTHERS),
    ("redsync", "redsync (Go)", OTHERS),
    ("redisson", "Redisson (Java)", OTHERS),
    ("redis-py", "redis-py (Python)", OTHERS),
];

/// Draws the chart from the lines of figures, as SVG.
pub(super) fn draw(figures: &[Value]) -> String {
    let (mut body, mut y) = (String::new(), 62.0);
    legend(&mut body);
    let mut bars = String::new();
    let top = y + 18.0;
    y = top + 4.0;
    for (work, title) in GROUPS {
        y += 16.0;
        text(&mut bars, (10.0, y), "bold", "start", title);
        y += 6.0;
        for (column, name, (colour, _)) in BARS {
            let Some([middle, least, most]) = spread(figures, work, column, "rate") else {
                continue;
            };
            text(&mut bars, (20.0, y + 11.0), "normal", "start", name);
            bar(&mut bars, y, colour, [middle, least, most]);
            y += BAR + 2.0;
        }
    }
    axis(&mut body, top, y + 4.0);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {:.0}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}{bars}</svg>\n",
        y + 14.0
    )
}

fn legend(body: &mut String) {
    add(
        body,
        format_args!(
            r#"<text x="10" y="20" font-size="15" font-weight="bold">Lock and unlock, pairs a second on one Redis server: longer is better</text>"#
        ),
    );
    let mut x = 10.0;
    for ((colour, name), width) in [(OURS, 80.0), (RUST, 150.0), (OTHERS, 190.0)] {
        add(
            body,
            format_args!(r#"<rect x="{x}" y="32" width="12" height="12" fill="{colour}"/>"#),
        );
        text(body, (x + 17.0, 42.0), "normal", "start", name);
        x += width;
    }
    add(
        body,
        format_args!(
            r##"<line x1="{x}" x2="{}" y1="38" y2="38" stroke="#222"/>"##,
            x + 20.0
        ),
    );
    let line = "slowest to fastest turn; the bar ends at the median";
    text(body, (x + 26.0, 42.0), "normal", "start", line);
    text(
        body,
        (10.0, 60.0),
        "normal",
        "start",
        "Each thread has a lock of its own.",
    );
}

fn axis(body: &mut String, top: f64, bottom: f64) {
    let mut rate = 0.0;
    while rate <= LONGEST {
        let x = place(rate);
        add(
            body,
            format_args!(
                r##"<line x1="{x:.1}" x2="{x:.1}" y1="{top:.0}" y2="{bottom:.0}" stroke="#ddd"/>"##
            ),
        );
        text(body, (x, top - 4.0), "normal", "middle", &short(rate));
        rate += STEP;
    }
}

fn bar(body: &mut String, y: f64, colour: &str, [middle, least, most]: [f64; 3]) {
    let (width, half) = (place(middle) - LEFT, y + BAR / 2.0);
    add(
        body,
        format_args!(
            r#"<rect x="{LEFT}" y="{y:.0}" width="{width:.1}" height="{BAR}" fill="{colour}"/>"#
        ),
    );
    let (least, most) = (place(least), place(most));
    add(
        body,
        format_args!(
            r##"<line x1="{least:.1}" x2="{most:.1}" y1="{half:.0}" y2="{half:.0}" stroke="#222"/>"##
        ),
    );
    text(
        body,
        (LEFT - 6.0, y + 11.0),
        "normal",
        "end",
        &short(middle),
    );
}

fn place(rate: f64) -> f64 {
    LEFT + rate.min(LONGEST) / LONGEST * (RIGHT - LEFT)
}

fn text(body: &mut String, (x, y): (f64, f64), weight: &str, anchor: &str, what: &str) {
    add(
        body,
        format_args!(
            r#"<text x="{x:.0}" y="{y:.0}" font-weight="{weight}" text-anchor="{anchor}">{what}</text>"#
        ),
    );
}

fn add(body: &mut String, what: std::fmt::Arguments<'_>) {
    writeln!(body, "{what}").expect("a String takes everything");
}
