//! Passwords and certificates that are changed while a client runs.

use distlock::config::{Credentials, CredentialsProvider};
use distlock::{Client, Config, Error};
use distlock_tests::authority::Authority;
use distlock_tests::probe::{Probe, Value};
use distlock_tests::process::RedisServer;
use distlock_tests::time::{eventually, within};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

fn cycle(client: &Client) -> Result<(), Error> {
    within(LONG, || {
        client.mutex("x")?.try_lock()?.expect("it is free").unlock()
    })
}

/// Changes the server's password, and cuts all connections that were made with the former one.
fn change_password(probe: &mut Probe, password: &str) {
    let told = probe.command(&["CONFIG", "SET", "requirepass", password]);
    assert_eq!(told, Value::Text("OK".to_owned()));
    probe.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
}

#[test]
fn password_file_is_read_for_each_connection() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    let write = |password: &str| std::fs::write(&file, format!("{password}\n")).unwrap();
    write("s3cret-one");
    change_password(&mut probe, "s3cret-one");
    let url = format!("{}?password_file={}", server.url_as(""), file.display());
    let client = distlock::connect(&url).unwrap();
    cycle(&client).unwrap();
    let held = client.mutex("held").unwrap().lock().unwrap();
    for password in ["s3cret-two", "s3cret-three"] {
        write(password);
        change_password(&mut probe, password);
        eventually("it is let in again", LONG, || cycle(&client).is_ok());
    }
    held.verify().unwrap();
    let shown = format!("{client:?} {:?}", Config::from_url(&url).unwrap());
    assert!(!shown.contains("s3cret"), "{shown}");
    // A missing file is reported by the setting that names it.
    std::fs::remove_file(&file).unwrap();
    probe.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    // Errors of connections that are just being cut do not name the setting.
    let is_told = |error: &Error| error.to_string().contains("`password_file=");
    let error = eventually("it is told", LONG, || cycle(&client).err().filter(is_told));
    assert!(error.is_unavailable(), "{error}");
    write("s3cret-three");
    eventually("it is let in again", LONG, || cycle(&client).is_ok());
    drop(held);
    let missing = distlock::connect(&format!("{}?password_file=/no/such", server.url_as("")));
    let missing = missing.unwrap_err();
    assert!(
        missing.is_configuration() && missing.to_string().contains("/no/such"),
        "{missing}"
    );
    let both = format!("redis://:s3cret@127.0.0.1?password_file={}", file.display());
    let both = distlock::connect(&both).unwrap_err();
    assert!(
        both.is_configuration() && both.to_string().contains("leave one of them"),
        "{both}"
    );
    assert!(!format!("{both:?}").contains("s3cret"), "{both:?}");
}

/// Returns the current password, and records for which servers it was queried.
#[derive(Default)]
struct Vault {
    password: Mutex<String>,
    asked: Mutex<Vec<String>>,
}

impl CredentialsProvider for Vault {
    fn credentials(&self, server: &str) -> Result<Credentials, Error> {
        self.asked.lock().push(server.to_owned());
        match self.password.lock().as_str() {
            "" => Err(Error::unavailable("the vault is sealed")),
            "panics" => panic!("on purpose"),
            password => Ok(Credentials::new(password).with_user("me")),
        }
    }
}

#[test]
fn credentials_provider_is_asked_for_each_connection() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let vault = Arc::<Vault>::default();
    let mut give = |password: &str| {
        let rule = [">", password].concat();
        let words = [
            "ACL", "SETUSER", "me", "reset", "on", &rule, "~*", "&*", "+@all",
        ];
        probe.command(&words);
        password.clone_into(&mut vault.password.lock());
        probe.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    };
    give("s3cret-one");
    let config = Config::from_url(&server.url_as("")).unwrap();
    let config = config.with_credentials(Arc::clone(&vault) as _);
    let client = distlock::builder()
        .config(config.clone())
        .connect()
        .unwrap();
    assert!(vault.asked.lock().is_empty(), "nothing is dialled yet");
    cycle(&client).unwrap();
    assert_eq!(
        *vault.asked.lock(),
        [format!("127.0.0.1:{}", server.port())]
    );
    cycle(&client).unwrap();
    assert_eq!(vault.asked.lock().len(), 1, "once for each connection");
    give("s3cret-two");
    eventually("it is let in again", LONG, || cycle(&client).is_ok());
    assert!(vault.asked.lock().len() >= 2);
    let shown = format!("{client:?} {config:?}");
    assert!(!shown.contains("s3cret"), "{shown}");
    for (password, says) in [("panics", "panicked"), ("", "the vault is sealed")] {
        password.clone_into(&mut vault.password.lock());
        server
            .probe()
            .command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        eventually("it is told", LONG, || {
            let Err(error) = cycle(&client) else {
                return false;
            };
            assert!(error.is_unavailable(), "{error}");
            // A request on a connection that is just being closed fails with another text.
            error.to_string().contains(says)
        });
    }
}

