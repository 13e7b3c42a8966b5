//! The setting `wakes=` of `format=token`: the library whose waiters our releases wake besides our
//! own.
//!
//! Two libraries notify their waiters of a release by a signal of their own, without which those
//! waiters continue to sleep. With this setting, our releases send that signal as well, in the
//! script that frees the lock. Each library has a [`Dialect`] with its own ending of the release
//! scripts (`lua/endings`). This dialect has no joins, because the scripts of joins have the usual
//! ending. Separate endings cost other dialects nothing. A condition in a common ending would
//! lengthen their requests and take server time.

use super::Dialect;
use crate::keys;
use crate::lua::foreign_client::{ForeignClient, LOCK};
use crate::lua::scripts;
use crate::wakeups::PollInterval;
use std::time::Duration;

/// The default time between two polls of a waiter with `wakes=python-redis-lock`, because that
/// library's release hands the lock to one of its own waiters and publishes nothing. At ten times
/// this interval, distlock got the lock in one of a hundred releases.
const OFTEN: Duration = Duration::from_millis(10);

/// The pattern of the channels of all Spring registries, for an ACL: the script does not contain
/// the key of the registry.
const ANY_REGISTRY: &str = "*-channel";

pub(crate) static PYTHON_REDIS_LOCK: Dialect = Dialect::token(
    scripts!(
        words: "token",
        channel: super::token::CHANNEL,
        wakes: ForeignClient::PythonRedisLock,
        ending: "python-redis-lock"
    ),
    &[],
);

pub(crate) static SPRING_INTEGRATION: Dialect = Dialect::token(
    scripts!(
        words: "token",
        channel: ANY_REGISTRY,
        wakes: ForeignClient::SpringIntegration,
        ending: "spring-integration"
    ),
    &[],
);

impl ForeignClient {
    /// The values of the setting, each with the library that it names.
    pub(super) const WORDS: [(&str, Self); 2] = [
        ("wakes=python-redis-lock", Self::PythonRedisLock),
        ("wakes=spring-integration", Self::SpringIntegration),
    ];

    /// Returns the interval at which our waiters poll if no `poll=` is set.
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

    /// Returns what is wrong with this prefix, if signals for locks with this prefix would not
    /// reach the library's waiters; otherwise `None`.
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

/// The rule for the name of a release channel.
#[derive(Clone, Copy, Debug)]
pub(super) enum Naming {
    /// This text and the lock's key, joined by [`keys::channel`].
    Ours(&'static str),
    /// The registry's key, `-channel:`, and the lock's key. The registry's key is this many bytes
    /// at the beginning of the lock's key.
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
