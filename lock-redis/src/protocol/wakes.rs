//! The setting `wakes=` of `format=token`: whose waiters our releases wake besides our own.
//!
//! Two libraries tell their own waiters of a release by a signal of their own, and those sleep
//! until it comes. With the setting a release says it as well, in the script that frees the lock.
//! Each is a [`Dialect`] with another end behind the same scripts (`lua/endings`), and without the
//! scripts for several locks, which have the usual end. An end of its own, and not a condition in
//! the one that all have: so what the others send, and what it costs the server, stays as it was.

use super::Dialect;
use crate::keys;
use crate::lua::foreign_client::{ForeignClient, LOCK};
use crate::lua::scripts;
use crate::wakeups::PollInterval;
use std::time::Duration;

/// The time between two attempts of a waiter with `wakes=python-redis-lock`, because that library's
/// release hands the lock to one of its own waiters and publishes nothing: at ten times this
/// interval distlock had one turn of a hundred.
const OFTEN: Duration = Duration::from_millis(10);

/// What an ACL must allow of Spring's channels: which registry's it is, a script does not know.
const ANY_REGISTRY: &str = "*-channel";

pub(crate) static PYTHON_REDIS_LOCK: Dialect = Dialect::token(
    scripts!(
        words: "token",
        ending: "python-redis-lock",
        channel: super::token::CHANNEL,
        wakes: Some(ForeignClient::PythonRedisLock)
    ),
    &[],
);

pub(crate) static SPRING_INTEGRATION: Dialect = Dialect::token(
    scripts!(
        words: "token",
        ending: "spring-integration",
        channel: ANY_REGISTRY,
        wakes: Some(ForeignClient::SpringIntegration)
    ),
    &[],
);

impl ForeignClient {
    /// How they are written.
    pub(super) const WORDS: [(&str, Self); 2] = [
        ("wakes=python-redis-lock", Self::PythonRedisLock),
        ("wakes=spring-integration", Self::SpringIntegration),
    ];

    /// How often a waiter of ours asks again where nothing is said of it.
    pub(super) fn usual_polls(self) -> PollInterval {
        match self {
            Self::PythonRedisLock => PollInterval::new(OFTEN, None),
            Self::SpringIntegration => PollInterval::default(),
        }
    }

    pub(super) fn dialect(self) -> &'static Dialect {
        match self {
            Self::PythonRedisLock => &PYTHON_REDIS_LOCK,
            Self::SpringIntegration => &SPRING_INTEGRATION,
        }
    }

    /// What is wrong with this prefix, without which the signal would go elsewhere than theirs.
    pub(super) fn complaint(self, prefix: &str) -> Option<&'static str> {
        match self {
            Self::PythonRedisLock => (!prefix.starts_with(LOCK)).then_some(
                "`wakes=python-redis-lock` needs `prefix=lock:`, which that library puts before \
                 the name of a lock",
            ),
            Self::SpringIntegration => (prefix.len() < 2 || !prefix.ends_with(':')).then_some(
                "`wakes=spring-integration` needs a prefix that ends with `:`, the registry's key \
                 and that, as in `prefix=registry:`",
            ),
        }
    }
}

/// What the channel is called on which a release is told.
#[derive(Clone, Copy, Debug)]
pub(super) enum Naming {
    /// This, and the lock's key.
    Ours(&'static str),
    /// The registry's key, which is so much of the lock's, and the lock's.
    Registry(usize),
}

impl Naming {
    pub(super) fn new(dialect: &Dialect, prefix: &str) -> Self {
        match dialect.wakes() {
            Some(ForeignClient::SpringIntegration) => {
                Self::Registry(prefix.len().saturating_sub(1))
            }
            Some(ForeignClient::PythonRedisLock) | None => {
                Self::Ours(dialect.scripts.release.channel)
            }
        }
    }

    pub(super) fn of(self, key: &str) -> String {
        match self {
            Self::Ours(name) => keys::channel(name, key),
            Self::Registry(length) => [&key[..length], "-channel:", key].concat(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_have_the_names_of_the_foreign_clients() {
        let naming = Naming::new(&PYTHON_REDIS_LOCK, "lock:");
        assert_eq!(naming.of("lock:a"), "distlock_lock__channel:{lock:a}");
        let naming = |prefix| Naming::new(&SPRING_INTEGRATION, prefix);
        assert_eq!(
            naming("registry:").of("registry:a"),
            "registry-channel:registry:a"
        );
        assert_eq!(
            naming("app:locks:").of("app:locks:{a}"),
            "app:locks-channel:app:locks:{a}"
        );
    }
}
