//! Reads the only argument of the small examples.

use std::process::exit;

/// Returns the URL of the store that the example was given, or `otherwise` without an argument.
/// Exits with a message if the arguments are any others.
pub(crate) fn given_or(otherwise: &str) -> String {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next(), arguments.next()) {
        (None, _) => otherwise.to_owned(),
        (Some(url), None) if !url.starts_with('-') => url,
        _ => {
            eprintln!(
                "the only argument is the URL of the store, as in redis://127.0.0.1:6379; without \
                 it the example uses {otherwise}"
            );
            exit(64)
        }
    }
}
