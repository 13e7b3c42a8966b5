//! What stands under a key instead of a lock of this format, said in the error.

use crate::link::{Ask, Request};
use crate::reply::{Reply, ServerError};
use lock_core::Moment;
use lock_core::backend::Failure;

/// The failure, with what the server says is under the key, if it says so by then.
pub(super) fn named(link: &mut dyn Ask, failure: Failure, key: &str, by: Moment) -> Failure {
    if !failure.error().is_foreign_format() {
        return failure;
    }
    // A hash or a counter that was looked into is named already.
    let is_named = ServerError::behind(failure.error())
        .is_some_and(|answer| answer.code == "WRONGTYPE" && answer.detail.starts_with("the "));
    if is_named {
        return failure;
    }
    let Some(found) = kind(link, key, by) else { return failure };
    match failure {
        Failure::Refused(error) => Failure::Refused(error.adding(&found)),
        Failure::Unknown(error) => Failure::Unknown(error.adding(&found)),
        other => other,
    }
}

/// What is there, by its type, and whose lock it might be.
fn kind(link: &mut dyn Ask, key: &str, by: Moment) -> Option<String> {
    let Reply::Text(kind) = link.call(&Request(&[&[b"TYPE", key.as_bytes()]]), by).ok()? else {
        return None;
    };
    Some(match kind.as_str() {
        "none" => "nothing is under the key, so it is what stands beside it".to_owned(),
        "hash" => "under the key is a hash, as locks are in `format=redisson`".to_owned(),
        "string" => {
            "under the key is a string, as locks are in `format=token` and in those of the past"
                .to_owned()
        }
        other => format!("under the key is a {other}, which is a lock in no format"),
    })
}
