//! What stands under a key instead of a lock of this format, said in the error.

use crate::link::{Ask, Request};
use crate::reply::{Reply, ServerError};
use lock_core::backend::Failure;
use lock_core::{Error, Moment};

/// The failure, with what the server says is under the key, if it says so by then.
pub(super) fn named(link: &mut dyn Ask, failure: Failure, key: &str, by: Moment) -> Failure {
    if !failure.error().is_foreign_format() {
        return failure;
    }
    let Some(found) = kind(link, key, by) else { return failure };
    let name = |error: Error| {
        let named = Error::new(error.kind(), format!("{error}; under the key is {found}"));
        match ServerError::behind(&error) {
            Some(answer) => named.with_source(answer.clone()),
            None => named,
        }
    };
    match failure {
        Failure::Refused(error) => Failure::Refused(name(error)),
        Failure::Unknown(error) => Failure::Unknown(name(error)),
        other => other,
    }
}

/// What is there, by its type, and whose lock it might be.
fn kind(link: &mut dyn Ask, key: &str, by: Moment) -> Option<String> {
    let Reply::Text(kind) = link.call(&Request(&[&[b"TYPE", key.as_bytes()]]), by).ok()? else {
        return None;
    };
    Some(match kind.as_str() {
        "none" => "nothing".to_owned(),
        "hash" => "a hash, as locks are in `format=redisson`".to_owned(),
        "string" => "a string, as locks are in `format=token` and in those of the past".to_owned(),
        other => format!("a {other}, which is a lock in no format"),
    })
}
