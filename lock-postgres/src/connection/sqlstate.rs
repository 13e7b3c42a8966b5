//! What the errors of a server mean for a request, by their SQLSTATE.

use lock_core::backend::Failure;
use lock_core::{Error, ErrorKind};
use postgres::error::{DbError, SqlState};
use std::error::Error as _;
use std::io;

/// What is known of a request that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Meaning {
    /// The server rolled the statement back; it may succeed later, perhaps on another server.
    Later(&'static str),
    /// The server is about to end the connection.
    Ending(&'static str),
    /// A person must correct something.
    Wrong(&'static str),
    /// The name is in use for another kind of lock.
    OtherUse,
}

/// The meanings by the beginning of the SQLSTATE; the first that fits counts.
const MEANINGS: &[(&str, Meaning)] = &[
    ("DL001", Meaning::OtherUse),
    (
        "25006",
        Meaning::Later("it takes no writes: it is a standby, or was made read-only"),
    ),
    ("40", Meaning::Later("another transaction was in the way")),
    (
        "55P03",
        Meaning::Later(
            "another transaction holds the row of the lock: see pg_stat_activity for who waits \
             inside a transaction, or for a standby",
        ),
    ),
    ("57014", Meaning::Later("the statement was cancelled")),
    ("53100", Meaning::Later("its disk is full")),
    ("53200", Meaning::Later("it has no memory left")),
    (
        "53300",
        Meaning::Ending(
            "it has no connection left: raise max_connections, or lower `pool=` in the clients",
        ),
    ),
    ("53", Meaning::Later("it lacks a resource")),
    ("57P", Meaning::Ending("it shuts down, or starts")),
    (
        "08P01",
        Meaning::Wrong(
            "it refuses a setting of the connection: a pooler takes no `options=` and no \
             `synchronous_commit=`",
        ),
    ),
    ("08", Meaning::Ending("the connection failed")),
    (
        "22001",
        Meaning::Wrong("the name is too long for the table of ShedLock, which has 64 characters"),
    ),
    ("2201B", Meaning::Wrong("the pattern is not valid")),
    (
        "28",
        Meaning::Wrong("it refuses this user: check the user, the password and pg_hba.conf"),
    ),
    ("3D000", Meaning::Wrong("it has no such database")),
    (
        "42501",
        Meaning::Wrong(
            "this role lacks a right: `distlock postgres init --dry-run` prints the GRANT",
        ),
    ),
    (
        "42",
        Meaning::Wrong(
            "the tables or functions of distlock are missing, or of another version: run \
             `distlock postgres init`",
        ),
    ),
    (
        "3F000",
        Meaning::Wrong("the schema of distlock is missing: run `distlock postgres init`"),
    ),
];

fn meaning(state: &str) -> Meaning {
    let mut meanings = MEANINGS.iter();
    let found = meanings.find(|(start, _)| state.starts_with(start));
    found.map_or(Meaning::Later("it refused the statement"), |(_, it)| *it)
}

/// Returns whether the server has rolled the statement back because of another transaction.
pub(super) fn is_conflict(error: &postgres::Error) -> bool {
    let state = error.code().map(SqlState::code);
    state.is_some_and(|it| it.starts_with("40"))
}

/// Returns whether the connection can be used after this error. Not if the server takes no writes:
/// then another one must be found.
pub(super) fn leaves_usable(error: &postgres::Error) -> bool {
    error.as_db_error().is_some_and(|reported| {
        let is_read_only = *reported.code() == SqlState::READ_ONLY_SQL_TRANSACTION;
        !is_fatal(reported) && !is_read_only
    })
}

/// Returns whether the server ends the connection after this error, at whatever stage the statement
/// was.
fn is_fatal(error: &DbError) -> bool {
    matches!(error.severity(), "FATAL" | "PANIC")
}

/// Returns the failure of a request. `has_written`: a part of the request was written.
pub(super) fn failure(error: &postgres::Error, server: &str, has_written: bool) -> Failure {
    let unknown = |error| match has_written {
        true => Failure::Unknown(error),
        false => Failure::NotSent(error),
    };
    let Some(reported) = error.as_db_error() else {
        return unknown(broken(error, server, has_written));
    };
    let state = reported.code().code();
    let text = |why: &str| {
        let message = reported.message();
        format!("{server}: {why} ({message}; SQLSTATE {state})")
    };
    match meaning(state) {
        Meaning::OtherUse => Failure::Refused(Error::new(
            ErrorKind::ForeignFormat,
            format!(
                "the name is in use for {}: choose another one",
                reported.message()
            ),
        )),
        Meaning::Wrong(why) => Failure::Refused(Error::configuration(text(why))),
        Meaning::Later(why) if !is_fatal(reported) => {
            Failure::Refused(Error::unavailable(text(why)))
        }
        Meaning::Later(why) | Meaning::Ending(why) => unknown(Error::unavailable(text(why))),
    }
}

/// Returns the error of a connection that failed without an error of the server.
fn broken(error: &postgres::Error, server: &str, has_written: bool) -> Error {
    let mut source = error.source();
    let (mut is_late, mut is_io) = (false, has_written || error.is_closed());
    while let Some(cause) = source {
        let io = cause.downcast_ref::<io::Error>();
        // A certificate that is refused, or a server without TLS, is no fault of the connection.
        let is_refusal = |it: &&io::Error| {
            matches!(it.kind(), io::ErrorKind::Other | io::ErrorKind::InvalidData)
        };
        is_io |= io.is_some_and(|it| !is_refusal(&it));
        is_late |= io.is_some_and(|it| it.kind() == io::ErrorKind::TimedOut);
        source = cause.source();
    }
    let text = match is_late {
        true => format!("{server} did not answer in time"),
        false => format!("the connection to {server} failed: {}", chain(error)),
    };
    // What is not about the connection is about what was asked for, as a password that is missing.
    match is_io {
        true => Error::unavailable(text),
        false => Error::configuration(text),
    }
}

/// Returns an error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    let texts = std::iter::once(error)
        .chain(causes)
        .map(ToString::to_string);
    texts.collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_their_meanings() {
        let is_later = |state| matches!(meaning(state), Meaning::Later(_));
        let is_ending = |state| matches!(meaning(state), Meaning::Ending(_));
        let is_wrong = |state| matches!(meaning(state), Meaning::Wrong(_));
        for state in [
            "25006", "40001", "40P01", "55P03", "57014", "53100", "XX000",
        ] {
            assert!(is_later(state), "{state}");
        }
        for state in ["53300", "57P01", "57P02", "57P03", "57P05", "08006"] {
            assert!(is_ending(state), "{state}");
        }
        for state in [
            "28P01", "28000", "3D000", "3F000", "42501", "42P01", "42883",
        ] {
            assert!(is_wrong(state), "{state}");
        }
        assert_eq!(meaning("DL001"), Meaning::OtherUse);
    }

    #[test]
    fn each_meaning_can_be_found() {
        for (at, (start, own)) in MEANINGS.iter().enumerate() {
            let earlier = MEANINGS[..at].iter().find(|(it, _)| start.starts_with(it));
            assert!(earlier.is_none(), "{start} {own:?} is behind {earlier:?}");
        }
    }
}
