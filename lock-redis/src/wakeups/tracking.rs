//! [`Tracking`]: the option `tracking=`, for the server's reports of key changes.

use crate::connection::{Cause, Server, ServerError};
use lock_core::{Config, Error, WarningKind};
use std::time::Duration;

/// The option's name. Its values are `auto`, the default, and `off`.
pub(crate) const OPTION: &str = "tracking";

/// The time for which tracking is not requested after connections were lost at that request,
/// because some proxies end a connection at `HELLO 3`.
pub(super) const RETRY: Duration = Duration::from_secs(60);

/// The number of connections in a row that must be lost at that request before tracking is not
/// requested. A single loss may have another cause.
pub(super) const LOST_CONNECTIONS: u32 = 2;

/// The setting for the server's reports of key changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tracking {
    /// Reports are used if the server supports them.
    Auto,
    Off,
}

impl Tracking {
    pub(crate) fn of(config: &Config) -> Result<Self, Error> {
        config.scheme_word(OPTION, &[("auto", Self::Auto), ("off", Self::Off)])
    }
}

/// Warns that the server does not report changes of locks, and names the consequence.
pub(crate) fn warn(server: &Server, why: &NotTracked) {
    let cause = Cause {
        change: why.to_string(),
        channel: None,
    };
    server.warn_of(WarningKind::NotTracked, cause, || {
        format!(
            "{server} does not report changes of locks ({why}): a release that is not published is \
             noticed some seconds later; {}",
            why.remedy()
        )
    });
}

/// The reason for which changes are not reported.
#[derive(Debug)]
pub(crate) enum NotTracked {
    Refused(ServerError),
    /// Connections are lost at the request for the reports.
    HungUp,
    /// The server tracks fewer keys than are watched or held.
    TableFull,
}

impl NotTracked {
    /// Returns the remedy.
    pub(crate) fn remedy(&self) -> &'static str {
        match self {
            Self::Refused(error) if error.code == "NOPERM" => {
                "allow it with `+client|tracking +client|caching`, or set `tracking=off`"
            }
            Self::Refused(_) | Self::HungUp => "`tracking=off` avoids the attempt",
            Self::TableFull => "raise `tracking-table-max-keys` in the server's configuration",
        }
    }
}

impl std::fmt::Display for NotTracked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(error) => error.fmt(f),
            Self::HungUp => f.write_str("connections are lost over `HELLO 3`"),
            Self::TableFull => f.write_str("more keys are watched or held than it tracks"),
        }
    }
}
