//! All mounts of the suite on real servers. A new kind of store gets a mount here.

use distlock_tests::authority::Authority;
use distlock_tests::cluster::Cluster;
use distlock_tests::postgres::PostgresServer;
use distlock_tests::probe::Probe;
use distlock_tests::replicas::Replicated;
use distlock_tests::rights;
use distlock_tests::sentinel::Group;
use distlock_tests::subjects::format::{
    BARE_TOKEN, COUNTER, COUNTER_LUA, COUNTER_MULTI, FLOAT, FLOAT_NOT_OLDER, Format, NotApplicable,
    PLAIN, PLAIN_COMMANDS, REDISSON, TIMESTAMP, TIMESTAMP_DELETE, TOKEN, WAKES_PYTHON,
    WAKES_SPRING,
};
use distlock_tests::subjects::mount::{self, Extent, Mount, Pool, Shared};
use distlock_tests::subjects::own_pool::OwnPool;
use distlock_tests::subjects::postgres::{Database, Sessions};
use distlock_tests::subjects::quorum::{Nodes, Quorum, only_field};
use distlock_tests::subjects::store::{Servers, Sharded, Single, Watched, borrowed, shared};
use libtest_mimic::Trial;
use lock_conformance::{
    NEEDS_A_LIST_OF_REPLICAS, NEEDS_A_QUEUE, NEEDS_ALL_KINDS, NEEDS_NOTIFICATION, NEEDS_REPLICAS,
    NEEDS_TOKENS, Subject,
};
use std::sync::Arc;

/// The largest number of server groups for cases that each need a group for themselves.
const GROUPS: usize = 6;

/// Returns the cases that cannot run on servers that all cases share: no case may hold up replicas
/// there.
fn without_replicas(format: &Format) -> NotApplicable {
    [NEEDS_REPLICAS.to_vec(), (format.cannot)()].concat()
}

/// Returns the cases that cannot run where replicas confirm grants and only their number is known.
fn with_unlisted_replicas(format: &Format) -> NotApplicable {
    [NEEDS_A_LIST_OF_REPLICAS.to_vec(), (format.cannot)()].concat()
}

