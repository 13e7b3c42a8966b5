//! Describes the value under a key if that value is no lock of this format, as a hint in the error.

use crate::connection::{ConnectionLike, Reply, Request, ServerError, with_server_kind};
use lock_core::Moment;
use lock_core::backend::Failure;

/// The length in bytes of the longest text that can be a lock. A longer text is not read. The
/// scripts of `token` use the same number.
pub(crate) const LONGEST_TEXT: i64 = 4096;

/// Adds a hint to the failure, if the server answers by `by`. For a foreign format, the hint
/// describes the value under the key, unless the failure names that value already. Other failures
/// are passed to `with_server_kind`.
pub(crate) fn with_found_value(
    link: &mut dyn ConnectionLike,
    failure: Failure,
    key: &str,
    by: Moment,
) -> Failure {
    if !failure.error().is_foreign_format() {
        return with_server_kind(link, failure, by);
    }
    // An error of a script that has looked into a hash or a counter names the value already.
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

/// Describes the value by its type, and by the formats that have locks of this type.
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
        "string" => "under the key is a string, as a semaphore is; in other wire formats, such as \
             `format=token`, locks are strings, too"
            .to_owned(),
        other => format!("under the key is a {other}, which is a lock in no format"),
    })
}
