//! [`ForeignClient`]: a library that notifies its own waiters of a release by a signal, which our
//! releases can send as well (`wakes=`).

/// A library whose waiters are woken by our releases, as our own waiters are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ForeignClient {
    /// `python-redis-lock`: waiters sleep in `BLPOP` on the list `lock-signal:NAME`; the lock's key
    /// is `lock:NAME`.
    PythonRedisLock,
    /// Spring's `RedisLockRegistry` in the mode `PUB_SUB_LOCK`: waiters listen on the channel
    /// `REGISTRY-channel:REGISTRY:NAME`; the lock's key is `REGISTRY:NAME`.
    SpringIntegration,
}

/// The prefix of the lock keys of python-redis-lock. The next constant is the prefix of its lists.
pub(crate) const LOCK: &str = "lock:";
const LIST: &str = "lock-signal:";

impl ForeignClient {
    /// Returns the library's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::PythonRedisLock => "python-redis-lock",
            Self::SpringIntegration => "spring-integration",
        }
    }

    /// Returns the list on which the library's waiters for this lock sleep; `None` if they sleep on
    /// no list, or the key is not one of the library's.
    pub(crate) fn list(self, key: &str) -> Option<String> {
        match self {
            Self::PythonRedisLock => Some([LIST, key.strip_prefix(LOCK)?].concat()),
            Self::SpringIntegration => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys;

    #[test]
    fn signal_list_has_the_name_of_python_redis_lock() {
        let list = ForeignClient::PythonRedisLock.list("lock:a:b");
        assert_eq!(list.as_deref(), Some("lock-signal:a:b"));
        assert_eq!(ForeignClient::SpringIntegration.list("registry:a"), None);
    }

    #[test]
    fn signal_list_shares_the_slot_of_a_tagged_lock() {
        for (key, is_there) in [
            ("lock:a", false),
            ("lock:{a}", true),
            ("lock:x:{a}:y", true),
        ] {
            let list = ForeignClient::PythonRedisLock.list(key).unwrap();
            assert_eq!(keys::slot(&list) == keys::slot(key), is_there, "{list}");
        }
    }
}
