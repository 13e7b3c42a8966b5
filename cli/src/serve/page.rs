//! The page, and what its script asks for.

use super::sample::{Board, State};
use crate::rows::Row;
use serde_json::json;
use std::time::SystemTime;

/// The page without its rows, which stand where `<!-- rows -->` is.
const PAGE: &str = include_str!("page.html");

/// The time that the strip of holders shows, in seconds.
const STRIP: f64 = 600.0;

/// Returns text that HTML shows as it is.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// Returns the page with the rows of the last sample, for browsers without scripts.
pub(super) fn page(board: &Board) -> String {
    let state = board.state();
    let row = |row: &Row| {
        let cells = row.cells_of_first_line();
        let cells = cells
            .iter()
            .map(|cell| format!("<td>{}</td>", escaped(cell)));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let rows: String = state.found.rows.iter().map(row).collect();
    PAGE.replace("<!-- status -->", &escaped(&status(&state)))
        .replace("<!-- rows -->", &rows)
}

/// Describes the sample.
fn status(state: &State) -> String {
    let age = state.age().map_or_else(
        || "no sample yet".to_owned(),
        |age| format!("sample of {:.1} s ago", age.as_secs_f64()),
    );
    let more = if state.found.is_cut {
        "; there are more locks than --limit"
    } else {
        ""
    };
    match &state.failure {
        Some(failure) => format!("{age}; the store fails: {failure}"),
        None => format!("{} locks, {age}{more}", state.found.rows.len()),
    }
}

/// Returns the sample as JSON, with the holders of the last ten minutes of each lock: for each the
/// name, and the beginning and the end in seconds before now.
pub(super) fn json(board: &Board) -> String {
    let state = board.state();
    let now = SystemTime::now();
    let ago = |time: SystemTime| {
        let ago = now.duration_since(time).unwrap_or_default().as_secs_f64();
        ((ago * 10.0).round() / 10.0).min(STRIP)
    };
    let rows = state.found.rows.iter().map(|row| {
        let holds = state.locks.get(&row.name.to_string());
        let strips = holds.into_iter().flat_map(|holds| &holds.strips);
        let strips: Vec<_> = strips
            .filter(|it| ago(it.to) < STRIP)
            .map(|it| json!([it.holder, ago(it.from), ago(it.to)]))
            .collect();
        let expired = holds.map_or(0, |it| it.expired);
        // A text, because its members have an order.
        format!(
            "{{\"lock\":{},\"cells\":{},\"holds\":{},\"expired\":{expired}}}",
            row.json(),
            json!(row.cells_of_first_line()),
            json!(strips),
        )
    });
    let rows: Vec<_> = rows.collect();
    format!(
        "{{\"status\":{},\"failed\":{},\"age\":{},\"locks\":[{}]}}",
        json!(status(&state)),
        state.failure.is_some(),
        json!(state.age().map(|it| it.as_secs_f64())),
        rows.join(",")
    )
}
