//! [`Address`]: where a server is, by the word of another one: of a node of a cluster, or of a sentinel.

use std::fmt;

/// Where a server is, by the word of another one.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub struct Address {
    /// A name, or an address without brackets.
    pub host: String,
    /// The port for the kind of connection that we use.
    pub port: u16,
}

impl Address {
    /// This host and port.
    #[must_use]
    pub fn new(host: &str, port: u16) -> Self {
        Self { host: host.to_owned(), port }
    }

    /// Reads `host:port`; the host may be an address of IPv6, with brackets or without.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        Some(Self::new(bare.unwrap_or(host), port.parse().ok().filter(|port| *port > 0)?))
    }

    /// The same, and where the host is left open, or is one that the teller does not know itself (`?`), it is that of the
    /// node that said so.
    #[must_use]
    pub fn said_by(mut self, teller: &str) -> Self {
        if self.host.is_empty() || self.host == "?" {
            teller.clone_into(&mut self.host);
        }
        self
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_address(f, &self.host, self.port)
    }
}

/// As it stands in a URL: an address of IPv6 in brackets.
pub(crate) fn write_address(f: &mut fmt::Formatter<'_>, host: &str, port: u16) -> fmt::Result {
    if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
}
