//! [`Scene`]: a server and a client with short settings, and the checks that the cases share.

use distlock::{Client, ClientBuilder, Error, LossCause};
use distlock_tests::guards::await_renewals;
use distlock_tests::probe::Value;
use distlock_tests::process::RedisServer;
use distlock_tests::time::{Stopwatch, late, ms};
use std::time::Duration;

/// The lease of every lock.
pub(super) fn lease() -> Duration {
    ms(4_000)
}

/// How long a command may take: long enough for an answer on a busy machine.
pub(super) fn command() -> Duration {
    ms(800)
}

/// The outage limit of a wait without a deadline.
pub(super) fn outage() -> Duration {
    ms(600)
}

const LONG: Duration = Duration::from_secs(60);

/// What was reported for a fault, how long that took, and how long it may take.
#[derive(Clone)]
pub(super) struct Row {
    pub(super) said: String,
    pub(super) took: Duration,
    pub(super) bound: Duration,
}

impl Row {
    pub(super) fn new(said: impl ToString, took: Duration, bound: Duration) -> Self {
        Self {
            said: said.to_string(),
            took,
            bound,
        }
    }
}

pub(super) struct Scene {
    pub(super) server: RedisServer,
    pub(super) client: Client,
}

impl Scene {
    pub(super) fn new() -> Self {
        Self::with(RedisServer::start())
    }

    pub(super) fn with(server: RedisServer) -> Self {
        let client = client_of(&server.url());
        Self { server, client }
    }

    /// Sends a command of the test to the server, which must not fail.
    pub(super) fn tell(&self, words: &[&str]) {
        let answer = self.server.probe().command(words);
        assert!(!matches!(answer, Value::Error(_)), "{words:?}: {answer:?}");
    }

    /// Makes the server answer no client for this time.
    pub(super) fn pause_clients(&self, time: Duration) {
        self.tell(&["CLIENT", "PAUSE", &time.as_millis().to_string(), "ALL"]);
    }

    /// Makes one attempt, which must fail with an error that `is` of its kind and `says` this.
    #[track_caller]
    pub(super) fn refused(&self, is: fn(&Error) -> bool, says: &str) -> Row {
        refused(&self.client, is, says)
    }

    /// Acquires and releases a lock, which must succeed.
    #[track_caller]
    pub(super) fn works(&self, name: &str) {
        let lock = self.client.mutex(name).unwrap();
        answered(
            answered(lock.try_lock_for(LONG))
                .expect("it is free")
                .unlock(),
        );
    }

    /// Holds a lock through a fault, and measures when the loss is reported: at the next renewal if
    /// the server answers; otherwise at the local deadline, never before.
    #[track_caller]
    pub(super) fn lost(&mut self, cause: LossCause, fault: impl FnOnce(&mut Self)) -> Row {
        let guard = answered(self.client.mutex("a").unwrap().lock());
        let losses = guard.losses();
        let watch = Stopwatch::start();
        let deadline_before = guard.remaining();
        fault(self);
        let deadline_after = watch.elapsed() + guard.remaining();
        let loss = losses.recv_timeout(LONG).expect("the loss is told");
        let took = watch.elapsed();
        if cause == LossCause::Gone && loss.cause() == LossCause::Expired {
            late(
                lease(),
                format!("the server was not back before the lease was over: {loss}"),
            );
        }
        assert_eq!(loss.cause(), cause, "{loss}");
        assert!(!guard.is_valid());
        // A server that answers no client would not answer the harness either.
        if cause == LossCause::Expired {
            self.server.kill();
        }
        let bound = if cause == LossCause::Expired {
            assert!(
                took >= deadline_before,
                "told after {took:?}, before {deadline_before:?}"
            );
            deadline_after
        } else {
            lease() / 3 + command()
        };
        assert!(guard.unlock().unwrap_err().is_lost());
        Row::new(format!("lost: {loss}"), took, bound)
    }

    /// Starts a scene whose client is a user with a password, which a fault may change.
    pub(super) fn as_user() -> Self {
        let Self { server, .. } = Self::new();
        let rights = ["ACL", "SETUSER", "me", "on", ">s3cret", "~*", "&*", "+@all"];
        server.probe().command(&rights);
        let client = client_of(&server.url_as("me:s3cret"));
        Self { server, client }
    }

    /// Holds a lock through a fault that must not cost it.
    #[track_caller]
    pub(super) fn kept(mut self, fault: impl FnOnce(&mut Self)) -> Row {
        let guard = answered(self.client.mutex("a").unwrap().lock());
        fault(&mut self);
        await_renewals(&guard);
        let watch = Stopwatch::start();
        answered(guard.verify());
        answered(guard.unlock());
        Row::new(
            "nothing: it is held, and unlocked",
            watch.elapsed(),
            command() * 2,
        )
    }
}

/// Returns the result of a call. Fails as [`late`] if the server did not answer within the command
/// timeout.
#[track_caller]
pub(super) fn answered<T>(outcome: Result<T, Error>) -> T {
    match outcome {
        Ok(answer) => answer,
        Err(error) if error.is_unavailable() && error.to_string().contains("in time") => {
            late(command(), error.to_string())
        }
        Err(error) => panic!("{error:?}"),
    }
}

pub(super) fn client_of(url: &str) -> Client {
    builder_of(url).connect().unwrap()
}

/// Returns the builder of a client with the short settings.
pub(super) fn builder_of(url: &str) -> ClientBuilder {
    let [lease, command, outage] = [lease(), command(), outage()].map(|time| time.as_millis());
    let settings = format!(
        "watchdog={lease}ms&command_timeout={command}ms&connect_timeout={command}ms&outage_limit={outage}ms"
    );
    let and = if url.contains('?') { '&' } else { '?' };
    distlock::builder()
        .url(&format!("{url}{and}{settings}"))
        .unwrap()
}

#[track_caller]
pub(super) fn refused(client: &Client, is: fn(&Error) -> bool, says: &str) -> Row {
    let lock = client.mutex("a").unwrap();
    let watch = Stopwatch::start();
    let error = lock.try_lock().unwrap_err();
    let row = Row::new(&error, watch.elapsed(), command());
    assert!(is(&error) && error.to_string().contains(says), "{error:?}");
    row
}

/// Starts a server that reads its data slowly after a restart: each of 500 keys takes this many
/// microseconds.
pub(super) fn slow_to_load(each_key: &str) -> RedisServer {
    let mut server = RedisServer::start_with(&["--key-load-delay", each_key]);
    server.fill();
    server.answer_while_loading();
    server
}
