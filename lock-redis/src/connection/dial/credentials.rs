//! [`CredentialsSource`]: the source of user and password, read anew for each connection.

use crate::connection::background_call::{BackgroundCall, CallNotDone, SystemError};
use crate::connection::{DialTime, Server};
use lock_core::backend::no_thread;
use lock_core::{Credentials, CredentialsProvider, Error, Secret};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The source of user and password.
#[derive(Clone, Default)]
pub(crate) struct CredentialsSource {
    /// The user, unless the provider gives one.
    pub(crate) user: Option<String>,
    pub(crate) password: PasswordSource,
    /// The application's provider, which is called first. `password` is read only if there is no
    /// provider, or the provider gives no credentials.
    pub(crate) provider: Option<Arc<dyn CredentialsProvider>>,
    /// True if the provider is queried for the credentials of a Sentinel.
    pub(crate) is_sentinel: bool,
}

/// The source of the password if no provider gives it.
#[derive(Clone, Debug, Default)]
pub(crate) enum PasswordSource {
    #[default]
    None,
    Given(Secret),
    InFile(PasswordFile),
}

/// A file with a password. Clones share their reads: if one read hangs, another one would hang,
/// too.
#[derive(Clone, Debug)]
pub(crate) struct PasswordFile {
    /// The option that names the file.
    option: &'static str,
    path: PathBuf,
    reads: BackgroundCall<Result<Secret, SystemError>>,
}

/// The credentials of one connection.
#[derive(Default)]
pub(super) struct ResolvedCredentials {
    pub(super) user: Option<String>,
    pub(super) password: Option<Secret>,
}

/// Calls of the provider for the credentials of one server.
pub(super) type ProviderCalls = BackgroundCall<Result<Option<Credentials>, Error>>;

impl CredentialsSource {
    /// Checks that the password file, if there is one, can be read in `time`.
    pub(crate) fn check(&self, time: &DialTime<'_>) -> Result<(), Error> {
        self.password
            .read(time)
            .map(drop)
            .map_err(|error| Error::configuration(error.to_string()).with_source(error))
    }

    /// Returns the credentials for a new connection, if they are found in `time`.
    pub(super) fn resolve(
        &self,
        calls: &ProviderCalls,
        server: &Server,
        time: &DialTime<'_>,
    ) -> Result<ResolvedCredentials, Error> {
        if let Some(given) = self.provided(calls, server, time)? {
            let user = given
                .user()
                .map(str::to_owned)
                .or_else(|| self.user.clone());
            return Ok(ResolvedCredentials {
                user,
                password: Some(given.password().clone()),
            });
        }
        Ok(ResolvedCredentials {
            user: self.user.clone(),
            password: self.password.read(time)?,
        })
    }

    fn provided(
        &self,
        calls: &ProviderCalls,
        server: &Server,
        time: &DialTime<'_>,
    ) -> Result<Option<Credentials>, Error> {
        let Some(provider) = self.provider.clone() else {
            return Ok(None);
        };
        let (name, is_sentinel) = (server.to_string(), self.is_sentinel);
        let call = move || {
            if is_sentinel {
                provider.sentinel_credentials(&name)
            } else {
                provider.credentials(&name).map(Some)
            }
        };
        let what = |what: &str| format!("the provider of credentials {what} for {server}");
        calls.call(time, call).map_err(|error| match error {
            CallNotDone::NoThread(error) => no_thread(&what("cannot be asked"), error),
            CallNotDone::Late => self.late(server),
            CallNotDone::Panicked => Error::unavailable(what("panicked")),
        })?
    }

    /// Returns the error for credentials that were not found in time.
    pub(super) fn late(&self, server: &Server) -> Error {
        match &self.password {
            PasswordSource::InFile(file) if self.provider.is_none() => file.late(),
            _ => Error::unavailable(format!(
                "the provider of credentials gave none in time for {server}"
            )),
        }
    }
}

impl PasswordSource {
    pub(crate) fn in_file(option: &'static str, path: impl Into<PathBuf>) -> Self {
        Self::InFile(PasswordFile {
            option,
            path: path.into(),
            reads: BackgroundCall::new(),
        })
    }

    fn read(&self, time: &DialTime<'_>) -> Result<Option<Secret>, Error> {
        match self {
            Self::None => Ok(None),
            Self::Given(password) => Ok(Some(password.clone())),
            Self::InFile(file) => file.read(time).map(Some),
        }
    }
}

impl PasswordFile {
    fn read(&self, time: &DialTime<'_>) -> Result<Secret, Error> {
        let path = self.path.clone();
        let read = self
            .reads
            .call(time, move || read(&path).map_err(SystemError::from));
        read.map_err(|error| match error {
            CallNotDone::NoThread(error) => no_thread(&self.unreadable(), error),
            CallNotDone::Late => self.late(),
            CallNotDone::Panicked => Error::unavailable(self.unreadable()),
        })?
        .map_err(|error| Error::unavailable(self.unreadable()).with_source(io::Error::from(error)))
    }

    fn unreadable(&self) -> String {
        format!(
            "no password can be read from `{}={}`",
            self.option,
            self.path.display()
        )
    }

    fn late(&self) -> Error {
        let message = format!(
            "{}: reading it did not end in time, is its file system there?",
            self.unreadable()
        );
        Error::unavailable(message).with_source(io::Error::from(ErrorKind::TimedOut))
    }
}

/// Reads the password from a file: the whole content, except one final line end.
fn read(path: &Path) -> io::Result<Secret> {
    let text = fs::read_to_string(path)?;
    let line = text
        .strip_suffix('\n')
        .map_or(&*text, |line| line.strip_suffix('\r').unwrap_or(line));
    if line.is_empty() {
        return Err(io::Error::other("the file is empty"));
    }
    Ok(Secret::new(line))
}

impl std::fmt::Debug for CredentialsSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CredentialsSource")
            .field("user", &self.user)
            .field("password", &self.password)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_end_in_the_file_is_not_part_of_the_password() {
        let path = std::env::temp_dir().join(format!("distlock-password-{}", std::process::id()));
        for (text, password) in [
            ("a b", "a b"),
            ("a\n", "a"),
            ("a\r\n", "a"),
            ("a\n\n", "a\n"),
        ] {
            fs::write(&path, text).unwrap();
            assert_eq!(read(&path).unwrap().reveal(), password);
        }
        for text in ["", "\n"] {
            fs::write(&path, text).unwrap();
            assert!(read(&path).is_err(), "{text:?}");
        }
        fs::remove_file(&path).unwrap();
    }
}
