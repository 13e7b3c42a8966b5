//! `list`: the held locks of the store.

use crate::arguments::ListArguments;
use crate::exit::Failure;
use crate::output;
use crate::rows::{self, Found, ReaderRows, Row};

/// Shows the held locks whose names match.
pub(crate) fn list(arguments: &ListArguments) -> Result<u8, Failure> {
    let clients = arguments.store.clients()?;
    let mut found = Found::default();
    let outcome = rows::find(&clients, &arguments.pattern, &arguments.limit, &mut found);
    if arguments.json {
        let lines: String = found.rows.iter().map(|row| Row::json(row) + "\n").collect();
        output::write(lines.as_bytes())?;
    } else if outcome.is_ok() || !found.rows.is_empty() {
        output::line(&rows::table(&found.rows, ReaderRows::Last))?;
    }
    if found.is_cut {
        let limit = arguments.limit.locks;
        output::report(format_args!(
            "there are more than {limit}: give a pattern, or --limit"
        ));
    }
    outcome.map(|()| 0)
}
