//! [`Finding`]: what the settings and the state of a store mean for its locks.

use crate::error::{Error, chain};
use std::fmt;

/// One thing about a store that was looked at: see [`Client::diagnose`](crate::Client::diagnose).
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// What was looked at, as in `eviction`. Stays the same between versions.
    pub id: &'static str,
    /// What follows from it.
    pub level: FindingLevel,
    /// The server or the servers that it is about, as messages name them.
    pub subject: String,
    /// What was seen.
    pub seen: String,
    /// What may happen to locks; empty if nothing is wrong.
    pub why: String,
    /// How to mend it: a command, or a line of a configuration; empty if nothing is wrong.
    pub remedy: String,
}

/// What follows from a [`Finding`]. The larger is the worse.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum FindingLevel {
    /// Nothing.
    Ok,
    /// The server does not let this client look.
    Unknown,
    /// Locks are slower, or less is known of them, or a further failure endangers them.
    Warning,
    /// Two holders at once are possible, or locks cannot be taken.
    Danger,
}

impl Finding {
    /// Makes a finding about which nothing needs to be done.
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

    /// Makes a finding of what could not be done, with the causes.
    #[must_use]
    pub fn failed(
        level: FindingLevel,
        id: &'static str,
        subject: impl fmt::Display,
        error: &Error,
    ) -> Self {
        Self::new(level, id, subject, chain(error))
    }

    /// Sets what may happen to locks.
    #[must_use]
    pub fn why(self, why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            ..self
        }
    }

    /// Sets how to mend it.
    #[must_use]
    pub fn remedy(self, remedy: impl Into<String>) -> Self {
        Self {
            remedy: remedy.into(),
            ..self
        }
    }
}

impl FindingLevel {
    /// The level as one word: `ok`, `unknown`, `warning` or `danger`.
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
