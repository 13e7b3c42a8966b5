//! Encrypted connections, and passwords.

use distlock::Error;
use distlock_tests::authority::Authority;
use distlock_tests::postgres::PostgresServer;
use std::fs;

fn attempt(url: &str) -> Result<(), Error> {
    distlock::connect(url)?.mutex("it")?.try_lock().map(drop)
}

/// The certificate of a server with TLS and its host are checked. Nothing is sent to a server
/// without TLS.
#[test]
fn certificate_of_the_server_is_checked() {
    let (authority, other) = (Authority::new(), Authority::new());
    authority.certify("server", "127.0.0.1", 2090);
    authority.certify("elsewhere", "localhost", 2090);
    let server = PostgresServer::start();
    let ca = authority.file("ca.crt");
    let url = |mode: &str, ca: &str| format!("{}?sslmode={mode}&tls_ca={ca}", server.url());
    let error = attempt(&url("verify-full", &ca)).unwrap_err();
    assert!(error.to_string().contains("has no TLS"), "{error}");
    assert!(error.is_configuration(), "{error:?}");
    server.encrypt(&authority.file("server.crt"), &authority.file("server.key"));
    for mode in ["verify-full", "require"] {
        attempt(&url(mode, &ca)).unwrap();
        let error = attempt(&url(mode, &other.file("ca.crt"))).unwrap_err();
        assert!(error.to_string().contains("certificate"), "{error}");
    }
    let mut admin = server.admin();
    let sessions = distlock::connect(&url("verify-full", &ca)).unwrap();
    let _held = sessions.mutex("it").unwrap().lock().unwrap();
    let plain = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
        WHERE application_name LIKE 'distlock%' AND NOT ssl";
    assert_eq!(admin.query_one(plain, &[]).unwrap().get::<_, i64>(0), 0);
    server.encrypt(
        &authority.file("elsewhere.crt"),
        &authority.file("elsewhere.key"),
    );
    let error = attempt(&url("verify-full", &ca)).unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
    let error = attempt(&format!("{}?tls_ca={ca}", server.url())).unwrap_err();
    assert!(error.is_configuration(), "{error}");
}

/// A password is found in the URL, in a file, and in libpq's password file; a wrong one is named.
#[test]
fn password_is_found_where_it_may_be() {
    let server = PostgresServer::start();
    server
        .admin()
        .batch_execute(
            "CREATE ROLE locker LOGIN SUPERUSER PASSWORD 's%cret'; \
             SET password_encryption = 'scram-sha-256'",
        )
        .unwrap();
    server.require_passwords("locker");
    let files = tempfile::tempdir().unwrap();
    let [plain, libpq] = ["plain", "libpq"].map(|it| files.path().join(it));
    fs::write(&plain, "s%cret\n").unwrap();
    fs::write(
        &libpq,
        "*:*:other:locker:x\n127.0.0.1:*:app:locker:s%cret\n",
    )
    .unwrap();
    let url = server.url().replace("postgres@", "locker@");
    for good in [
        url.replace("locker@", "locker:s%25cret@"),
        format!("{url}?password_file={}", plain.display()),
        format!("{url}?passfile={}", libpq.display()),
    ] {
        attempt(&good).unwrap();
    }
    let error = attempt(&url.replace("locker@", "locker:wr0ng@")).unwrap_err();
    assert!(error.is_configuration(), "{error:?}");
    assert!(!format!("{error} {error:?}").contains("wr0ng"));
    let error = attempt(&url).unwrap_err();
    assert!(
        !error.is_unavailable() && error.to_string().contains("password"),
        "{error:?}"
    );
    let error = attempt(&format!("{url}?password_file=/no/such/file")).unwrap_err();
    assert!(error.to_string().contains("/no/such/file"), "{error}");
}
