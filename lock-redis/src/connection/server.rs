//! [`Server`]: the name of a server in messages, and the warnings about it.

use crate::connection::Endpoint;
use lock_core::{Error, Notices, WarningKind};
use parking_lot::Mutex;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

/// A server. Its `Display` form is `host:port` or the path of its socket.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) endpoint: Endpoint,
    is_tls: bool,
    /// The user of the connections. Written at each dial.
    user: Mutex<Option<String>>,
    pub(super) notices: Notices,
    /// The warnings that were reported and still apply; `has_warned` is true if there are any.
    warned: Mutex<Vec<Reported>>,
    has_warned: AtomicBool,
}

/// A warning that was reported and still applies.
#[derive(Debug)]
struct Reported {
    kind: WarningKind,
    cause: String,
    /// The refused channel, if the server allows some channels and not others.
    channel: Option<String>,
}

/// The cause of a warning within its kind. A cause is reported once, until it no longer applies.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cause {
    /// The change that the administrator has to make. Empty for a kind with only one cause.
    pub(crate) change: String,
    /// The refused channel, if the server allows some channels and not others.
    pub(crate) channel: Option<String>,
}

impl Server {
    pub(crate) fn new(endpoint: Endpoint, user: Option<&str>) -> Self {
        let user = Mutex::new(user.map(str::to_owned));
        let (notices, warned) = (Notices::default(), Mutex::default());
        let has_warned = AtomicBool::new(false);
        Self {
            endpoint,
            is_tls: false,
            user,
            notices,
            warned,
            has_warned,
        }
    }

    /// Returns this server, used over TLS or not.
    pub(crate) fn over_tls(self, is_tls: bool) -> Self {
        Self { is_tls, ..self }
    }

    /// Returns this server with its warnings reported to `notices`.
    pub(crate) fn warning(self, notices: Notices) -> Self {
        Self { notices, ..self }
    }

    /// Returns the receiver of warnings and events about this server.
    pub(crate) fn notices(&self) -> &Notices {
        &self.notices
    }

    /// Returns the user of the connections.
    pub(crate) fn user(&self) -> String {
        self.user
            .lock()
            .clone()
            .unwrap_or_else(|| "default".to_owned())
    }

    /// Records the user of a new connection.
    pub(super) fn set_user(&self, user: Option<&str>) {
        let mut known = self.user.lock();
        if known.as_deref() != user {
            *known = user.map(str::to_owned);
            // Permissions belong to a user: another user's refusals do not apply to this one.
            self.clear_warnings(WarningKind::NotPublished);
            self.clear_warnings(WarningKind::NotSubscribed);
        }
    }

    /// Returns the URL of this server with this scheme, or with the scheme's variant for TLS or for
    /// a socket in the file system.
    pub(crate) fn url(&self, scheme: &str) -> String {
        match (&self.endpoint, scheme.strip_prefix("redis")) {
            (Endpoint::Unix(_), Some("")) => format!("redis+unix://{self}"),
            (_, Some(rest)) if self.is_tls => format!("rediss{rest}://{self}"),
            _ => format!("{scheme}://{self}"),
        }
    }

    /// Reports a warning of a kind that has only one cause; not again before the warning [is
    /// cleared](Self::clear_warnings).
    pub(crate) fn warn(&self, kind: WarningKind, message: impl FnOnce() -> String) {
        self.warn_of(kind, Cause::default(), message);
    }

    /// Reports a warning; not again for the same cause before the cause no longer applies.
    pub(crate) fn warn_of(
        &self,
        kind: WarningKind,
        cause: Cause,
        message: impl FnOnce() -> String,
    ) {
        let mut warned = self.warned.lock();
        if warned
            .iter()
            .any(|known| known.kind == kind && known.cause == cause.change)
        {
            return;
        }
        warned.push(Reported {
            kind,
            cause: cause.change,
            channel: cause.channel,
        });
        self.has_warned.store(true, Ordering::Relaxed);
        drop(warned);
        self.notices.warn(kind, message);
    }

    /// Returns `true` if a warning of this kind was reported and still applies.
    pub(crate) fn has_reported(&self, kind: WarningKind) -> bool {
        self.has_warned.load(Ordering::Relaxed)
            && self.warned.lock().iter().any(|known| known.kind == kind)
    }

    /// Removes the warnings of this kind, which no longer apply.
    pub(crate) fn clear_warnings(&self, kind: WarningKind) {
        self.retain_warnings(|known| known.kind != kind);
    }

    /// Removes the warnings of this kind, because the server has served this channel. Refusals of
    /// other channels still apply.
    pub(crate) fn clear_channel_warning(
        &self,
        kind: WarningKind,
        channel: impl FnOnce() -> String,
    ) {
        if self.has_warned.load(Ordering::Relaxed) {
            let served = channel();
            self.retain_warnings(|known| {
                known.kind != kind || known.channel.as_ref().is_some_and(|other| *other != served)
            });
        }
    }

    fn retain_warnings(&self, still_applies: impl FnMut(&Reported) -> bool) {
        if self.has_warned.load(Ordering::Relaxed) {
            let mut warned = self.warned.lock();
            warned.retain(still_applies);
            self.has_warned.store(!warned.is_empty(), Ordering::Relaxed);
        }
    }

    /// Returns the error of a request during which the connection became invalid, for example
    /// because the server was replaced, or lost the master's role.
    pub(crate) fn superseded(&self) -> Error {
        Error::unavailable(format!(
            "another server answers at {self} since, or that is no master any more: what it said \
             does not count"
        ))
    }

    /// Returns the error for received bytes that are not a reply.
    pub(crate) fn garbage(&self, why: &str) -> Error {
        Error::unavailable(format!(
            "{self} answered with something that is no answer ({why}): is this the port of a Redis \
             server?"
        ))
    }

    /// Returns the error with which a connection is closed whose reply does not fit the request.
    pub(crate) fn out_of_step(&self) -> Error {
        self.garbage("requests and replies may be out of step")
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.endpoint.fmt(f)
    }
}
