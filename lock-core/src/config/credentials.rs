//! [`Credentials`] and [`CredentialsProvider`]: who we are to a server, where that changes while a program runs.

use super::Secret;
use crate::error::Error;
use std::fmt;
use std::sync::Arc;

/// Who we are to a server: a password or token, and perhaps a user.
///
/// [`Debug`](fmt::Debug) does not show the password.
#[derive(Clone, Debug)]
pub struct Credentials {
    user: Option<String>,
    password: Secret,
}

impl Credentials {
    /// This password, or token; and the user of the [`Config`](crate::Config), if that names one.
    #[must_use]
    pub fn new(password: impl Into<String>) -> Self {
        Self { user: None, password: Secret::new(password) }
    }

    /// The same for this user.
    #[must_use]
    pub fn with_user(self, user: impl Into<String>) -> Self {
        Self { user: Some(user.into()), ..self }
    }

    /// The user, if it was given one.
    #[must_use]
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The password.
    #[must_use]
    pub fn password(&self) -> &Secret {
        &self.password
    }
}

/// Gives the credentials for each new connection: for passwords that are rotated and tokens that
/// expire.
///
/// A function is one:
///
/// ```
/// # extern crate lock_core as distlock;
/// use distlock::{Config, Credentials, Error};
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
    /// The credentials for a new connection to `server`, which is `host:port` or the path of a
    /// socket.
    ///
    /// # Blocking
    ///
    /// It runs on a thread of its own, once at a time for each server. What makes the connection
    /// waits for it as long as `connect_timeout` allows, and then fails; the call itself goes on,
    /// and a later connection takes what it gives then.
    ///
    /// # Errors
    ///
    /// The connection is not made, and what needed it fails with this error. One of
    /// [configuration](Error::is_configuration) is told at once, with any other it is tried again.
    /// No secret may stand in it.
    fn credentials(&self, server: &str) -> Result<Credentials, Error>;

    /// The same for a Sentinel. `None`, the default: as `sentinel_user`, `sentinel_password` and
    /// `sentinel_password_file` say.
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
