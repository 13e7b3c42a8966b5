//! What stands under a key instead of a lock of this format, said in the error.

use crate::connection::{ConnectionLike, Reply, Request, ServerError, with_server_kind};
use lock_core::Moment;
use lock_core::backend::Failure;

/// No lock that is a text is longer, in bytes: what is, is not read. The scripts of `token` have
/// the same number.
pub(crate) const LONGEST_TEXT: i64 = 4096;

/// The failure, with what the server says is under the key, if it says so by then.
pub(crate) fn with_found_value(
    link: &mut dyn ConnectionLike,
    failure: Failure,
    key: &str,
    by: Moment,
) -> Failure {
    if !failure.error().is_foreign_format() {
        return with_server_kind(link, failure, by);
    }
    // A hash or a counter that was looked into is named already.
    let is_named = ServerError::behind(failure.error())
        .is_some_and(|answer| answer.code == "WRONGTYPE" && answer.detail.starts_with("the "));
    if is_named {
        return failure;
    }
    let Some(found) = what_is_there(link, key, by) else {
        return failure;
    };
    match failure {
        Failure::Refused(error) => Failure::Refused(error.with_hint(&found)),
        Failure::Unknown(error) => Failure::Unknown(error.with_hint(&found)),
        other => other,
    }
}

/// What is there, by its type, and whose lock it might be.
fn what_is_there(link: &mut dyn ConnectionLike, key: &str, by: Moment) -> Option<String> {
    let Reply::Text(kind) = link
        .call(&Request(&[&[b"TYPE", key.as_bytes()]]), by)
        .ok()?
    else {
        return None;
    };
    if kind == "string"
        && let Reply::Int(length) = link
            .call(&Request(&[&[b"STRLEN", key.as_bytes()]]), by)
            .ok()?
        && length > LONGEST_TEXT
    {
        return Some(format!(
            "under the key is a text of {length} bytes, which is no lock"
        ));
    }
    Some(match kind.as_str() {
        "none" => "nothing is under the key, so it is what stands beside it".to_owned(),
        "hash" => "under the key is a hash, as locks are in `format=redisson`".to_owned(),
        "string" => {
            "under the key is a string, as a semaphore is, and locks are in `format=token` and in \
             those of the past"
                .to_owned()
        }
        other => format!("under the key is a {other}, which is a lock in no format"),
    })
}
