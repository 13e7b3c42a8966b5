//! `redlocks://`: a quorum over TLS.

use distlock::{Config, connect};
use distlock_tests::authority::Authority;
use distlock_tests::process::RedisServer;
use distlock_tests::quorum::{LONGEST, admit, place};
use distlock_tests::rights::LOGIN;

/// Starts three servers with certificates of this authority, and returns them with their TLS
/// addresses.
fn servers(authority: &Authority) -> (Vec<RedisServer>, String) {
    let start = |_| authority.server("127.0.0.1", 2090, "no", &[]);
    let (servers, ports): (Vec<_>, Vec<_>) = (0..3).map(start).unzip();
    servers.iter().for_each(admit);
    (
        servers,
        ports.into_iter().map(place).collect::<Vec<_>>().join(","),
    )
}

#[test]
fn quorum_over_tls_trusts_its_authority_only() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (servers, places) = servers(&authority);
    let url = |scheme: &str, trusted: &Authority| {
        format!(
            "{scheme}://{LOGIN}@{places}?{LONGEST}&tls_ca={}",
            trusted.file("ca.crt")
        )
    };
    distlock::admin::set_up_quorum(&Config::from_url(&url("redlocks", &authority)).unwrap())
        .unwrap();
    let client = connect(&url("redlocks", &authority)).unwrap();
    let guard = client.mutex("a").unwrap().lock().unwrap();
    let held = servers
        .iter()
        .filter(|server| server.probe().exists("a"))
        .count();
    assert!(held >= 2, "{held}");
    guard.unlock().unwrap();

    let stranger = connect(&url("redlocks", &other))
        .unwrap()
        .mutex("a")
        .unwrap()
        .try_lock();
    let error = stranger.unwrap_err();
    assert!(
        error.is_configuration() && error.to_string().contains("tls_ca"),
        "{error:?}"
    );
    let error = connect(&url("redlock", &authority))
        .unwrap_err()
        .to_string();
    assert!(error.contains("tls_ca"), "{error}");
    let plain = connect(&format!("redlock://{LOGIN}@{places}?{LONGEST}")).unwrap();
    let error = plain.mutex("a").unwrap().try_lock().unwrap_err();
    assert!(
        error.is_unavailable() && error.members().len() == 3,
        "{error:?}"
    );
    println!("{error}");
}