#[test]
fn hanging_credentials_provider_is_bounded_by_the_timeout() {
    let server = RedisServer::start();
    let (go, gate) = std::sync::mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let hangs = move |_: &str| {
        let _opened = gate.lock().recv();
        Ok(Credentials::new("SECRET").with_user("locker"))
    };
    let url = format!(
        "{}?connect_timeout=200ms&command_timeout=200ms",
        server.url_as("")
    );
    let config = Config::from_url(&url)
        .unwrap()
        .with_credentials(Arc::new(hangs));
    let client = distlock::builder().config(config).connect().unwrap();
    let error = cycle(&client).unwrap_err();
    assert!(
        error.is_unavailable() && error.to_string().contains("none in time"),
        "{error}"
    );
    drop(go);
    eventually("it is let in", LONG, || cycle(&client).is_ok());
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn credentials_provider_that_never_returns_is_asked_again() {
    let server = RedisServer::start();
    let asked = Arc::new(AtomicUsize::new(0));
    let (_never, gate) = std::sync::mpsc::channel::<()>();
    let (gate, count) = (Mutex::new(gate), Arc::clone(&asked));
    let hangs_at_first = move |_: &str| {
        if count.fetch_add(1, Ordering::SeqCst) == 0 {
            let _never = gate.lock().recv();
        }
        Ok(Credentials::new("SECRET").with_user("locker"))
    };
    let url = format!(
        "{}?connect_timeout=200ms&command_timeout=200ms",
        server.url_as("")
    );
    let config = Config::from_url(&url)
        .unwrap()
        .with_credentials(Arc::new(hangs_at_first));
    let client = distlock::builder().config(config).connect().unwrap();
    assert!(cycle(&client).is_err());
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    eventually("it is asked again", LONG, || cycle(&client).is_ok());
    // A second query may have begun at the end of a call.
    assert!(asked.load(Ordering::SeqCst) <= 3);
}

/// All certificates and their authority are replaced, as before they expire: the next connection
/// reads the new files.
#[test]
fn certificate_files_are_read_for_each_connection() {
    let (old, new) = (Authority::new(), Authority::new());
    old.certify("client", "worker", 2090);
    new.certify("client", "worker", 2090);
    new.certify("server", "127.0.0.1", 2090);
    let (server, port) = old.server("127.0.0.1", 2090, "yes", &[]);
    let (cert, key) = (old.file("client.crt"), old.file("client.key"));
    let url = format!("{}&tls_cert={cert}&tls_key={key}", old.url(port));
    let client = distlock::connect(&url).unwrap();
    cycle(&client).unwrap();
    let mut probe = server.probe();
    for file in [
        "ca.crt",
        "client.crt",
        "client.key",
        "server.crt",
        "server.key",
    ] {
        std::fs::copy(new.file(file), old.file(file)).unwrap();
    }
    let words = ["tls-ca-cert-file", "tls-cert-file", "tls-key-file"];
    let files = ["ca.crt", "server.crt", "server.key"].map(|file| new.file(file));
    let pairs: Vec<_> = words
        .iter()
        .zip(&files)
        .flat_map(|(word, file)| [*word, file])
        .collect();
    let told = probe.command(&[&["CONFIG", "SET"][..], &pairs].concat());
    assert_eq!(told, Value::Text("OK".to_owned()));
    probe.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    eventually("it trusts, and is trusted, again", LONG, || {
        cycle(&client).is_ok()
    });
}
