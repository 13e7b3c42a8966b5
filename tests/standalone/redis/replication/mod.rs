//! Replicas that must confirm, on real servers: a master and two replicas.

mod answers;
mod insufficient_replicas;
mod renewals;
mod requests;
mod servers_clocks;

use distlock::{Client, ClientBuilder, Error};
use distlock_tests::replicas::Replicated;
use distlock_tests::time::scaled;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

fn builder(servers: &Replicated, settings: &str) -> ClientBuilder {
    distlock::builder().url(&servers.url(settings)).unwrap()
}

fn client(servers: &Replicated, settings: &str) -> Client {
    builder(servers, settings).connect().unwrap()
}

/// A lack of acknowledgements, and what it says.
#[track_caller]
fn insufficient<T>(outcome: Result<T, Error>) -> String {
    let Err(error) = outcome else {
        panic!("it should have fallen short")
    };
    assert!(error.is_insufficient_replicas(), "{error:?}");
    error.to_string()
}

/// Settings with this policy, which give replicas little time.
fn impatient(replicas: &str) -> String {
    let time = scaled(Duration::from_secs(1)).as_millis();
    format!("replicas={replicas}&replication_timeout={time}ms")
}
