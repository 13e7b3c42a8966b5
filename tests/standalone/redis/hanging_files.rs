//! Password and certificate files on a file system that hangs: they are treated like missing files.

use distlock::{Client, Error};
use distlock_tests::authority::Authority;
use distlock_tests::guards::await_renewals;
use distlock_tests::hanging_file::{HangingFile, password_file};
use distlock_tests::process::RedisServer;
use distlock_tests::time::{eventually, within};
use std::path::Path;
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(20);
const KILL: [&str; 6] = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];

/// Runs `call` on another thread and returns its result. Fails if `call` takes too long.
#[track_caller]
fn bounded<T: Send + 'static>(what: &str, call: impl FnOnce() -> T + Send + 'static) -> T {
    let calling = thread::spawn(call);
    eventually(what, LONG, || calling.is_finished());
    calling.join().unwrap()
}

fn cycle(client: &Client) -> Result<(), Error> {
    let client = client.clone();
    bounded("a cycle", move || {
        client.mutex("x")?.try_lock()?.expect("it is free").unlock()
    })
}

#[test]
fn hanging_password_file_costs_no_held_lock_and_no_deadline() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let (_folder, file) = password_file(&mut probe);
    let limits = "watchdog=3s&connect_timeout=300ms&command_timeout=300ms";
    let url = format!(
        "{}?password_file={}&{limits}",
        server.url_as(""),
        file.display()
    );
    let client = distlock::connect(&url).unwrap();
    let held = client.mutex("held").unwrap().lock().unwrap();
    // From here on no connection can be dialled, not even the one for renewals: the lock is renewed
    // all the same.
    let hangs = HangingFile::at(&file);
    await_renewals(&held);
    held.unlock().unwrap();
    probe.command(&KILL);
    let waiting = client.clone();
    let error = bounded("the call ends at its deadline", move || {
        let lock = waiting.mutex("x").unwrap();
        within(Duration::from_secs(1), || {
            lock.try_lock_for(Duration::from_secs(1))
        })
        .map(drop)
    });
    let error = error.unwrap_err();
    let said = error.to_string();
    assert!(error.is_unavailable(), "{error}");
    assert!(
        said.contains("`password_file=") && said.contains("did not end in time"),
        "{error}"
    );
    hangs.replace("s3cret\n");
    eventually("it is let in again", LONG, || cycle(&client).is_ok());
}

/// Every kind of file in every topology. The files are read before anything is sent, so no server
/// is needed.
#[test]
fn hanging_file_is_refused_by_connect_as_a_missing_one() {
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = (folder.path().join("hangs"), folder.path().join("other"));
    std::fs::write(&other, "").unwrap();
    let (hangs, missing) = (HangingFile::at(&path), folder.path().join("missing"));
    let mut urls = Vec::new();
    for (scheme, tls, hosts) in [
        ("redis", "rediss", "h"),
        ("redis+cluster", "rediss+cluster", "h"),
        ("redis+sentinel", "rediss+sentinel", "h/mymaster"),
        ("redlock", "redlocks", "h,i,j"),
    ] {
        let of = |file: &Path| file.display().to_string();
        urls.push((
            format!("{scheme}://{hosts}?password_file="),
            String::new(),
            "password_file",
        ));
        for (option, with) in [
            ("tls_ca", String::new()),
            ("tls_cert", format!("&tls_key={}", of(&other))),
            ("tls_key", format!("&tls_cert={}", of(&other))),
        ] {
            urls.push((format!("{tls}://{hosts}?{option}="), with, option));
        }
    }
    let sentinel = "redis+sentinel://h/mymaster?sentinel_password_file=".to_owned();
    urls.push((sentinel, String::new(), "sentinel_password_file"));
    for (url, with, option) in urls {
        for file in [&path, &missing] {
            let url = format!("{url}{}{with}&connect_timeout=50ms", file.display());
            let shown = url.clone();
            let error = bounded(&shown, move || distlock::connect(&url)).unwrap_err();
            assert!(error.is_configuration(), "{shown}: {error}");
            assert!(
                error.to_string().contains(&format!("`{option}=")),
                "{shown}: {error}"
            );
        }
    }
    drop(hangs);
}

#[test]
fn hanging_certificate_file_keeps_its_last_content() {
    let authority = Authority::new();
    authority.certify("client", "worker", 2090);
    let (server, port) = authority.server("127.0.0.1", 2090, "yes", &[]);
    let [ca, cert, key] = ["ca.crt", "client.crt", "client.key"].map(|file| authority.file(file));
    let client = distlock::connect(&format!(
        "{}&tls_cert={cert}&tls_key={key}",
        authority.url(port)
    ));
    let client = client.unwrap();
    cycle(&client).unwrap();
    let mut probe = server.probe();
    for file in [ca, cert, key] {
        let content = std::fs::read_to_string(&file).unwrap();
        let hangs = HangingFile::at(Path::new(&file));
        probe.command(&KILL);
        eventually("it connects all the same", LONG, || cycle(&client).is_ok());
        hangs.replace(&content);
    }
}
