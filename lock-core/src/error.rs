//! [`Error`]: the error type of all crates of this library.
//!
//! A busy lock is not an error but a value (`Ok(None)`). *Lost* concerns safety: another holder may
//! have entered. *Unavailable* means that the store could not be reached or did not answer in time,
//! *insufficient replicas* that too few replicas confirmed. *Misuse* and *configuration* need a
//! change of code or settings.

use crate::name::LockName;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// The kind of an [`Error`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The lock was lost while the caller held it: its lease ended, or the store no longer has it.
    /// Another holder may have entered meanwhile.
    Lost,
    /// The lock is held, but less time remains of its lease than the caller needs.
    LeaseTooShort,
    /// This thread has no hold to release, or this client is not the leader: misuse, as Java's
    /// `IllegalMonitorStateException`.
    NotHeld,
    /// An [`Interrupt`](crate::Interrupt) ended the wait.
    Interrupted,
    /// The store could not be reached or did not answer in time, or the system has no thread or
    /// file descriptor left. The state of the lock is unknown; this never means "busy".
    Unavailable,
    /// Too few replicas confirmed a grant or an extension in time
    /// ([`Replication`](crate::Replication)). The client releases such a grant again; such an
    /// extension does not prolong the validity.
    InsufficientReplicas,
    /// The value under the key is not a lock in this wire format.
    ForeignFormat,
    /// The call is wrong: a bug in the caller.
    Misuse,
    /// A setting is wrong, or the store refuses the client (password, permissions).
    Configuration,
    /// The store or its wire format does not support the call.
    Unsupported,
}

/// The error of every call of this library.
///
/// Cheap to clone. The text contains the attempted action, the lock if one is set, and the known
/// facts. The source, if there is one, is the underlying error: of the operating system, of the
/// server, or of this library. No text contains a password.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    lock: Option<LockName>,
    message: String,
    source: Option<Arc<dyn StdError + Send + Sync>>,
    members: Vec<MemberResult>,
    /// True if the request must not be repeated, although the store was unavailable.
    is_final: bool,
}

/// The result of one member: a lock of a [`MultiLock`](crate::MultiLock) or
/// [`MajorityLock`](crate::MajorityLock), or a node of a quorum.
#[derive(Clone, Debug)]
pub struct MemberResult {
    name: String,
    outcome: MemberOutcome,
}

/// The outcome of a request to one member.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum MemberOutcome {
    /// The request succeeded. If a call to acquire failed as a whole, this request was undone.
    Done,
    /// Another holder held the member.
    Busy,
    /// No request was sent, because the whole call had already failed.
    NotAsked,
    /// The request failed.
    Failed(Error),
}

impl MemberResult {
    /// Makes the result of the member of this name.
    #[must_use]
    pub fn new(name: impl Into<String>, outcome: MemberOutcome) -> Self {
        Self {
            name: name.into(),
            outcome,
        }
    }

    /// Returns the name of the member.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the outcome.
    #[must_use]
    pub fn outcome(&self) -> &MemberOutcome {
        &self.outcome
    }

    /// Returns the error, if the request failed.
    #[must_use]
    pub fn error(&self) -> Option<&Error> {
        match &self.outcome {
            MemberOutcome::Failed(error) => Some(error),
            MemberOutcome::Done | MemberOutcome::Busy | MemberOutcome::NotAsked => None,
        }
    }
}

