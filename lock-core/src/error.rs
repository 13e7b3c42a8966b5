//! [`Error`]: one opaque error for the whole house.
//!
//! Four families, never mixed: *busy* is no error at all but a value (`Ok(None)`), *lost* is news
//! about safety, *unavailable* means that the store could not be asked (and *lack of
//! acknowledgements* that its replicas could not), and *misuse* and *configuration* are to be
//! mended in the caller's code and settings.

use crate::name::LockName;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// What kind of failure an [`Error`] is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The lease ended while the caller thought it held the lock. Another holder may have been
    /// inside meanwhile.
    Lost,
    /// The lock is still ours, but less is left of its lease than the caller needs.
    LeaseTooShort,
    /// This thread holds nothing that could be released: misuse, Java's
    /// `IllegalMonitorStateException`.
    NotHeld,
    /// An [`Interrupt`](crate::Interrupt) fired while waiting.
    Interrupted,
    /// The store could not be asked, or not in time. Nothing is known about the lock; this never
    /// means "busy".
    Unavailable,
    /// The store granted it, and too few replicas confirmed that in time
    /// ([`Replication`](crate::Replication)). It was taken back.
    InsufficientReplicas,
    /// Something under the key is not a lock in this wire format.
    ForeignFormat,
    /// The call itself is wrong: a bug in the caller.
    Misuse,
    /// A setting is wrong, or the store refuses us (password, permissions) until one is changed.
    Configuration,
    /// The store or its wire format cannot do this.
    Unsupported,
}

/// Why a call of this library failed.
///
/// Cheap to clone. The text says what was attempted, on which lock, and what is known now; the
/// source, if there is one, says what the operating system or the server answered. No password ever
/// stands in it.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    lock: Option<LockName>,
    message: String,
    source: Option<Arc<dyn StdError + Send + Sync>>,
    members: Vec<MemberResult>,
}

/// What one of several came to that were asked together: a lock among those of a
/// [`MultiLock`](crate::MultiLock), or a node of a quorum.
#[derive(Clone, Debug)]
pub struct MemberResult {
    name: String,
    outcome: MemberOutcome,
}

/// What it came to.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum MemberOutcome {
    /// It did what was asked. Where the whole failed, it was undone.
    Done,
    /// Somebody else had it.
    Busy,
    /// It was not asked, because the whole had failed before.
    NotAsked,
    /// It failed.
    Failed(Error),
}

impl MemberResult {
    /// What the one of this name came to.
    #[must_use]
    pub fn new(name: impl Into<String>, outcome: MemberOutcome) -> Self {
        Self { name: name.into(), outcome }
    }

    /// What the member is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it came to.
    #[must_use]
    pub fn outcome(&self) -> &MemberOutcome {
        &self.outcome
    }

    /// Why it failed, if it did.
    #[must_use]
    pub fn error(&self) -> Option<&Error> {
        match &self.outcome {
            MemberOutcome::Failed(error) => Some(error),
            MemberOutcome::Done | MemberOutcome::Busy | MemberOutcome::NotAsked => None,
        }
    }
}

