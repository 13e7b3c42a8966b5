//! [`CredentialsSource`]: where user and password come from. Looked up for each connection.

use super::background_call::{BackgroundCall, CallNotDone};
use crate::connection::Server;
use lock_core::backend::no_thread;
use lock_core::{Clock, Credentials, CredentialsProvider, Error, Moment, Secret};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where user and password come from.
#[derive(Clone, Default)]
pub(crate) struct CredentialsSource {
    /// The user where the provider names none.
    pub(crate) user: Option<String>,
    pub(crate) password: PasswordSource,
    /// Asked first.
    pub(crate) provider: Option<Arc<dyn CredentialsProvider>>,
    /// Whether the provider is asked for the credentials of a Sentinel.
    pub(crate) is_sentinel: bool,
}

/// Where the password comes from, if no provider gives it.
#[derive(Clone, Debug, Default)]
pub(crate) enum PasswordSource {
    #[default]
    None,
    Given(Secret),
    /// The option that names the file, and the file.
    InFile(&'static str, PathBuf),
}

/// The credentials of one connection.
#[derive(Default)]
pub(super) struct ResolvedCredentials {
    pub(super) user: Option<String>,
    pub(super) password: Option<Secret>,
}

/// Calls of the provider about one server.
pub(super) type ProviderCalls = BackgroundCall<Result<Option<Credentials>, Error>>;

impl CredentialsSource {
    /// Refuses a file that cannot be read.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.password
            .read()
            .map(drop)
            .map_err(|error| Error::configuration(error.to_string()).with_source(error))
    }

    /// The credentials of a connection that is made now, until `by`.
    pub(super) fn resolve(
        &self,
        calls: &ProviderCalls,
        server: &Server,
        clock: &dyn Clock,
        by: Moment,
    ) -> Result<ResolvedCredentials, Error> {
        if let Some(given) = self.provided(calls, server, clock, by)? {
            let user = given.user().map(str::to_owned).or_else(|| self.user.clone());
            return Ok(ResolvedCredentials { user, password: Some(given.password().clone()) });
        }
        Ok(ResolvedCredentials { user: self.user.clone(), password: self.password.read()? })
    }

    fn provided(
        &self,
        calls: &ProviderCalls,
        server: &Server,
        clock: &dyn Clock,
        by: Moment,
    ) -> Result<Option<Credentials>, Error> {
        let Some(provider) = self.provider.clone() else { return Ok(None) };
        let (name, is_sentinel) = (server.to_string(), self.is_sentinel);
        let call = move || {
            if is_sentinel {
                provider.sentinel_credentials(&name)
            } else {
                provider.credentials(&name).map(Some)
            }
        };
        let what = |what: &str| format!("the provider of credentials {what} for {server}");
        calls.call(clock, by, call).map_err(|error| match error {
            CallNotDone::NoThread(error) => no_thread(&what("cannot be asked"), error),
            CallNotDone::Late => Error::unavailable(what("gave none in time")),
            CallNotDone::Panicked => Error::unavailable(what("panicked")),
        })?
    }
}

impl PasswordSource {
    fn read(&self) -> Result<Option<Secret>, Error> {
        match self {
            Self::None => Ok(None),
            Self::Given(password) => Ok(Some(password.clone())),
            Self::InFile(option, path) => read(path).map(Some).map_err(|error| {
                let path = path.display();
                Error::unavailable(format!("no password can be read from `{option}={path}`"))
                    .with_source(error)
            }),
        }
    }
}

/// The password in a file: all of it, without one line end.
fn read(path: &Path) -> io::Result<Secret> {
    let text = fs::read_to_string(path)?;
    let line =
        text.strip_suffix('\n').map_or(&*text, |line| line.strip_suffix('\r').unwrap_or(line));
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
        for (text, password) in [("a b", "a b"), ("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n")] {
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
