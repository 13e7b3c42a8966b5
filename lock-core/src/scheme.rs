//! [`Scheme`] and [`Schemes`]: which store a URL's `scheme://` stands for.

use crate::backend::Backend;
use crate::clock::Clock;
use crate::config::{Config, did_you_mean};
use crate::error::Error;
use crate::notices::Notices;
use crate::owner::ClientId;
use std::fmt;
use std::sync::Arc;

/// A kind of store that a URL can name. Implement it to make your own [`Backend`] reachable by URL.
pub trait Scheme: Send + Sync {
    /// What stands before `://`; several names may lead to one kind of store.
    fn names(&self) -> &[&str];

    /// The options this scheme takes beyond those that [`Config`] has settings for. All others are
    /// refused by name.
    fn options(&self) -> &[&str] {
        &[]
    }

    /// Makes the backend. Must not wait for the store: one that is down is reported when it is
    /// first asked.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if the address or a setting makes no sense for this kind of
    /// store.
    fn open(&self, config: &Config, context: &Context) -> Result<Arc<dyn Backend>, Error>;
}

/// What a backend is given beyond its configuration.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Context {
    /// The clock that every `by` is on. All waiting goes through it.
    pub clock: Arc<dyn Clock>,
    /// The client that opens the backend.
    pub client: ClientId,
    /// Where the backend reports what is no answer to a request.
    pub notices: Notices,
}

impl Context {
    /// A context whose notices reach no handler.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, client: ClientId) -> Self {
        Self { clock, client, notices: Notices::default() }
    }

    /// The same with these notices.
    #[must_use]
    pub fn with_notices(self, notices: Notices) -> Self {
        Self { notices, ..self }
    }
}

/// The schemes that a program knows: a value, not a global.
#[derive(Clone, Default)]
pub struct Schemes(Vec<Arc<dyn Scheme>>);

impl Schemes {
    /// None at all.
    #[must_use]
    pub fn empty() -> Self {
        Self::default()
    }

    /// These and one more. A name that is there already is taken over by the newcomer.
    #[must_use]
    pub fn with(mut self, scheme: impl Scheme + 'static) -> Self {
        self.0.insert(0, Arc::new(scheme));
        self
    }

    /// Makes the backend that a configuration names.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] for unknown schemes and options, with what would be accepted,
    /// and for whatever the scheme itself refuses.
    pub fn open(&self, config: &Config, context: &Context) -> Result<Arc<dyn Backend>, Error> {
        config.check()?;
        let Some(scheme) = self.0.iter().find(|scheme| scheme.names().contains(&config.scheme()))
        else {
            let mut known: Vec<_> = self
                .0
                .iter()
                .flat_map(|scheme| scheme.names())
                .map(|n| format!("`{n}://`"))
                .collect();
            known.sort_unstable();
            known.dedup();
            let names = self.0.iter().flat_map(|scheme| scheme.names()).copied();
            return Err(Error::configuration(format!(
                "there is no scheme `{}://`{}; there are {}",
                config.scheme(),
                did_you_mean(config.scheme(), names),
                known.join(", ")
            )));
        };
        config.refuse_unknown_options(scheme.options())?;
        scheme.open(config, context)
    }
}

impl fmt::Debug for Schemes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.iter().flat_map(|scheme| scheme.names())).finish()
    }
}
