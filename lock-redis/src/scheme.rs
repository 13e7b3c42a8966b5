//! [`RedisScheme`]: what `redis://` stands for.

use crate::backend::RedisBackend;
use lock_core::{Backend, Config, Context, Error, Scheme};
use std::sync::Arc;

/// `redis://[user[:password]@]host[:port][/database]`: one Redis server, reached over TCP.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct RedisScheme;

impl RedisScheme {
    /// The scheme.
    #[must_use]
    pub fn new() -> Self {
        Self
    }
}

impl Scheme for RedisScheme {
    fn names(&self) -> &[&str] {
        &["redis"]
    }

    fn open(&self, config: &Config, context: &Context) -> Result<Arc<dyn Backend>, Error> {
        Ok(Arc::new(RedisBackend::new(config, context)?))
    }
}
