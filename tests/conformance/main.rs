//! The conformance suite, mounted on every store; and memory and Redis side by side.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics, and says where")]

mod formats;
mod replicated;
mod selfcheck;
mod side_by_side;
mod subjects;

// The store in this process's memory.
mod memory {
    lock_core::conformance_tests!(super::subjects::MemorySubject::new());
}

// Locks in three stores as one: all of them, most of them, and some inside of others. They sit what can be asked of a lock; the
// suite itself lists what only a store can be asked.
mod all_of_three {
    lock_core::conformance_tests!(super::subjects::SeveralSubject::all());
}
mod majority_of_three {
    lock_core::conformance_tests!(super::subjects::SeveralSubject::majority());
}
mod nested {
    lock_core::conformance_tests!(super::subjects::SeveralSubject::nested());
}

// One Redis server, a new one for every case.
mod redis {
    lock_core::conformance_tests!(super::subjects::RedisSubject::start());
}

// The same over a socket in the file system.
mod redis_unix {
    lock_core::conformance_tests!(super::subjects::RedisSubject::on_a_socket());
}

// The same as a user who may do no more than the documentation asks for.
mod redis_with_the_least_rights {
    lock_core::conformance_tests!(super::subjects::RedisSubject::with_the_least_rights());
}

// A master with replicas, which sentinels name.
mod sentinel {
    lock_core::conformance_tests!(super::subjects::SentinelSubject::start());
}

// A master with two replicas, one of which must confirm every lock, or both.
mod redis_replicas_1 {
    lock_core::conformance_tests!(super::replicated::ReplicatedSubject::under(1));
}
mod redis_replicas_2 {
    lock_core::conformance_tests!(super::replicated::ReplicatedSubject::under(2));
}

// One Redis server over TLS.
mod redis_tls {
    lock_core::conformance_tests!(super::subjects::RedisSubject::on_tls());
}

// A Redis Cluster, shared by all cases, with locks of any name and sharded channels.
mod cluster {
    lock_core::conformance_tests!(super::subjects::ClusterSubject::untagged());
}

// The same with hash tags in the names, and with plain channels.
mod cluster_with_tags {
    lock_core::conformance_tests!(super::subjects::ClusterSubject::tagged());
}

// The same as a user who may do no more than the documentation asks for.
mod cluster_with_the_least_rights {
    lock_core::conformance_tests!(super::subjects::ClusterSubject::with_the_least_rights());
}

// What others write under the key, with our tokens beside it and without, on one server and on a cluster; and on a master
// that sentinels name, where what is asked of the format is the same for all of its settings.
mod token {
    use super::formats::{FormatSubject, TOKEN};
    lock_core::conformance_tests!(FormatSubject::on_redis(TOKEN));
}
mod token_on_a_cluster {
    use super::formats::{FormatSubject, TOKEN};
    lock_core::conformance_tests!(FormatSubject::on_cluster(TOKEN));
}
mod token_on_sentinel {
    use super::formats::{FormatSubject, TOKEN};
    lock_core::conformance_tests!(FormatSubject::on_sentinel(TOKEN));
}
mod bare_token {
    use super::formats::{BARE_TOKEN, FormatSubject};
    lock_core::conformance_tests!(FormatSubject::on_redis(BARE_TOKEN));
}
mod bare_token_on_a_cluster {
    use super::formats::{BARE_TOKEN, FormatSubject};
    lock_core::conformance_tests!(FormatSubject::on_cluster(BARE_TOKEN));
}

