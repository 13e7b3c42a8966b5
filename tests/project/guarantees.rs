//! What no lock can promise: each test shows the failure. The tests of what the library does
//! promise are named in `docs/promises.tsv`.

use distlock::{Client, FencingToken, LockOptions};
use distlock_tests::process::RedisServer;
use distlock_tests::time::eventually;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

/// Returns two clients to which the server reports no changes of keys. Otherwise a client would
/// notice a loss before the test can show the failure.
fn two_clients(server: &RedisServer) -> [Client; 2] {
    let url = format!("{}?tracking=off", server.url());
    [(); 2].map(|()| distlock::connect(&url).unwrap())
}

/// The resource that the lock protects. It accepts every write, or refuses one whose token is
/// smaller than the largest so far.
#[derive(Default)]
struct Record {
    text: &'static str,
    largest: Option<FencingToken>,
}

impl Record {
    fn write(&mut self, text: &'static str) {
        self.text = text;
    }

    fn write_fenced(&mut self, text: &'static str, token: Option<FencingToken>) -> bool {
        let is_late = token < self.largest;
        if !is_late {
            (self.text, self.largest) = (text, token);
        }
        !is_late
    }
}

#[test]
fn unfenced_late_write_overwrites_next_holders() {
    let server = RedisServer::start();
    let [slow, quick] = two_clients(&server).map(|client| client.mutex("record").unwrap());
    let (mut plain, mut fenced) = (Record::default(), Record::default());
    let options = LockOptions::new().lease(Duration::from_secs(1));
    let late = slow.lock_with(&options).unwrap();
    let looked = late.is_valid();
    // As if the holder were paused for longer than its lease, between its check and its write.
    let next = quick.try_lock_for(SOON).unwrap().expect("the lease ends");
    plain.write("new");
    assert!(fenced.write_fenced("new", next.fencing_token()));
    // The holder continues with the result of its check.
    assert!(looked);
    plain.write("old");
    assert_eq!(plain.text, "old", "the successor's work is lost");
    assert!(
        !fenced.write_fenced("old", late.fencing_token()),
        "its token is the smaller one"
    );
    assert_eq!(fenced.text, "new");
    assert!(
        !late.is_valid() && late.unlock().unwrap_err().is_lost(),
        "the loss is known afterwards"
    );
}

#[test]
fn server_that_lost_its_data_grants_twice() {
    let server = RedisServer::start();
    let [first, second] = two_clients(&server).map(|client| client.mutex("twice").unwrap());
    let one = first.lock().unwrap();
    assert!(second.try_lock().unwrap().is_none());
    server.probe().command(&["FLUSHALL"]);
    let two = second
        .try_lock()
        .unwrap()
        .expect("the server knows of no holder");
    assert!(
        one.is_valid() && two.is_valid(),
        "both guards are valid until a renewal"
    );
    assert!(
        two.fencing_token() > one.fencing_token(),
        "fencing still tells them apart"
    );
    assert!(
        one.verify().unwrap_err().is_lost() && !one.is_valid(),
        "verify reports the loss"
    );
    two.verify().unwrap();
}

#[test]
fn lock_freed_by_force_has_two_valid_guards() {
    let server = RedisServer::start();
    let [first, second] = two_clients(&server).map(|client| client.mutex("forced").unwrap());
    let one = first.lock().unwrap();
    assert!(second.force_unlock().unwrap());
    let two = second.try_lock().unwrap().expect("it was freed");
    assert!(
        one.is_valid() && two.is_valid(),
        "the first is not told before its next renewal"
    );
    assert!(one.unlock().unwrap_err().is_lost());
    two.unlock().unwrap();
}

#[test]
fn first_request_after_release_gets_the_lock() {
    let server = RedisServer::start();
    let [holder, patient] = two_clients(&server);
    let lock = holder.mutex("order").unwrap();
    let guard = lock.lock().unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let lock = patient.mutex("order").unwrap();
            let guard = lock.lock().unwrap();
            guard.fencing_token()
        });
        // One attempt of the holder, and two of the waiter: one before it subscribed, and one
        // after.
        eventually("the other client waits, and has asked again", SOON, || {
            server.probe().command_calls("exists") >= 3
        });
        // The lock becomes free without a message, and a third client tries it before the waiter
        // notices.
        server.probe().command(&["DEL", "order"]);
        let third = distlock::connect(&server.url())
            .unwrap()
            .mutex("order")
            .unwrap();
        let overtakes = third.try_lock().unwrap().expect("it is free");
        let before = overtakes.fencing_token();
        assert!(guard.unlock().unwrap_err().is_lost());
        overtakes.unlock().unwrap();
        assert!(waiting.join().unwrap() > before);
    });
}
