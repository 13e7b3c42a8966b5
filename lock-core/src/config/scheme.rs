//! [`Scheme`] and [`Schemes`]: the kinds of stores that a URL can name.

use crate::backend::Backend;
use crate::backend::owner::ClientId;
use crate::config::{Config, did_you_mean};
use crate::error::Error;
use crate::observe::notices::Notices;
use crate::time::Clock;
use std::fmt;
use std::sync::Arc;

/// A kind of store that a URL can name. Implemented to make a [`Backend`] reachable by URL.
pub trait Scheme: Send + Sync {
    /// Returns the names by which a URL can select this scheme, before `://`.
    fn names(&self) -> &[&str];

    /// Returns the options of this scheme that are not settings of [`Config`]. A configuration with
    /// an option that is neither one of these nor a setting is refused.
    fn options(&self) -> &[&str] {
        &[]
    }

    /// Creates the backend. Must not wait for the store: the first request reports an unreachable
    /// store.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if the address or a setting is invalid for this kind of store.
    fn open(&self, config: &Config, context: &Context) -> Result<Arc<dyn Backend>, Error>;
}

/// The data of the client that opens a backend: its clock, its identity and its receiver of
/// reports.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Context {
    /// The clock of every deadline and every wait.
    pub clock: Arc<dyn Clock>,
    /// The client that opens the backend.
    pub client: ClientId,
    /// The receiver of reports that are not replies to a request.
    pub notices: Notices,
}

impl Context {
    /// Creates a context whose notices have no handler.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, client: ClientId) -> Self {
        Self {
            clock,
            client,
            notices: Notices::default(),
        }
    }

    /// Sets the notices.
    #[must_use]
    pub fn with_notices(self, notices: Notices) -> Self {
        Self { notices, ..self }
    }
}

/// The error text in a program that knows no scheme but `memory`.
const MEMORY_ALONE: &str = "there is `memory://` alone: the others are in the crate `distlock`, \
                            with its features `redis` and `cluster`, and its `distlock::builder()`";

/// The schemes that a program knows.
#[derive(Clone, Default)]
pub struct Schemes(Vec<Arc<dyn Scheme>>);

impl Schemes {
    /// Creates an empty set.
    #[must_use]
    pub fn empty() -> Self {
        Self::default()
    }

    /// Adds a scheme. If an earlier scheme has the same name, the new scheme is used for that name.
    #[must_use]
    pub fn with(mut self, scheme: impl Scheme + 'static) -> Self {
        self.0.insert(0, Arc::new(scheme));
        self
    }

    /// Opens the backend that a configuration names.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] for invalid settings, for unknown schemes and options (with a
    /// list of the accepted ones), for misspelt environment variables, and for values that the
    /// scheme refuses.
    pub fn open(&self, config: &Config, context: &Context) -> Result<Arc<dyn Backend>, Error> {
        config.check()?;
        let Some(scheme) = self
            .0
            .iter()
            .find(|scheme| scheme.names().contains(&config.scheme()))
        else {
            let mut known: Vec<_> = self
                .0
                .iter()
                .flat_map(|scheme| scheme.names())
                .map(|n| format!("`{n}://`"))
                .collect();
            known.sort_unstable();
            known.dedup();
            let known = match &*known {
                [one] if one == "`memory://`" => MEMORY_ALONE.to_owned(),
                known => format!("there are {}", known.join(", ")),
            };
            let names = self.0.iter().flat_map(|scheme| scheme.names()).copied();
            return Err(Error::configuration(format!(
                "there is no scheme `{}://`{}; {known}",
                config.scheme(),
                did_you_mean(config.scheme(), names),
            )));
        };
        config.refuse_unknown_options(scheme.options())?;
        scheme.open(config, context)
    }
}

impl fmt::Debug for Schemes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries(self.0.iter().flat_map(|scheme| scheme.names()))
            .finish()
    }
}
