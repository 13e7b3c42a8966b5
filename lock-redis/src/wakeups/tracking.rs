//! [`Tracking`]: the option `tracking=`: whether the server is asked to report changes of keys.

use crate::connection::{Cause, Server, ServerError};
use lock_core::{Config, Error, WarningKind};
use std::time::Duration;

/// The option: `auto`, the default, or `off`.
pub(crate) const OPTION: &str = "tracking";

/// The time for which tracking is not requested after connections were lost over it, because some
/// proxies end a connection at `HELLO 3`.
pub(super) const RETRY: Duration = Duration::from_secs(60);

/// So many in a row: one may have been lost for another reason.
pub(super) const LOST_CONNECTIONS: u32 = 2;

/// Whether the server is asked to report changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tracking {
    /// If the server can.
    Auto,
    Off,
}

impl Tracking {
    pub(crate) fn of(config: &Config) -> Result<Self, Error> {
        config.scheme_word(OPTION, &[("auto", Self::Auto), ("off", Self::Off)])
    }
}

/// Reports that the server does not report changes, and what follows from it.
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

/// Why changes are not reported.
#[derive(Debug)]
pub(crate) enum NotTracked {
    Refused(ServerError),
    /// Connections are lost over the request.
    HungUp,
    /// The server tracks fewer keys than are watched.
    TableFull,
}

impl NotTracked {
    /// What can be done about it.
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
