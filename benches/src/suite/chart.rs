//! The chart: for each table a group of bars, each the first metric of a column divided by that of
//! the first column, on a logarithmic scale, with the spread as a line.

use super::page::short;
use serde_json::Value;
use std::fmt::Write;

const WIDTH: f64 = 900.0;
const LEFT: f64 = 150.0;
const RIGHT: f64 = 820.0;
const BAR: f64 = 16.0;
/// The scale goes from a ten-thousandth to a hundredfold.
const DECADES: (f64, f64) = (-4.0, 2.0);

/// A group of bars.
pub(crate) struct Group {
    /// The work that it shows.
    pub(super) work: String,
    pub(super) title: String,
    /// What of it is shown, and how that is called.
    pub(super) metric: (&'static str, &'static str),
}

/// As SVG, from the lines of figures.
pub(super) fn draw(groups: &[Group], figures: &[Value]) -> String {
    let (mut body, mut y) = (String::new(), 30.0);
    for Group {
        work,
        title,
        metric: (metric, unit),
    } in groups
    {
        let shown = |line: &&Value| line["work"] == work.as_str() && line["metric"] == *metric;
        let lines: Vec<_> = figures.iter().filter(shown).collect();
        if lines.len() < 2 {
            continue;
        }
        y += 14.0;
        text(&mut body, (10.0, y), "bold", &format!("{title} ({unit})"));
        y += 8.0;
        for line in lines {
            bar(&mut body, line, y);
            y += BAR + 2.0;
        }
        y += 8.0;
    }
    let mut grid = String::new();
    let first = DECADES.0 as i32;
    for decade in first..=DECADES.1 as i32 {
        let (x, value) = (place(10_f64.powi(decade)), 10_f64.powi(decade));
        let colour = if decade == 0 { "#444" } else { "#ddd" };
        add(
            &mut grid,
            format_args!(
                r#"<line x1="{x:.1}" x2="{x:.1}" y1="22" y2="{y:.0}" stroke="{colour}"/>"#
            ),
        );
        text(&mut grid, (x - 10.0, 16.0), "normal", &value.to_string());
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {:.0}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{grid}{body}</svg>\n",
        y + 10.0
    )
}

fn bar(body: &mut String, line: &Value, y: f64) {
    let number = |of: &str, at: usize| line[of][at].as_f64();
    let [Some(median), Some(least), Some(most)] = [0, 1, 2].map(|at| number("ratio", at)) else {
        return;
    };
    let column = line["column"].as_str().unwrap_or_default();
    let colour = if column.starts_with("ours") {
        "#2a78b5"
    } else {
        "#b0b8c0"
    };
    let (from, to) = (place(1.0).min(place(median)), place(1.0).max(place(median)));
    let (width, middle) = ((to - from).max(1.0), y + BAR / 2.0);
    add(
        body,
        format_args!(
            r#"<rect x="{from:.1}" y="{y:.0}" width="{width:.1}" height="{BAR}" fill="{colour}"/>"#
        ),
    );
    let (least, most) = (place(least), place(most));
    add(
        body,
        format_args!(
            r##"<line x1="{least:.1}" x2="{most:.1}" y1="{middle:.0}" y2="{middle:.0}" stroke="#222"/>"##
        ),
    );
    text(body, (10.0, y + 12.0), "normal", column);
    let label = number("median_least_most", 0).map_or(String::new(), short);
    text(body, (RIGHT + 8.0, y + 12.0), "normal", &label);
}

fn place(ratio: f64) -> f64 {
    let decade = ratio.max(1e-9).log10().clamp(DECADES.0, DECADES.1);
    LEFT + (decade - DECADES.0) / (DECADES.1 - DECADES.0) * (RIGHT - LEFT)
}

fn text(body: &mut String, (x, y): (f64, f64), weight: &str, what: &str) {
    add(
        body,
        format_args!(r#"<text x="{x:.0}" y="{y:.0}" font-weight="{weight}">{what}</text>"#),
    );
}

fn add(body: &mut String, what: std::fmt::Arguments<'_>) {
    writeln!(body, "{what}").expect("a String takes everything");
}
