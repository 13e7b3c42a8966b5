//! A planted password appears in nothing that the library prints.

use distlock::config::Secret;
use distlock::{Config, Error, Event, LockOptions};
use distlock_tests::child::Example;
use distlock_tests::process::RedisServer;
use distlock_tests::time::eventually;
use parking_lot::Mutex;
use std::fmt::{Debug, Write};
use std::sync::Arc;
use std::time::Duration;

const SECRET: &str = "pl4nted-s3cret";

/// Collects everything that was printed so far.
#[derive(Clone, Default)]
struct Printed(Arc<Mutex<String>>);

impl Printed {
    fn debug(&self, value: &dyn Debug) {
        write!(self.0.lock(), "{value:?}\n{value:#?}\n").unwrap();
    }

    /// Prints an error and its causes, in every way in which they can be shown.
    fn error(&self, error: &Error) {
        self.debug(error);
        let mut cause: Option<&dyn std::error::Error> = Some(error);
        while let Some(error) = cause {
            write!(self.0.lock(), "{error}\n{error:?}\n").unwrap();
            cause = error.source();
        }
    }

    fn check(&self) {
        let text = self.0.lock();
        let line = text.lines().find(|line| line.contains(SECRET));
        assert!(line.is_none(), "{line:?}");
        assert!(text.len() > 1_000, "hardly anything was printed");
    }
}

/// Prints the errors of invalid files with a password in them. The TOML reader's errors quote the
/// line, or in `Debug` the whole document, so they must not be among the causes of the library's
/// errors.
fn refused_files(printed: &Printed) {
    let url = format!("url = 'memory://me:{SECRET}@h'");
    for document in [
        format!("{url}\npool = "),
        format!("pool = \n{url}"),
        format!("url = 'memory://me:{SECRET}@h"),
        format!("{url}\n{url}"),
        format!("{url}\npool = 1.5"),
        format!("{url}\npool = 'many'"),
        format!("{url}\n[locks]\npool = 1"),
        format!("{url}\nno_such_option = 1"),
        format!("url = 'nosuch://me:{SECRET}@h'"),
        format!("sentinel_password = '{SECRET}'"),
        format!("{url}\nsentinel_password = ['{SECRET}']"),
    ] {
        let connected = |config: Result<Config, Error>| {
            config
                .and_then(|config| distlock::builder().config(config).connect())
                .unwrap_err()
        };
        // Only the text of a serde error, as the documentation advises.
        let by_serde = toml::from_str::<Config>(&document);
        let by_serde = by_serde.map_err(|error| Error::configuration(error.message()));
        printed.error(&connected(by_serde));
        {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), &document).unwrap();
            printed.error(&connected(Config::from_toml(&document)));
            printed.error(&connected(Config::from_file(file.path())));
        }
    }
}

#[test]
fn planted_password_is_never_printed() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    probe.command(&[
        "ACL",
        "SETUSER",
        "me",
        "on",
        &format!(">{SECRET}"),
        "~*",
        "&*",
        "+@all",
    ]);
    let printed = Printed::default();
    let told = printed.clone();
    let address = format!("127.0.0.1:{}", server.port());
    let url = |user: &str, password: &str| format!("redis://{user}:{password}@{address}");

    // A client that works.
    let config = Config::from_url(&url("me", SECRET)).unwrap();
    printed.debug(&config);
    printed.debug(&Secret::new(SECRET));
    let builder = distlock::builder()
        .config(config)
        .events(Arc::new(move |event: &Event| told.debug(event)));
    printed.debug(&builder);
    let client = builder.connect().unwrap();
    let (lock, owned) = (client.mutex("x").unwrap(), client.owned_mutex("y").unwrap());
    let guard = lock
        .lock_with(&LockOptions::new().watched(Duration::from_millis(100)))
        .unwrap();
    for value in [
        &client as &dyn Debug,
        &lock,
        &owned,
        &guard,
        &owned.lock().unwrap(),
        &lock.inspect().unwrap(),
    ] {
        printed.debug(value);
    }
    let losses = guard.losses();
    probe.command(&["DEL", "x"]);
    printed.debug(&losses.recv_timeout(Duration::from_secs(20)).unwrap());
    printed.error(&guard.unlock().unwrap_err());
    eventually("the events are printed", Duration::from_secs(20), || {
        printed.0.lock().contains("Lost")
    });

    // Logins that the server refuses: wrong user, wrong password, no user.
    for (user, password) in [
        ("nobody", SECRET),
        ("me", &format!("{SECRET}x")),
        ("", SECRET),
    ] {
        let refused = distlock::connect(&url(user, password)).unwrap();
        printed.error(&refused.mutex("x").unwrap().try_lock().unwrap_err());
        printed.debug(&refused);
    }
    // A server that does not know AUTH repeats the command's arguments in its error.
    let old = RedisServer::start_with(&["--rename-command", "AUTH", ""]);
    let repeats =
        distlock::connect(&format!("redis://me:{SECRET}@127.0.0.1:{}", old.port())).unwrap();
    printed.error(&repeats.mutex("x").unwrap().try_lock().unwrap_err());

    // The password of the sentinels, which is not that of the servers.
    let sentinel = RedisServer::start_sentinel(&format!(
        "sentinel monitor m 127.0.0.1 {} 1\n",
        server.port()
    ));
    sentinel
        .probe()
        .command(&["ACL", "SETUSER", "default", &format!(">{SECRET}")]);
    for (sentinels, servers) in [(SECRET, "x"), (&format!("{SECRET}x"), SECRET)] {
        let url = format!(
            "redis+sentinel://me:{servers}@127.0.0.1:{}/m?sentinel_password={sentinels}",
            sentinel.port()
        );
        let config = Config::from_url(&url).unwrap();
        printed.debug(&config);
        let refused = distlock::builder().config(config).connect().unwrap();
        printed.error(&refused.mutex("x").unwrap().try_lock().unwrap_err());
        printed.debug(&refused);
    }

    // URLs that the library refuses.
    for url in [
        format!("redis://me:{SECRET}@h:port"),
        format!("redis://me:{SECRET}@h/0?no_such_option=1"),
        format!("redis://me:{SECRET}@h?password={SECRET}"),
        format!("redis://me:{SECRET}/x@h"),
        format!("nosuch://me:{SECRET}@h"),
        format!("memory://me:{SECRET}@h"),
        format!("redis://me:{SECRET}@a,b"),
        format!("redis://me:{SECRET}@h/not-a-number"),
        format!("{SECRET}@h"),
        format!("redis+sentinel://h/m?sentinel_password={SECRET}&no_such_option=1"),
        format!("redis+sentinel://h?sentinel_password={SECRET}"),
        format!("redis://h?sentinel_password={SECRET}"),
    ] {
        printed.error(&distlock::connect(&url).unwrap_err());
    }
    refused_files(&printed);
    printed.check();

    // The output of the command.
    for url in [
        url("me", &format!("{SECRET}x")),
        format!("redis://me:{SECRET}@127.0.0.1:1"),
        url("me", SECRET),
    ] {
        let mut hold = Example::distlock(&["hold", "--wait", "1", "z"])
            .env("DISTLOCK_URL", &url)
            .spawn();
        hold.close_input();
        hold.wait_exit(Duration::from_secs(60));
        write!(printed.0.lock(), "{}\n{}\n", hold.output(), hold.errors()).unwrap();
    }
    printed.check();
}