/// Returns all mounts.
pub(crate) fn all() -> Vec<Mount> {
    [
        single_server(),
        own_pool(),
        postgres(),
        replicas(),
        cluster(),
        sentinel(),
        quorum(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns tests that the cases which a format cannot run fail with that format. They run only in
/// the long tier, because some of these cases wait long in vain.
pub(crate) fn left_out_cases_fail() -> Vec<Trial> {
    let formats = [("bare_token", BARE_TOKEN), ("plain", PLAIN)];
    let trial = |(name, format): (&str, Format)| {
        let server = Shared::new(|| Single::start(&[]));
        let open = shared(&server, Single::url, format);
        let cannot = (format.cannot)();
        mount::left_out_cases_fail(name, &cannot, &[], move || Arc::new(open()))
            .with_ignored_flag(true)
    };
    formats.into_iter().map(trial).collect()
}

/// Returns the mounts on one server, in every wire format.
fn single_server() -> Vec<Mount> {
    use Extent::{Core, Full};
    let formats = [
        ("redis", REDISSON, Full),
        ("token", TOKEN, Full),
        ("bare_token", BARE_TOKEN, Full),
        ("token_that_wakes_python_redis_lock", WAKES_PYTHON, Core),
        ("token_that_wakes_spring_integration", WAKES_SPRING, Core),
        ("plain", PLAIN, Full),
        ("plain_commands", PLAIN_COMMANDS, Core),
        ("timestamp", TIMESTAMP, Full),
        ("timestamp_delete", TIMESTAMP_DELETE, Core),
        ("float_not_older", FLOAT_NOT_OLDER, Core),
        ("float", FLOAT, Core),
        ("counter", COUNTER, Full),
        ("counter_multi", COUNTER_MULTI, Core),
        ("counter_lua", COUNTER_LUA, Core),
    ];
    let mut mounts: Vec<_> = formats
        .into_iter()
        .map(|(name, format, extent)| {
            let server = Shared::new(|| Single::start(&[]));
            let open = shared(&server, Single::url, format);
            Mount::new(name, extent, without_replicas(&format), move || {
                Arc::new(open())
            })
        })
        .collect();
    let on_a_socket = shared(&Shared::new(server_on_a_socket), Single::url, REDISSON);
    let over_tls = shared(&Shared::new(server_with_tls), Single::url, REDISSON);
    let least = shared(
        &Shared::new(server_with_the_least_rights),
        Single::url,
        REDISSON,
    );
    let cannot = || without_replicas(&REDISSON);
    mounts.extend([
        Mount::new(
            "redis_unix",
            Core,
            cannot(),
            move || Arc::new(on_a_socket()),
        ),
        Mount::new("redis_tls", Core, cannot(), move || Arc::new(over_tls())),
        Mount::new("redis_with_the_least_rights", Core, cannot(), move || {
            Arc::new(least().prefix("app:"))
        }),
    ]);
    mounts
}

/// The cases whose watches are not of waiters in the queue. Only a store that has changes of keys
/// reported can tell such a watch of a release.
const OUTSIDE_THE_QUEUE: &[(&str, &str)] = &[
    ("release_with_tombstone_frees_lock", NO_REPORTS),
    ("release_by_any_client_wakes_watch", NO_REPORTS),
    ("force_release_wakes_watch", NO_REPORTS),
    ("every_watcher_is_woken", NO_REPORTS),
    ("watch_is_active_when_it_returns", NO_REPORTS),
    ("dropped_watch_is_silent", NO_REPORTS),
];

const NO_REPORTS: &str = "without reports of changes, only waiters in the queue are told";

/// The cases of kinds of locks that need a watch, besides those that need its notifications.
const NEEDS_A_WATCH: &[(&str, &str)] = &[
    ("writer_that_gives_up_lets_readers_in", NO_WATCH),
    ("release_of_each_kind_wakes_its_waiters", NO_WATCH),
    ("stored_limit_counts_until_it_is_changed", NO_WATCH),
    ("fair_lock_is_granted_in_order", NO_WATCH),
    ("fair_waiter_that_is_gone_is_skipped", NO_WATCH),
    ("fair_readers_and_writers_enter_in_order", NO_WATCH),
    ("readers_behind_a_gone_fair_writer_enter", NO_WATCH),
    ("changes_of_a_limit_all_count", NO_WATCH),
    ("permit_is_released_by_its_identity", NO_WATCH),
];

/// The cases of fair locks, which are refused over the application's pool where waiters poll.
const NEEDS_FAIR_LOCKS: &[(&str, &str)] = &[
    ("kinds_of_a_name_exclude_each_other", NO_FAIR_LOCKS),
    (
        "owner_with_tombstone_is_refused_for_each_kind",
        NO_FAIR_LOCKS,
    ),
    ("fair_and_write_locks_are_kept_after_release", NO_FAIR_LOCKS),
    ("semaphore_and_lock_do_not_share_a_name", NO_FAIR_LOCKS),
    ("fair_writer_becomes_a_reader", NO_FAIR_LOCKS),
    ("dead_holders_of_a_fair_lock_are_over", NO_FAIR_LOCKS),
];

const NO_FAIR_LOCKS: &str = "fair locks are refused where waiters poll";

const NO_WATCH: &str = "it has no watches, and its waiters poll";

/// Returns the mounts on connections that an application lends.
fn own_pool() -> Vec<Mount> {
    use Extent::{Core, Full};
    let server = Shared::new(|| Single::start(&[]));
    let mount = |name, format: Format, extent, polls| {
        let open = OwnPool::opener(&server, format, polls);
        let lacks = match polls {
            true => [NEEDS_NOTIFICATION, NEEDS_A_WATCH, NEEDS_FAIR_LOCKS].concat(),
            false => OUTSIDE_THE_QUEUE.to_vec(),
        };
        let cannot = [without_replicas(&format), lacks].concat();
        Mount::new(name, extent, cannot, move || Arc::new(open()))
    };
    vec![
        mount("own_pool", REDISSON, Full, false),
        mount("own_pool_token", TOKEN, Core, false),
        mount("own_pool_counter_multi", COUNTER_MULTI, Core, false),
        mount("own_pool_that_polls", REDISSON, Core, true),
    ]
}

/// The cases that a lock of a session cannot run: `tests/postgres/session.rs` tests its leases.
const NEEDS_A_STORED_LEASE: &[(&str, &str)] = &[
    ("queries_agree_with_store", OWN_LEASE),
    ("reentry_with_longer_lease_extends_it", OWN_LEASE),
    ("nested_unlock_keeps_remaining_lease", OWN_LEASE),
    ("extend_lengthens_lease", OWN_LEASE),
    ("watchdog_keeps_extended_lease", OWN_LEASE),
    ("granted_lease_is_as_long_as_asked", OWN_LEASE),
    ("repeated_attempt_has_full_lease", OWN_LEASE),
    ("repeated_attempt_never_shortens_lease", OWN_LEASE),
    ("repeated_keeping_release_reports_the_same", OWN_LEASE),
    ("inspect_changes_nothing", OWN_LEASE),
    ("renewal_extends_lease", OWN_LEASE),
    ("renewal_never_shortens_lease", OWN_LEASE),
    ("renewal_by_other_owner_is_refused", OWN_LEASE),
    ("batch_renews_each_lock_independently", OWN_LEASE),
    ("full_batch_renews_every_lock", OWN_LEASE),
    (
        "unlock_after_loss_keeps_next_holder",
        "a loss is known before the release",
    ),
    ("waiter_gives_up_at_deadline", ENDS_WITH_CLIENT),
    ("waiter_takes_lock_whose_lease_ends", ENDS_WITH_CLIENT),
    ("try_does_not_overtake_local_waiter", ENDS_WITH_CLIENT),
    ("abandoned_lock_is_free_after_lease", ENDS_WITH_CLIENT),
];

const OWN_LEASE: &str = "only the client that holds the lock knows its lease";
const ENDS_WITH_CLIENT: &str = "the lock ends with its client, and not with its lease";

/// Returns the mounts on a PostgreSQL server.
fn postgres() -> Vec<Mount> {
    let server = Shared::new(PostgresServer::start);
    let mount = |name, extent, options: &'static str| {
        let server = server.clone();
        let open = move || Database::new(server.get(), options);
        Mount::new(name, extent, NEEDS_REPLICAS.to_vec(), move || {
            Arc::new(open()) as Arc<dyn Subject>
        })
    };
    let shared = server.clone();
    let shared = move || Database::new(shared.get(), "form=shedlock");
    let mutexes = [NEEDS_REPLICAS, NEEDS_ALL_KINDS, NEEDS_A_QUEUE].concat();
    let sessions = server.clone();
    let sessions = move || Sessions::new(sessions.get());
    let cannot = [
        NEEDS_REPLICAS,
        NEEDS_TOKENS,
        NEEDS_ALL_KINDS,
        NEEDS_A_QUEUE,
        NEEDS_NOTIFICATION,
        NEEDS_A_STORED_LEASE,
    ];
    vec![
        Mount::new(
            "postgres_sessions",
            Extent::Full,
            cannot.concat(),
            move || Arc::new(sessions()) as Arc<dyn Subject>,
        ),
        mount("postgres", Extent::Full, ""),
        mount("postgres_that_polls", Extent::Core, "waking=poll"),
        Mount::new("postgres_with_shedlock", Extent::Core, mutexes, move || {
            Arc::new(shared()) as Arc<dyn Subject>
        }),
    ]
}

fn server_on_a_socket() -> Single {
    let files = tempfile::tempdir().unwrap();
    let socket = files.path().join("redis.sock").display().to_string();
    let url = format!("redis+unix://{}@{socket}", rights::LOGIN);
    Single {
        url,
        _files: Some(files),
        ..Single::start(&["--unixsocket", &socket])
    }
}

fn server_with_tls() -> Single {
    let authority = Authority::new();
    let (server, port) = authority.server("127.0.0.1", 2090, "no", &[]);
    Single {
        url: authority.url(port),
        server,
        _files: Some(authority.into_files()),
    }
}

/// Starts a server for a user with the rights that `docs/OPERATIONS.md` lists, and no other rights.
fn server_with_the_least_rights() -> Single {
    let single = Single::start(&[]);
    let words = [&["ACL", "SETUSER"], &rights::documented()[..]].concat();
    assert_eq!(single.server.probe().command(&words).text(), "OK");
    single
}

/// Returns the mounts on masters with two replicas, of which one must confirm every lock, or both.
fn replicas() -> Vec<Mount> {
    let pool = Pool::new(GROUPS, || Replicated::start(2));
    let one = |servers: &Replicated| servers.url("replicas=1");
    let both = |servers: &Replicated| servers.url("replicas=2");
    let mount = |name, extent, url: fn(&Replicated) -> String, format: Format| {
        let open = borrowed(&pool, url, format);
        Mount::new(name, extent, with_unlisted_replicas(&format), move || {
            Arc::new(open())
        })
    };
    vec![
        mount("redis_replicas_1", Extent::Full, one, REDISSON),
        mount("redis_replicas_2", Extent::Core, both, REDISSON),
        mount("token_replicas_1", Extent::Core, one, TOKEN).only(NEEDS_REPLICAS),
        mount("bare_token_replicas_1", Extent::Core, one, BARE_TOKEN).only(NEEDS_REPLICAS),
    ]
}

/// Returns mounts of these formats on servers that all of their cases share.
fn in_formats<T: Servers + 'static>(
    formats: &[(&'static str, Format, Extent)],
    servers: &Shared<T>,
    url: fn(&T) -> String,
) -> Vec<Mount> {
    let mount = |&(name, format, extent): &(&'static str, Format, Extent)| {
        let open = shared(servers, url, format);
        Mount::new(name, extent, without_replicas(&format), move || {
            Arc::new(open())
        })
    };
    formats.iter().map(mount).collect()
}

/// Returns the mounts on a cluster, in every wire format.
fn cluster() -> Vec<Mount> {
    use Extent::{Core, Full, None};
    // A machine that is busy for a second must not look like a node that failed.
    let start = |timeout| Cluster::start_with(&["--cluster-node-timeout", timeout]);
    let cluster = Shared::new(move || Sharded {
        cluster: start("5000"),
        alone: false,
    });
    let formats = [
        ("cluster", REDISSON, Full),
        ("token_on_a_cluster", TOKEN, Core),
        ("bare_token_on_a_cluster", BARE_TOKEN, Core),
        ("plain_on_a_cluster", PLAIN, Core),
        ("plain_commands_on_a_cluster", PLAIN_COMMANDS, None),
        ("timestamp_on_a_cluster", TIMESTAMP, Core),
        ("timestamp_delete_on_a_cluster", TIMESTAMP_DELETE, None),
        ("float_not_older_on_a_cluster", FLOAT_NOT_OLDER, None),
        ("float_on_a_cluster", FLOAT, None),
        ("counter_on_a_cluster", COUNTER, Core),
        ("counter_multi_on_a_cluster", COUNTER_MULTI, None),
        ("counter_lua_on_a_cluster", COUNTER_LUA, None),
    ];
    let mut mounts = in_formats(&formats, &cluster, |it| it.cluster.url());
    let cannot = || without_replicas(&REDISSON);
    let tagged = shared(
        &cluster,
        |it| it.cluster.url() + "?channels=plain",
        REDISSON,
    );
    let least = shared(
        &cluster,
        // The first of the documented words is the user's name.
        |it| {
            it.cluster
                .url_as("least:SECRET", &rights::documented_for_cluster()[1..])
        },
        REDISSON,
    );
    // With this time-out a replica that is silent for a while stays listed.
    let pool = Pool::new(2, || Sharded {
        cluster: Cluster::start_with(&["--cluster-node-timeout", "60000"]),
        alone: true,
    });
    let confirmed = borrowed(&pool, |it| it.cluster.url(), REDISSON);
    mounts.extend([
        Mount::new("cluster_with_tags", Core, cannot(), move || {
            Arc::new(tagged().with_tags())
        }),
        Mount::new("cluster_with_the_least_rights", Core, cannot(), move || {
            Arc::new(least().prefix("app:"))
        }),
        Mount::new("cluster_replicas", Full, Vec::new(), move || {
            Arc::new(confirmed())
        })
        .only(NEEDS_REPLICAS),
    ]);
    mounts
}

/// Returns the mounts on a master with replicas that sentinels name. One setting of each format is
/// enough, because sentinels make no difference between the settings of a format.
fn sentinel() -> Vec<Mount> {
    use Extent::{Core, Full};
    let group = Shared::new(|| Watched {
        group: Group::steady(),
        alone: false,
    });
    let formats = [
        ("sentinel", REDISSON, Full),
        ("token_on_sentinel", TOKEN, Core),
        ("plain_on_sentinel", PLAIN, Core),
        ("timestamp_on_sentinel", TIMESTAMP, Core),
        ("counter_on_sentinel", COUNTER, Core),
    ];
    let mut mounts = in_formats(&formats, &group, |it| it.group.url());
    let pool = Pool::new(2, || Watched {
        group: Group::steady(),
        alone: true,
    });
    let confirmed = borrowed(&pool, |it| it.group.url(), REDISSON);
    mounts.push(
        Mount::new("sentinel_replicas", Full, Vec::new(), move || {
            Arc::new(confirmed())
        })
        .only(NEEDS_REPLICAS),
    );
    mounts
}

/// Returns the mounts on three and five independent servers.
fn quorum() -> Vec<Mount> {
    use Extent::{Core, Full};
    let mount = |name, extent, cannot: NotApplicable, nodes: fn() -> Nodes, holder| {
        let nodes = Shared::new(nodes);
        let open = move || Quorum {
            nodes: nodes.get(),
            holder,
        };
        let cannot = [
            [NEEDS_REPLICAS, NEEDS_ALL_KINDS, NEEDS_A_QUEUE].concat(),
            cannot,
        ]
        .concat();
        Mount::new(name, extent, cannot, move || {
            Arc::new(open()) as Arc<dyn Subject>
        })
    };
    vec![
        mount(
            "redis3",
            Full,
            Vec::new(),
            || Nodes::start(3, 0, ""),
            only_field,
        ),
        mount(
            "redis3_token",
            Core,
            Vec::new(),
            || Nodes::start(3, 0, "&format=token"),
            Probe::get,
        ),
        mount(
            "redis3_bare_token",
            Core,
            NEEDS_TOKENS.to_vec(),
            || Nodes::start(3, 0, "&format=token&tokens=off"),
            Probe::get,
        ),
        mount(
            "redis5_two_dead",
            Core,
            Vec::new(),
            || Nodes::start(3, 2, ""),
            only_field,
        ),
    ]
}
