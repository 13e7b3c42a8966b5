//! A server reached over a socket in the file system.

use crate::bench::{Bench, lease};
use crate::life;
use distlock_tests::process::RedisServer;
use distlock_tests::time::timed;
use lock_core::Error;
use lock_core::backend::{Failure, Tokens};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Starts a server that also listens on a socket.
fn server() -> (TempDir, PathBuf, RedisServer) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("redis.sock");
    let server = RedisServer::start_with(&["--unixsocket", socket.to_str().unwrap()]);
    (directory, socket, server)
}

fn url(socket: &Path) -> String {
    format!("redis+unix://{}", socket.display())
}

fn refusal(url: &str) -> Failure {
    let bench = Bench::new(url);
    let owner = bench.owner();
    timed(200, |_| {
        bench.acquire_with("a", owner, lease(30_000), Tokens::None)
    })
    .unwrap_err()
}

#[track_caller]
fn says(error: &Error, path: &Path, words: &str) {
    let text = error.to_string();
    assert!(
        text.contains(words) && text.contains(path.to_str().unwrap()),
        "{error:?}"
    );
}

#[test]
fn lock_works_on_a_unix_socket() {
    let (_directory, socket, server) = server();
    life::of_a_lock(&server, &url(&socket));
}

#[test]
fn unix_url_gives_user_password_and_database() {
    let (_directory, socket, server) = server();
    server
        .probe()
        .command(&["ACL", "SETUSER", "me", "on", ">s3cret", "~*", "&*", "+@all"]);
    let bench = Bench::new(&format!("redis+unix://me:s3cret@{}?db=3", socket.display()));
    bench.take("a");
    let mut third = server.probe();
    third.command(&["SELECT", "3"]);
    assert!(third.exists("a") && !server.probe().exists("a"));
    let clients = server.probe().clients().join("\n");
    assert!(
        clients.contains(" user=me ") && clients.contains("redis.sock:0"),
        "{clients}"
    );
    let failure = refusal(&format!("redis+unix://me:wr0ng@{}", socket.display()));
    assert!(matches!(failure, Failure::Refused(_)), "{failure:?}");
    says(failure.error(), &socket, "password");
}

#[test]
fn missing_or_stale_socket_may_come_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("redis.sock");
    let failure = refusal(&url(&path));
    assert!(matches!(failure, Failure::NotSent(_)) && failure.error().is_unavailable());
    says(failure.error(), &path, "there is no socket");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let failure = refusal(&url(&path));
    assert!(matches!(failure, Failure::NotSent(_)) && failure.error().is_unavailable());
    says(failure.error(), &path, "listening");
}

#[test]
fn path_that_is_no_socket_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    for (path, words) in [
        (directory.path(), "is a directory"),
        (&file, "is no socket"),
    ] {
        let failure = refusal(&url(path));
        assert!(matches!(failure, Failure::Refused(_)), "{failure:?}");
        assert!(failure.error().is_configuration(), "{failure:?}");
        says(failure.error(), path, words);
    }
}

#[test]
fn socket_without_permission_is_refused() {
    let (directory, socket, _server) = server();
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o000)).unwrap();
    if std::os::unix::net::UnixStream::connect(&socket).is_ok() {
        println!(
            "skipped: this user may do everything ({})",
            directory.path().display()
        );
        return;
    }
    let failure = refusal(&url(&socket));
    assert!(matches!(failure, Failure::Refused(_)), "{failure:?}");
    assert!(failure.error().is_configuration(), "{failure:?}");
    says(failure.error(), &socket, "unixsocketperm");
}

#[test]
fn database_of_a_unix_url_is_given_by_db_only() {
    let refused = distlock::connect("redis://127.0.0.1?db=2").unwrap_err();
    assert!(
        refused.is_configuration() && refused.to_string().contains("`db`"),
        "{refused:?}"
    );
}

#[test]
fn frozen_server_behind_a_socket_is_bounded_by_the_deadline() {
    let (_directory, socket, server) = server();
    server.pause();
    let bench = Bench::new(&format!("{}?connect_timeout=100ms", url(&socket)));
    let owner = bench.owner();
    let outcome = timed(100, |_| {
        bench.acquire_with("a", owner, lease(30_000), Tokens::None)
    });
    assert!(outcome.unwrap_err().error().is_unavailable());
    server.resume();
}