impl Error {
    /// An error of this kind. `message` is lower case, without a full stop, and says what to do
    /// about it where that is known.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(Inner {
            kind,
            lock: None,
            message: message.into(),
            source: None,
            members: Vec::new(),
        }))
    }

    /// [`ErrorKind::Misuse`].
    #[must_use]
    pub fn misuse(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Misuse, message)
    }

    /// [`ErrorKind::Configuration`].
    #[must_use]
    pub fn configuration(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Configuration, message)
    }

    /// [`ErrorKind::Unavailable`].
    #[must_use]
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, message)
    }

    /// An error of something that several were asked for: `what`, and what each of them came to.
    /// `done` says what it means that one did as it was asked.
    #[must_use]
    pub fn from_members(
        kind: ErrorKind,
        what: &str,
        done: &str,
        members: Vec<MemberResult>,
    ) -> Self {
        let each = members.iter().map(|member| {
            let name = member.name();
            match member.outcome() {
                MemberOutcome::Done => format!("\"{name}\" {done}"),
                MemberOutcome::Busy => format!("\"{name}\" was busy"),
                MemberOutcome::NotAsked => format!("\"{name}\" was not asked"),
                MemberOutcome::Failed(error) => format!("\"{name}\" failed: {}", error.0.message),
            }
        });
        let message = format!("{what} ({})", each.collect::<Vec<_>>().join("; "));
        // What the failures themselves say stands in the text already; their cause goes on the
        // chain.
        let source =
            members.iter().filter_map(MemberResult::error).find_map(|it| it.0.source.clone());
        Self(Arc::new(Inner { kind, lock: None, message, source, members }))
    }

    /// The same error with what caused it.
    ///
    /// `Debug` shows the text of the cause, so give it none that quotes what may be a password. The
    /// errors of `toml` do: take only their `message()`.
    #[must_use]
    pub fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        Arc::make_mut(&mut self.0).source = Some(Arc::new(source));
        self
    }

    /// The same error with more at the end of its text, behind a semicolon: what follows from it,
    /// or what to do.
    #[must_use]
    pub fn with_hint(mut self, more: &str) -> Self {
        let message = &mut Arc::make_mut(&mut self.0).message;
        message.push_str("; ");
        message.push_str(more);
        self
    }

    /// The same error, said of this lock.
    #[must_use]
    pub fn on(mut self, lock: &LockName) -> Self {
        if self.0.lock.is_none() {
            Arc::make_mut(&mut self.0).lock = Some(lock.clone());
        }
        self
    }

    /// What kind of failure this is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What it says, but for the lock.
    pub(crate) fn message(&self) -> &str {
        &self.0.message
    }

    /// The lock it is about, if it is about one.
    #[must_use]
    pub fn lock(&self) -> Option<&LockName> {
        self.0.lock.as_ref()
    }

    /// Of an error of several locks, or nodes of a quorum, that were asked as one, what each of
    /// them came to, in the order in which they were given. Empty for all other errors.
    #[must_use]
    pub fn members(&self) -> &[MemberResult] {
        &self.0.members
    }

    /// The lease ended while we thought we held it.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.kind() == ErrorKind::Lost
    }

    /// The lock is still ours, but too little is left of its lease.
    #[must_use]
    pub fn is_lease_too_short(&self) -> bool {
        self.kind() == ErrorKind::LeaseTooShort
    }

    /// This thread holds nothing to release.
    #[must_use]
    pub fn is_not_held(&self) -> bool {
        self.kind() == ErrorKind::NotHeld
    }

    /// An interrupt ended the wait.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.kind() == ErrorKind::Interrupted
    }

    /// The store could not be asked.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        self.kind() == ErrorKind::Unavailable
    }

    /// Too few replicas confirmed it in time.
    #[must_use]
    pub fn is_insufficient_replicas(&self) -> bool {
        self.kind() == ErrorKind::InsufficientReplicas
    }

    /// Something else lives under the key.
    #[must_use]
    pub fn is_foreign_format(&self) -> bool {
        self.kind() == ErrorKind::ForeignFormat
    }

    /// The caller's code is wrong. [`ErrorKind::NotHeld`] is misuse, too.
    #[must_use]
    pub fn is_misuse(&self) -> bool {
        matches!(self.kind(), ErrorKind::Misuse | ErrorKind::NotHeld)
    }

    /// A setting is wrong.
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        self.kind() == ErrorKind::Configuration
    }

    /// The store cannot do this.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        self.kind() == ErrorKind::Unsupported
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(lock) = &self.0.lock {
            write!(f, "lock \"{lock}\": ")?;
        }
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({self}", self.0.kind)?;
        if let Some(source) = &self.0.source {
            write!(f, ": {source}")?;
        }
        f.write_str(")")
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_which_lock_and_keeps_its_source() {
        let io = std::io::Error::other("connection refused");
        let error = Error::unavailable("could not ask the server").with_source(io);
        let named = error.clone().on(&LockName::new("orders:42").unwrap());
        assert_eq!(named.to_string(), "lock \"orders:42\": could not ask the server");
        assert_eq!(named.source().unwrap().to_string(), "connection refused");
        assert_eq!(error.to_string(), "could not ask the server");
        assert!(named.is_unavailable() && !named.is_misuse());
    }
}
