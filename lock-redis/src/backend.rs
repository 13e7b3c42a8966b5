//! [`RedisBackend`]: one Redis server as a store of locks.

use crate::format::Redisson;
use crate::link::{Bounds, Dialer, Login, Server, SharedLink};
use crate::pool::{LinkPool, Slot};
use crate::scheme;
use crate::subscriber::Subscriber;
use lock_core::backend::{
    Abilities, Answer, Attempt, Closing, Doubt, Failure, Lane, LockInfo, RENEW_BATCH, Release,
    Released, Renewal, Renewing, TenureId, Wake, Watch,
};
use lock_core::{Backend, Config, Context, Error, LockName, Moment};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;

/// One standalone Redis server.
///
/// Attempts and releases of all threads share one connection, and wait on it for their answers only; renewals have one
/// of their own, so that traffic cannot starve them; what cleans up after a lost answer, and what renews while another
/// renewal hangs, borrows one of at most `pool`; and one more hears of releases, from the first watch on. Nothing is dialled before it is needed.
///
/// Dropping it ends its threads and connections, without waiting for them.
pub struct RedisBackend {
    format: Redisson,
    /// The way of all requests but the renewals: one for all threads, so that the requests of a lock keep their order. Two
    /// were no faster, neither with 8 threads nor with 128.
    link: SharedLink,
    /// For what must not stand behind a request that takes too long.
    pool: LinkPool,
    dialer: Arc<Dialer>,
    /// The link of the lane. Whoever finds it taken, because the renewal before hangs, borrows one of the pool.
    renewals: Mutex<Slot>,
    subscriber: Subscriber,
}

impl RedisBackend {
    /// The lane that renews here: one server has one.
    const LANE: u64 = 0;

    /// The server that `config` names. Does not talk to it.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if the URL does not name exactly one server, or no database number, or a setting
    /// contradicts another.
    pub fn new(config: &Config, context: &Context) -> Result<Self, Error> {
        config.check()?;
        let (place, database) = scheme::address(config)?;
        let tls = scheme::tls(config)?;
        let login = Login {
            user: config.user().map(str::to_owned),
            password: config.password().cloned(),
            database,
            client_name: config.client_name().to_owned(),
        };
        let server = Server::new(place, config.user());
        let bounds =
            Bounds { connect: config.connect_timeout(), command: config.command_timeout() };
        let dialer = Arc::new(Dialer::new(server, tls, login, bounds, Arc::clone(&context.clock)));
        Ok(Self {
            link: SharedLink::new(Arc::clone(&dialer)),
            format: Redisson::new(config.prefix(), config.tokens(), config.command_timeout()),
            pool: LinkPool::new(config.pool(), Arc::clone(&dialer))?,
            renewals: Mutex::default(),
            subscriber: Subscriber::new(Arc::clone(&dialer), config.command_timeout()),
            dialer,
        })
    }

    fn renew_chunk(&self, chunk: &[Renewing], by: Moment) -> Vec<Result<Renewal, Failure>> {
        let outcome = match self.renewals.try_lock() {
            Some(mut slot) => {
                slot.exchange(&self.dialer, by, |link| self.format.renew(link, chunk, by))
            }
            None => self.pool.exchange(by, |link| self.format.renew(link, chunk, by)),
        };
        match outcome {
            Ok(renewals) => renewals,
            Err(failure) => chunk.iter().map(|_| Err(failure.clone())).collect(),
        }
    }
}

/// The same failure, said of this lock.
fn on(name: &LockName) -> impl FnOnce(Failure) -> Failure {
    move |failure| match failure {
        Failure::Refused(error) => Failure::Refused(error.on(name)),
        Failure::NotSent(error) => Failure::NotSent(error.on(name)),
        Failure::Unknown(error) => Failure::Unknown(error.on(name)),
        other => other,
    }
}

