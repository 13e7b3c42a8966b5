//! One request, or its answer, that the network loses, delays or garbles: an acquire, a release and
//! a renewal succeed all the same, and nothing is left of the first try.

use super::scene::{Row, answered, builder_of, client_of, command, lease};
use super::table::Case;
use distlock::Event;
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::{Fault, Proxy, Sometimes, Turn};
use distlock_tests::resp::Kind;
use distlock_tests::time::{Stopwatch, always, eventually, ms};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
/// The time of the pauses before a request is repeated.
const PAUSES: Duration = Duration::from_millis(50);

/// Makes three cases of each fault: an acquire, a release and a renewal.
macro_rules! cases {
    ($($name:literal => $fault:expr),* $(,)?) => {
        &[
            $((concat!("acquire: ", $name), || acquire($fault)),)*
            $((concat!("release: ", $name), || release($fault)),)*
            $((concat!("renewal: ", $name), || renewal($fault)),)*
        ]
    };
}

pub(super) const CASES: &[Case] = cases! {
    "the connection is cut" => Fault::Cut,
    "delayed for too long" => Fault::Delay(late()),
    "swallowed" => Fault::SwallowRequest,
    "arrives after the client gave up" => Fault::Late(late()),
    "applied, and the connection is cut" => Fault::CutReply,
    "applied, and the answer comes too late" => Fault::DelayReply(late()),
    "applied, and the answer is swallowed" => Fault::SwallowReply,
    "applied, and half of the answer comes" => Fault::HalfReply,
    "applied, and garbage comes" => Fault::Garbage,
};

/// Returns a delay that is longer than a command may take.
fn late() -> Duration {
    command() * 2
}

/// Starts a server that knows the scripts, behind a proxy that applies this fault to the first
/// command of this kind.
fn behind(kind: Kind, fault: Fault) -> (RedisServer, Proxy) {
    let server = RedisServer::start();
    let guard = answered(client_of(&server.url()).mutex("b").unwrap().lock());
    answered(guard.extend(lease() * 2));
    answered(guard.unlock());
    let plan = Sometimes::new(Some(kind), Turn::Only(1), fault);
    let proxy = Proxy::new(server.port(), Arc::new(plan));
    (server, proxy)
}

/// Checks that the first try changes nothing when it arrives late: the lock stays its successor's,
/// and stays free after that.
fn nothing_comes_of_it(server: &RedisServer, proxy: &Proxy, (kind, fault): (Kind, Fault)) {
    let successor = client_of(&server.url()).mutex("a").unwrap();
    let guard = answered(successor.try_lock()).expect("it is free");
    let token = guard.fencing_token();
    always("it is the successor's", late(), || guard.is_valid());
    answered(guard.verify());
    answered(guard.unlock());
    let mut probe = server.probe();
    always("it is free", ms(50), || !probe.exists("a"));
    assert!(answered(successor.lock()).fencing_token() > token);
    assert_eq!(proxy.count(kind, fault), 1, "{}", proxy.account());
    if matches!(fault, Fault::Late(_)) {
        eventually("it arrives late", LONG, || proxy.arrived_late(kind) == 1);
    }
}

/// Checks that the acquire is repeated and gets the lock.
fn acquire(fault: Fault) -> Row {
    let (server, proxy) = behind(Kind::Acquire, fault);
    let lock = client_of(&proxy.url()).mutex("a").unwrap();
    let watch = Stopwatch::start();
    let guard = answered(lock.try_lock_for(LONG)).expect("it is free");
    let row = Row::new("nothing: it is got", watch.elapsed(), command() + PAUSES);
    answered(guard.verify());
    assert_eq!(server.probe().hgetall("a").len(), 1, "one owner");
    answered(guard.unlock());
    nothing_comes_of_it(&server, &proxy, (Kind::Acquire, fault));
    row
}

/// Checks that the release is repeated and succeeds: even after a time-out, time is left for
/// another request.
fn release(fault: Fault) -> Row {
    let (server, proxy) = behind(Kind::Release, fault);
    let guard = client_of(&proxy.url()).mutex("a").unwrap().lock().unwrap();
    // After the reply to this, none is left of the query that follows a client's first attempt. A
    // reply after the release was sent would show the connection to be alive, so it would be kept.
    answered(guard.verify());
    let watch = Stopwatch::start();
    answered(guard.unlock());
    let row = Row::new(
        "nothing: it is released",
        watch.elapsed(),
        command() + PAUSES,
    );
    assert!(!server.probe().exists("a"));
    nothing_comes_of_it(&server, &proxy, (Kind::Release, fault));
    row
}

/// Checks that the renewal is repeated long before the lease ends.
fn renewal(fault: Fault) -> Row {
    let (server, proxy) = behind(Kind::Renew, fault);
    let told = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&told);
    let handler = move |event: &Event| match event {
        Event::Renewed { .. } => heard.lock().push("renewed"),
        Event::RenewalFailed { .. } => heard.lock().push("failed"),
        Event::Lost { loss, .. } => panic!("{loss}"),
        _ => {}
    };
    let client = builder_of(&proxy.url())
        .events(Arc::new(handler))
        .connect()
        .unwrap();
    let guard = client.mutex("a").unwrap().lock().unwrap();
    eventually("a renewal meets it", LONG, || {
        proxy.count(Kind::Renew, fault) == 1
    });
    let watch = Stopwatch::start();
    eventually("it is renewed", LONG, || told.lock().contains(&"renewed"));
    let row = Row::new(
        "nothing: it is renewed",
        watch.elapsed(),
        command() + PAUSES,
    );
    assert!(guard.is_valid());
    let left = server.probe().pttl("a").expect("it is held");
    assert!(left > lease() / 2, "{left:?}");
    answered(guard.verify());
    answered(guard.unlock());
    nothing_comes_of_it(&server, &proxy, (Kind::Renew, fault));
    row
}
