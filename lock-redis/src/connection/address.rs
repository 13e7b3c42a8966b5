//! [`Address`]: the address of a server, as a cluster node or a sentinel reports it.

use std::fmt;

/// The address of a server, as another server reports it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub struct Address {
    /// A host name, or an IP address without brackets.
    pub host: String,
    /// The port; the TLS port if TLS is used.
    pub port: u16,
}

impl Address {
    /// Returns the address of this host and port.
    #[must_use]
    pub fn new(host: &str, port: u16) -> Self {
        Self {
            host: host.to_owned(),
            port,
        }
    }

    /// Parses `host:port`; the host may be an IPv6 address, with brackets or without.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        Some(Self::new(
            bare.unwrap_or(host),
            port.parse().ok().filter(|port| *port > 0)?,
        ))
    }

    /// Returns this address; an empty host is replaced by the host of the reporting server.
    #[must_use]
    pub fn said_by(mut self, reporter: &str) -> Self {
        if self.host.is_empty() {
            reporter.clone_into(&mut self.host);
        }
        self
    }

    /// Returns `true` if the host is known. A cluster node reports `?` for a host name that it does
    /// not know.
    #[must_use]
    pub fn has_host(&self) -> bool {
        self.host != "?"
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_address(f, &self.host, self.port)
    }
}

/// Writes an address as in a URL: IPv6 in brackets.
pub(crate) fn write_address(f: &mut fmt::Formatter<'_>, host: &str, port: u16) -> fmt::Result {
    if host.contains(':') {
        write!(f, "[{host}]:{port}")
    } else {
        write!(f, "{host}:{port}")
    }
}