impl Error {
    /// Makes an error of this kind. `message` is lower case, without a full stop, and names the
    /// remedy where one is known.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(Inner {
            kind,
            lock: None,
            message: message.into(),
            source: None,
            members: Vec::new(),
            is_final: false,
        }))
    }

    /// Makes an error of [`ErrorKind::Misuse`].
    #[must_use]
    pub fn misuse(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Misuse, message)
    }

    /// Makes an error of [`ErrorKind::Configuration`].
    #[must_use]
    pub fn configuration(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Configuration, message)
    }

    /// Makes an error of [`ErrorKind::Unavailable`].
    #[must_use]
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, message)
    }

    /// Makes the error of a request to several members. `what` is the failure, and the result of
    /// each member follows; `done` describes a member that succeeded.
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
        // The text already contains the members' messages. The source is the first source of a
        // member's error.
        let source = members
            .iter()
            .filter_map(MemberResult::error)
            .find_map(|it| it.0.source.clone());
        let is_final = members
            .iter()
            .filter_map(MemberResult::error)
            .any(Self::is_final);
        Self(Arc::new(Inner {
            kind,
            lock: None,
            message,
            source,
            members,
            is_final,
        }))
    }

    /// Sets the source.
    ///
    /// `Debug` shows the text of the source, which must not contain a password. The errors of
    /// `toml` quote the input: use only their `message()`.
    #[must_use]
    pub fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        Arc::make_mut(&mut self.0).source = Some(Arc::new(source));
        self
    }

    /// Appends a hint to the text, after a semicolon: a consequence, or a remedy.
    #[must_use]
    pub fn with_hint(mut self, more: &str) -> Self {
        let message = &mut Arc::make_mut(&mut self.0).message;
        message.push_str("; ");
        message.push_str(more);
        self
    }

    /// Sets the lock that the error concerns, unless one is set.
    #[must_use]
    pub fn on(mut self, lock: &LockName) -> Self {
        if self.0.lock.is_none() {
            Arc::make_mut(&mut self.0).lock = Some(lock.clone());
        }
        self
    }

    /// Marks the error as final: the request must not be repeated.
    pub(crate) fn of_last_request(mut self) -> Self {
        Arc::make_mut(&mut self.0).is_final = true;
        self
    }

    /// Returns whether the request must not be repeated, whatever the kind.
    pub(crate) fn is_final(&self) -> bool {
        self.0.is_final
    }

    /// Returns the kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the text without the lock.
    pub(crate) fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the lock that the error concerns, if there is one.
    #[must_use]
    pub fn lock(&self) -> Option<&LockName> {
        self.0.lock.as_ref()
    }

    /// Returns the result of each member, for an error of several locks or of a quorum, in the
    /// order in which the members were given. Empty for all other errors.
    #[must_use]
    pub fn members(&self) -> &[MemberResult] {
        &self.0.members
    }

    /// Returns whether the lock was lost while the caller held it.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.kind() == ErrorKind::Lost
    }

    /// Returns whether too little time remains of the lease of a held lock.
    #[must_use]
    pub fn is_lease_too_short(&self) -> bool {
        self.kind() == ErrorKind::LeaseTooShort
    }

    /// Returns whether this thread had no hold to release, or this client was not the leader.
    #[must_use]
    pub fn is_not_held(&self) -> bool {
        self.kind() == ErrorKind::NotHeld
    }

    /// Returns whether an interrupt ended the wait.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.kind() == ErrorKind::Interrupted
    }

    /// Returns whether the store could not be reached or did not answer in time: see
    /// [`ErrorKind::Unavailable`].
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        self.kind() == ErrorKind::Unavailable
    }

    /// Returns whether too few replicas confirmed the grant or the extension in time.
    #[must_use]
    pub fn is_insufficient_replicas(&self) -> bool {
        self.kind() == ErrorKind::InsufficientReplicas
    }

    /// Returns whether the value under the key is not a lock in this wire format.
    #[must_use]
    pub fn is_foreign_format(&self) -> bool {
        self.kind() == ErrorKind::ForeignFormat
    }

    /// Returns whether the caller's code is wrong. [`ErrorKind::NotHeld`] is misuse, too.
    #[must_use]
    pub fn is_misuse(&self) -> bool {
        matches!(self.kind(), ErrorKind::Misuse | ErrorKind::NotHeld)
    }

    /// Returns whether a setting is wrong, or the store refuses the client.
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        self.kind() == ErrorKind::Configuration
    }

    /// Returns whether the store or its wire format does not support the call.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        self.kind() == ErrorKind::Unsupported
    }
}

/// Returns the kind of several failures together: a loss if there is one, because it concerns
/// safety; otherwise the kind of the first failure, or [`ErrorKind::Unavailable`] if no member
/// failed.
pub(crate) fn worst_kind(results: &[MemberResult]) -> ErrorKind {
    let mut kinds = results
        .iter()
        .filter_map(MemberResult::error)
        .map(Error::kind);
    let first = kinds.next().unwrap_or(ErrorKind::Unavailable);
    if kinds.any(|kind| kind == ErrorKind::Lost) {
        ErrorKind::Lost
    } else {
        first
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

/// Returns an error and its sources, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    std::iter::once(error)
        .chain(causes)
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_lock_and_keeps_source() {
        let io = std::io::Error::other("connection refused");
        let error = Error::unavailable("could not ask the server").with_source(io);
        let named = error.clone().on(&LockName::new("orders:42").unwrap());
        assert_eq!(
            named.to_string(),
            "lock \"orders:42\": could not ask the server"
        );
        assert_eq!(named.source().unwrap().to_string(), "connection refused");
        assert_eq!(error.to_string(), "could not ask the server");
        assert!(named.is_unavailable() && !named.is_misuse());
    }
}
