//! [`ReleaseChannel`], [`ChannelKind`]: where releases are published, and what it means that they
//! cannot be.

use crate::connection::error_mapping::{self, Asked};
use crate::connection::{Server, ServerError};
use crate::wakeups::PollInterval;
use lock_core::WarningKind;

/// The kind of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ChannelKind {
    /// Messages reach all nodes of a cluster.
    Plain,
    /// Messages reach the nodes of the channel's slot only.
    Sharded,
}

impl ChannelKind {
    /// The command that publishes there.
    pub(crate) fn publish(self) -> &'static str {
        match self {
            Self::Plain => "PUBLISH",
            Self::Sharded => "SPUBLISH",
        }
    }
}

/// Where the releases of one lock are published, and how else its waiters notice one.
#[derive(Clone, Debug)]
pub(crate) struct ReleaseChannel {
    pub(crate) kind: ChannelKind,
    pub(crate) name: String,
    /// The key that is gone once the lock is free; `None` where its changes are of no interest.
    pub(crate) key: Option<String>,
    /// The key of the lock that a message there may grant, if messages grant any.
    pub(crate) grants: Option<String>,
    /// How often a waiter asks again where neither the channel nor the key can be watched.
    pub(crate) polls: PollInterval,
}

/// Tells that releases cannot be published.
pub(crate) fn unpublished(
    server: &Server,
    why: &ServerError,
    channels: ChannelKind,
    channel: &str,
) {
    let asked = |channel| Asked::Publish(channels.publish(), channel);
    let cause = error_mapping::cause_on_channel(server, why, channel, asked);
    server.warn_of(WarningKind::NotPublished, cause, || {
        let cause = error_mapping::explain(server, why, &asked(channel));
        format!(
            "releases on {server} do not reach the waiters, which ask again and again instead: \
             {cause} ({why})"
        )
    });
}
