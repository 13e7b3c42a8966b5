//! [`OwnPool`]: one server, reached by a pool of connections of the crate `redis`.

use super::format::Format;
use super::mount::Shared;
use super::store::{Single, Store, shared};
use distlock::backend::{Backend, Context, Schemes};
use distlock::redis_rs::{RedisPool, redis};
use distlock::{ClientBuilder, Config, LockName};
use lock_conformance::{Seen, Subject};
use std::sync::Arc;

/// A store over connections that an application lends.
pub struct OwnPool {
    /// The same store over connections of our own, which reads the locks.
    store: Store<Arc<Single>>,
    pool: RedisPool,
    url: String,
}

impl OwnPool {
    /// Opens stores of this format on a server that all cases share. With `polls`, waiters are not
    /// notified.
    pub fn opener(
        server: &Shared<Single>,
        format: Format,
        polls: bool,
    ) -> impl Fn() -> Self + Send + Sync + 'static {
        let (open, server) = (shared(server, Single::url, format), server.clone());
        move || {
            let client = redis::Client::open(server.get().url()).unwrap();
            let pool = RedisPool::new(r2d2_pool(client.clone()));
            let pool = match polls {
                true => pool,
                false => pool.with_waking(&client).unwrap(),
            };
            Self {
                store: open(),
                pool,
                url: format!("redis+pool://?{}", format.options),
            }
        }
    }
}

fn r2d2_pool(client: redis::Client) -> distlock::redis_rs::r2d2::Pool<redis::Client> {
    distlock::redis_rs::r2d2::Pool::builder()
        .max_size(10)
        .min_idle(Some(0))
        .build(client)
        .unwrap()
}

impl Subject for OwnPool {
    fn name(&self) -> String {
        self.url.clone()
    }

    fn backend(&self, context: &Context) -> Arc<dyn Backend> {
        let schemes = Schemes::empty().with(self.pool.clone());
        schemes
            .open(&Config::from_url(&self.url).unwrap(), context)
            .unwrap()
    }

    fn client(&self, context: &Context) -> ClientBuilder {
        let builder = self.pool.clone().builder().unwrap();
        builder
            .clock(Arc::clone(&context.clock))
            .url(&self.url)
            .unwrap()
    }

    fn settings(&self, config: Config) -> Config {
        self.store.settings(config)
    }

    fn probe(&self, lock: &LockName) -> Seen {
        Subject::probe(&self.store, lock)
    }

    fn lose(&self, lock: &LockName) {
        self.store.lose(lock);
    }
}
