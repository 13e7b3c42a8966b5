//! [`Finding`]: a fact about the settings or the state of a store, and its effect on locks.

use crate::error::{Error, chain};
use std::fmt;

/// One checked fact about a store: see [`Client::diagnose`](crate::Client::diagnose).
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// The name of the check, for example `eviction`. It does not change between versions.
    pub id: &'static str,
    /// The severity.
    pub level: FindingLevel,
    /// The server or servers that the finding is about, named as in the library's messages.
    pub subject: String,
    /// The value or state that was found.
    pub seen: String,
    /// The possible consequences for locks; empty if nothing is wrong.
    pub why: String,
    /// The remedy: a command, or a line of a configuration; empty if nothing is wrong.
    pub remedy: String,
}

/// The severity of a [`Finding`]. A greater value is worse.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum FindingLevel {
    /// Nothing is wrong.
    Ok,
    /// The check was not possible, for example because the server refuses the command.
    Unknown,
    /// Locks are slower, or less is known about them, or they are at risk after one more failure.
    Warning,
    /// Two holders at once are possible, or locks cannot be acquired.
    Danger,
}

impl Finding {
    /// Makes a finding that requires no action.
    #[must_use]
    pub fn ok(id: &'static str, subject: impl fmt::Display, seen: impl Into<String>) -> Self {
        Self::new(FindingLevel::Ok, id, subject, seen)
    }

    /// Makes a finding of this level.
    #[must_use]
    pub fn new(
        level: FindingLevel,
        id: &'static str,
        subject: impl fmt::Display,
        seen: impl Into<String>,
    ) -> Self {
        let (subject, seen) = (subject.to_string(), seen.into());
        Self {
            id,
            level,
            subject,
            seen,
            why: String::new(),
            remedy: String::new(),
        }
    }

    /// Makes a finding about a check or an action that failed. The error and its causes become the
    /// state that was found.
    #[must_use]
    pub fn failed(
        level: FindingLevel,
        id: &'static str,
        subject: impl fmt::Display,
        error: &Error,
    ) -> Self {
        Self::new(level, id, subject, chain(error))
    }

    /// Sets the possible consequences for locks.
    #[must_use]
    pub fn why(self, why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            ..self
        }
    }

    /// Sets the remedy.
    #[must_use]
    pub fn remedy(self, remedy: impl Into<String>) -> Self {
        Self {
            remedy: remedy.into(),
            ..self
        }
    }
}

impl FindingLevel {
    /// Returns the level as one word: `ok`, `unknown`, `warning` or `danger`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Warning => "warning",
            Self::Danger => "danger",
        }
    }
}

impl fmt::Display for FindingLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} ({}): {}",
            self.level, self.id, self.subject, self.seen
        )?;
        for more in [&self.why, &self.remedy]
            .into_iter()
            .filter(|text| !text.is_empty())
        {
            write!(f, "; {more}")?;
        }
        Ok(())
    }
}
