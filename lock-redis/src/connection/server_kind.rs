//! Finds out if a server that does not know a command is a Sentinel whose address is in the URL of
//! a Redis server.

use super::{ConnectionLike, Request};
use crate::connection::{Reply, ServerError};
use lock_core::backend::Failure;
use lock_core::{Error, Moment};

/// Returns `failure` or, if the server is a Sentinel, an error that names the right URL instead.
/// Queries the server, until `by`, only if the failure is an unknown command.
pub(crate) fn with_server_kind(
    link: &mut dyn ConnectionLike,
    failure: Failure,
    by: Moment,
) -> Failure {
    let is_unknown = |answer: &ServerError| {
        let detail = answer.detail.to_ascii_lowercase();
        answer.code == "ERR" && detail.starts_with("unknown command")
    };
    let Some(answer) = ServerError::behind(failure.error()).filter(|answer| is_unknown(answer))
    else {
        return failure;
    };
    let answer = answer.clone();
    let role = link.call(&Request(&[&[b"ROLE"]]), by);
    match role.as_ref().ok().and_then(Reply::as_array) {
        Some([role, masters]) if role.as_bytes() == Some(b"sentinel") => {
            let masters = masters.as_array().unwrap_or_default().iter();
            let masters = masters
                .filter_map(Reply::as_bytes)
                .map(String::from_utf8_lossy);
            let url = |master| format!("`{}/{master}`", link.server().url("redis+sentinel"));
            let urls: Vec<_> = masters.map(url).collect();
            let which = match &urls[..] {
                [] => format!("{}; it watches no master yet", url("mymaster".into())),
                urls => urls.join(" or "),
            };
            let message = format!(
                "{} is a Sentinel, and has no locks: the URL is {which}",
                link.server()
            );
            Failure::Refused(Error::configuration(message).with_source(answer))
        }
        _ => failure,
    }
}