// Where a release wakes another library's waiters, too. What it does elsewhere is tested in `redis::wakes`.
mod token_that_wakes_python_redis_lock {
    use super::formats::{FormatSubject, WAKES_PYTHON};
    lock_core::conformance_tests!(FormatSubject::on_redis(WAKES_PYTHON));
}
mod token_that_wakes_spring_integration {
    use super::formats::{FormatSubject, WAKES_SPRING};
    lock_core::conformance_tests!(FormatSubject::on_redis(WAKES_SPRING));
}
mod plain {
    use super::formats::{FormatSubject, PLAIN};
    lock_core::conformance_tests!(FormatSubject::on_redis(PLAIN));
}
mod plain_on_a_cluster {
    use super::formats::{FormatSubject, PLAIN};
    lock_core::conformance_tests!(FormatSubject::on_cluster(PLAIN));
}
mod plain_on_sentinel {
    use super::formats::{FormatSubject, PLAIN};
    lock_core::conformance_tests!(FormatSubject::on_sentinel(PLAIN));
}
mod plain_commands {
    use super::formats::{FormatSubject, PLAIN_COMMANDS};
    lock_core::conformance_tests!(FormatSubject::on_redis(PLAIN_COMMANDS));
}
mod plain_commands_on_a_cluster {
    use super::formats::{FormatSubject, PLAIN_COMMANDS};
    lock_core::conformance_tests!(FormatSubject::on_cluster(PLAIN_COMMANDS));
}
mod timestamp {
    use super::formats::{FormatSubject, TIMESTAMP};
    lock_core::conformance_tests!(FormatSubject::on_redis(TIMESTAMP));
}
mod timestamp_on_a_cluster {
    use super::formats::{FormatSubject, TIMESTAMP};
    lock_core::conformance_tests!(FormatSubject::on_cluster(TIMESTAMP));
}
mod timestamp_on_sentinel {
    use super::formats::{FormatSubject, TIMESTAMP};
    lock_core::conformance_tests!(FormatSubject::on_sentinel(TIMESTAMP));
}
mod timestamp_delete {
    use super::formats::{FormatSubject, TIMESTAMP_DELETE};
    lock_core::conformance_tests!(FormatSubject::on_redis(TIMESTAMP_DELETE));
}
mod timestamp_delete_on_a_cluster {
    use super::formats::{FormatSubject, TIMESTAMP_DELETE};
    lock_core::conformance_tests!(FormatSubject::on_cluster(TIMESTAMP_DELETE));
}
mod float_not_older {
    use super::formats::{FLOAT_NOT_OLDER, FormatSubject};
    lock_core::conformance_tests!(FormatSubject::on_redis(FLOAT_NOT_OLDER));
}
mod float_not_older_on_a_cluster {
    use super::formats::{FLOAT_NOT_OLDER, FormatSubject};
    lock_core::conformance_tests!(FormatSubject::on_cluster(FLOAT_NOT_OLDER));
}
mod float {
    use super::formats::{FLOAT, FormatSubject};
    lock_core::conformance_tests!(FormatSubject::on_redis(FLOAT));
}
mod float_on_a_cluster {
    use super::formats::{FLOAT, FormatSubject};
    lock_core::conformance_tests!(FormatSubject::on_cluster(FLOAT));
}
mod counter {
    use super::formats::{COUNTER, FormatSubject};
    lock_core::conformance_tests!(FormatSubject::on_redis(COUNTER));
}
mod counter_on_a_cluster {
    use super::formats::{COUNTER, FormatSubject};
    lock_core::conformance_tests!(FormatSubject::on_cluster(COUNTER));
}
mod counter_on_sentinel {
    use super::formats::{COUNTER, FormatSubject};
    lock_core::conformance_tests!(FormatSubject::on_sentinel(COUNTER));
}
mod counter_multi {
    use super::formats::{COUNTER_MULTI, FormatSubject};
    lock_core::conformance_tests!(FormatSubject::on_redis(COUNTER_MULTI));
}
mod counter_multi_on_a_cluster {
    use super::formats::{COUNTER_MULTI, FormatSubject};
    lock_core::conformance_tests!(FormatSubject::on_cluster(COUNTER_MULTI));
}
mod counter_lua {
    use super::formats::{COUNTER_LUA, FormatSubject};
    lock_core::conformance_tests!(FormatSubject::on_redis(COUNTER_LUA));
}
mod counter_lua_on_a_cluster {
    use super::formats::{COUNTER_LUA, FormatSubject};
    lock_core::conformance_tests!(FormatSubject::on_cluster(COUNTER_LUA));
}