impl Backend for RedisBackend {
    fn acquire(&self, attempt: &Attempt<'_>, by: Moment) -> Result<Answer, Failure> {
        self.link
            .exchange(by, |link| self.format.acquire(link, attempt, by))
            .map_err(on(attempt.name))
    }

    fn renew(&self, _: Lane, batch: &[Renewing], by: Moment) -> Vec<Result<Renewal, Failure>> {
        let renewals = batch.chunks(RENEW_BATCH).flat_map(|chunk| self.renew_chunk(chunk, by));
        renewals.zip(batch).map(|(renewal, one)| renewal.map_err(on(&one.tenure.name))).collect()
    }

    fn release(&self, tenure: &TenureId, closing: Closing, by: Moment) -> Result<Release, Failure> {
        // What cleans up after a request without an answer shall not stand behind that one. It may overtake it: that is
        // what the tombstone is for.
        let outcome = if closing.doubt != Doubt::Clean {
            self.pool.exchange(by, |link| self.format.release(link, tenure, closing, by))
        } else {
            self.link.exchange(by, |link| self.format.release(link, tenure, closing, by))
        };
        outcome.map_err(on(&tenure.name))
    }

    fn submit_release(&self, tenure: &TenureId, closing: Closing, by: Moment, done: Released) {
        let name = tenure.name.clone();
        let done = Box::new(move |outcome: Result<_, _>| done(outcome.map_err(on(&name))));
        self.format.submit_release(&self.link, tenure, closing, by, done);
    }

    fn inspect(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure> {
        self.link.exchange(by, |link| self.format.inspect(link, name, by)).map_err(on(name))
    }

    fn force_release(&self, name: &LockName, by: Moment) -> Result<bool, Failure> {
        self.link.exchange(by, |link| self.format.force(link, name, by)).map_err(on(name))
    }

    fn watch(&self, name: &LockName, wake: Arc<dyn Wake>, by: Moment) -> Result<Watch, Failure> {
        self.subscriber.watch(&self.format.channel(name), wake, by).map_err(on(name))
    }

    fn lane(&self, _: &LockName) -> Lane {
        Lane::new(Self::LANE)
    }

    fn abilities(&self) -> Abilities {
        Abilities::full().tokens(self.format.has_tokens())
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackend")
            .field("server", &format_args!("{}", self.dialer.server()))
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::{ClientId, SystemClock};

    fn refusal(url: &str) -> String {
        let context = Context::new(Arc::new(SystemClock), ClientId::random());
        let config = Config::from_url(url).unwrap();
        let error = RedisBackend::new(&config, &context).unwrap_err();
        assert!(error.is_configuration(), "{error:?}");
        error.to_string()
    }

    #[test]
    fn an_address_that_is_not_one_server_is_refused() {
        assert!(refusal("redis://a,b").contains("`redis+sentinel://`"));
        assert!(refusal("redis://").contains("0 hosts"));
        assert!(refusal("redis://a/b").contains("`/b`"));
        assert!(refusal("redis://a/-1").contains("`/-1`"));
        assert!(refusal("redis+unix://run/redis.sock").contains("three slashes"));
        assert!(refusal("redis+unix://").contains("three slashes"));
        assert!(refusal("redis+unix:///").contains("three slashes"));
        assert!(refusal("redis+unix:///run/redis.sock?db=x").contains("`db=x`"));
        assert!(refusal(&format!("redis+unix:///{}", "x".repeat(200))).contains("shorter"));
    }

    #[test]
    fn nothing_is_dialled_and_nothing_secret_shown() {
        let context = Context::new(Arc::new(SystemClock), ClientId::random());
        let config = Config::from_url("redis://me:s3cret@192.0.2.1/3").unwrap();
        let backend = RedisBackend::new(&config, &context).unwrap();
        let shown = format!("{backend:?}");
        assert!(shown.contains("192.0.2.1:6379") && !shown.contains("s3cret"), "{shown}");
    }
}
