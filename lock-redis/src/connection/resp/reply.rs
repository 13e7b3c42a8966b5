//! [`Reply`]: a server's answer, as a type of this library.

use lock_core::Error;
use std::error::Error as _;
use std::fmt;

/// One answer, as RESP2 defines it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reply {
    Nil,
    Int(i64),
    /// A status line, such as `OK` or `PONG`.
    Text(String),
    Bulk(Vec<u8>),
    Array(Vec<Reply>),
    Error(ServerError),
}

/// An error that the server answered with: its first word, the code, and the rest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ServerError {
    pub(crate) code: String,
    pub(crate) detail: String,
}

impl Reply {
    /// Returns the items, if this is a list.
    pub(crate) fn as_array(&self) -> Option<&[Self]> {
        match self {
            Self::Array(items) => Some(items),
            _ => None,
        }
    }

    /// Returns `true` if the script is not loaded, and so did not run.
    pub(crate) fn is_noscript(&self) -> bool {
        matches!(self, Self::Error(error) if error.code == "NOSCRIPT")
    }

    /// Returns the bytes of a string.
    pub(crate) fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bulk(bytes) => Some(bytes),
            Self::Text(text) => Some(text.as_bytes()),
            _ => None,
        }
    }
}

/// Returns the value of a field in a reply to `INFO` or `CLUSTER INFO`.
pub(crate) fn info_field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

impl ServerError {
    /// Splits the text of an error into its first word and the rest.
    pub(crate) fn parse(text: &str) -> Self {
        let (code, detail) = text.split_once(' ').unwrap_or((text, ""));
        Self {
            code: code.to_owned(),
            detail: detail.to_owned(),
        }
    }

    /// Returns the server's answer that caused this error, if there is one.
    pub(crate) fn behind(error: &Error) -> Option<&Self> {
        error.source().and_then(|source| source.downcast_ref())
    }

    /// Returns `true` if the server is too old to know this form of a command.
    pub(crate) fn is_unknown_subcommand(&self) -> bool {
        self.code == "ERR"
            && self
                .detail
                .to_ascii_lowercase()
                .starts_with("unknown subcommand")
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code, self.detail)
    }
}

impl std::error::Error for ServerError {}
