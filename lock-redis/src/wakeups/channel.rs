//! [`ReleaseChannel`], [`ChannelKind`]: the channels on which releases are published, and the
//! warning if that is impossible.

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
    /// Returns the command that publishes on such a channel.
    pub(crate) fn publish(self) -> &'static str {
        match self {
            Self::Plain => "PUBLISH",
            Self::Sharded => "SPUBLISH",
        }
    }
}

/// The channel on which a client is notified of one lock's releases, and the other ways in which
/// its waiters notice a release.
#[derive(Clone, Debug)]
pub(crate) struct ReleaseChannel {
    pub(crate) kind: ChannelKind,
    pub(crate) name: String,
    /// The key whose changes may show a release: it does not exist while the lock is free. `None`
    /// if changes are not used.
    pub(crate) key: Option<String>,
    /// True if the key holds the number of a semaphore's free permits: then the number shows
    /// whether permits are free, and not the existence of the key.
    pub(crate) has_permits: bool,
    /// The key of the lock that a message on this channel may grant, if messages grant any.
    pub(crate) grants: Option<String>,
    /// The interval at which waiters poll if neither the channel nor the key can be watched.
    pub(crate) polls: PollInterval,
}

/// Warns that releases cannot be published.
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
