//! A server that is too old is refused by name, at once, before any write.

use crate::bench::{Bench, lease};
use distlock_tests::process::RedisServer;
use distlock_tests::time::timed;
use lock_core::backend::{Failure, Tokens};

#[test]
#[ignore = "needs a server before 6.2 in REDIS_SERVER: `tests/servers.sh redis-6.0` runs it"]
fn too_old_server_is_refused_by_name() {
    let server = RedisServer::start_without_user();
    for user in ["", "default:s3cret@"] {
        let bench = Bench::new(&format!("redis://{user}127.0.0.1:{}", server.port()));
        let tokens = Tokens::Assign { reserve: 0 };
        let attempt = || bench.acquire_with("a", bench.owner(), lease(30_000), tokens);
        let failure = timed(200, |_| attempt()).unwrap_err();
        assert!(matches!(failure, Failure::Refused(_)), "{failure:?}");
        let error = failure.error();
        assert!(error.is_configuration(), "{error:?}");
        assert!(
            error.to_string().contains("is too old: Redis 6.2"),
            "{error:?}"
        );
        assert_eq!(server.probe().keys("*"), [""; 0]);
    }
}

#[test]
#[ignore = "needs a server before 6.2 in REDIS_SERVER: `tests/servers.sh redis-6.0` runs it"]
fn too_old_server_is_not_waited_for() {
    let server = RedisServer::start_without_user();
    let client = distlock::connect(&server.url_as("")).unwrap();
    let error = timed(500, |_| client.mutex("a").unwrap().lock()).unwrap_err();
    assert!(
        error.to_string().contains("is too old: Redis 6.2"),
        "{error:?}"
    );
}
