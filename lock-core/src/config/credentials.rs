//! [`Credentials`] and [`CredentialsProvider`]: user and password for new connections.

use super::Secret;
use crate::error::Error;
use std::fmt;
use std::sync::Arc;

/// The password or token with which a client authenticates, and optionally a user.
///
/// [`Debug`](fmt::Debug) does not show the password.
#[derive(Clone, Debug)]
pub struct Credentials {
    user: Option<String>,
    password: Secret,
}

impl Credentials {
    /// Creates credentials of this password or token, without a user. Then the user of the
    /// [`Config`](crate::Config) is used, if it has one; for a Sentinel, that of `sentinel_user`.
    #[must_use]
    pub fn new(password: impl Into<String>) -> Self {
        Self {
            user: None,
            password: Secret::new(password),
        }
    }

    /// Sets the user.
    #[must_use]
    pub fn with_user(self, user: impl Into<String>) -> Self {
        Self {
            user: Some(user.into()),
            ..self
        }
    }

    /// Returns the user, if one was set.
    #[must_use]
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// Returns the password.
    #[must_use]
    pub fn password(&self) -> &Secret {
        &self.password
    }
}

/// A provider of credentials for each new connection: for passwords that are rotated and tokens
/// that expire.
///
/// Functions and closures implement this trait:
///
/// ```
/// # extern crate lock_core as distlock;
/// use distlock::{Config, Error};
/// use distlock::config::Credentials;
/// use std::sync::Arc;
///
/// fn token_of(server: &str) -> Result<Credentials, Error> {
///     # let _ = server;
///     let token = String::from("..."); // from a secret store, say
///     Ok(Credentials::new(token).with_user("locker"))
/// }
///
/// let config = Config::from_url("redis://10.0.0.7")?.with_credentials(Arc::new(token_of));
/// # let _ = config;
/// # Ok::<(), Error>(())
/// ```
pub trait CredentialsProvider: Send + Sync {
    /// Returns the credentials for a new connection to `server`, which is `host:port` or the path
    /// of a socket.
    ///
    /// # Blocking
    ///
    /// Runs on a separate thread. Connections to one server that wait for credentials at the same
    /// time share one call. A connection waits for the call for at most `connect_timeout`, and
    /// fails if the call takes longer. The call then continues: a later connection that waits when
    /// the call returns uses the result. If a call takes more than 5 s, another call may begin in
    /// parallel.
    ///
    /// # Errors
    ///
    /// The connection fails with this error, which must not contain a secret. After an
    /// [unavailable](Error::is_unavailable) error the client retries. Any other error, such as a
    /// [configuration](Error::is_configuration) error, is reported to the caller at once.
    fn credentials(&self, server: &str) -> Result<Credentials, Error>;

    /// Returns the credentials for a Sentinel, or `None` (the default) to use those in the options
    /// `sentinel_user`, `sentinel_password` and `sentinel_password_file`.
    ///
    /// # Errors
    ///
    /// Those of [`credentials`](Self::credentials).
    fn sentinel_credentials(&self, sentinel: &str) -> Result<Option<Credentials>, Error> {
        let _as_the_settings_say = sentinel;
        Ok(None)
    }
}

impl<F: Fn(&str) -> Result<Credentials, Error> + Send + Sync> CredentialsProvider for F {
    fn credentials(&self, server: &str) -> Result<Credentials, Error> {
        self(server)
    }
}

/// A provider in a [`Config`](crate::Config).
#[derive(Clone)]
pub(super) struct Provider(pub(super) Arc<dyn CredentialsProvider>);

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CredentialsProvider")
    }
}
