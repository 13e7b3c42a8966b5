//! Dials that take longer than their callers wait.

use super::*;
use lock_core::{Clock, SystemClock};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(20);
const SECOND: Duration = Duration::from_secs(1);

fn far() -> (TcpListener, Dialer) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let dialer = Dialer::new(Destination::of(&listener, LONG * 2, SHORT));
    (listener, dialer)
}

fn after(time: Duration) -> Moment {
    SystemClock.now() + time
}

/// Accepts the next connection, and reads the request that sets the client's name.
fn accept(listener: &TcpListener) -> TcpStream {
    let (mut peer, _) = listener.accept().unwrap();
    peer.set_read_timeout(Some(LONG)).unwrap();
    peer.read_exact(&mut [0; 35]).unwrap();
    peer
}

#[track_caller]
fn no_other_connection(listener: &TcpListener) {
    listener.set_nonblocking(true).unwrap();
    let error = listener.accept().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    listener.set_nonblocking(false).unwrap();
}

#[track_caller]
fn is_late(dialer: &Dialer) {
    let failure = dialer.dial(after(SHORT)).err().expect("no server answers");
    assert!(matches!(failure, Failure::NotSent(_)), "{failure:?}");
    assert!(
        failure.error().to_string().contains("in time"),
        "{failure:?}"
    );
}

#[test]
fn dial_goes_on_without_its_caller_for_the_next() {
    let (listener, dialer) = far();
    (0..5).for_each(|_| is_late(&dialer));
    let mut peer = accept(&listener);
    no_other_connection(&listener);
    peer.write_all(b"+OK\r\n").unwrap();
    let connection = dialer.dial(after(LONG)).unwrap();
    no_other_connection(&listener);
    let port = connection
        .into_transport()
        .unwrap()
        .socket()
        .local_addr()
        .unwrap();
    assert_eq!(port.as_socket().unwrap(), peer.peer_addr().unwrap());
    // The next caller needs another connection.
    is_late(&dialer);
    accept(&listener);
}

#[test]
fn connection_that_ended_unclaimed_is_made_anew() {
    let (listener, dialer) = far();
    is_late(&dialer);
    let mut peer = accept(&listener);
    peer.write_all(b"+OK\r\n").unwrap();
    drop(peer);
    std::thread::scope(|scope| {
        scope.spawn(|| accept(&listener).write_all(b"+OK\r\n").unwrap());
        dialer.dial(after(LONG)).unwrap();
    });
}

#[test]
fn connection_that_no_caller_fetches_is_closed() {
    let (listener, dialer) = far();
    is_late(&dialer);
    let mut peer = accept(&listener);
    peer.write_all(b"+OK\r\n").unwrap();
    peer.set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(peer.read(&mut [0; 100]).unwrap(), 0, "it is closed");
    std::thread::scope(|scope| {
        scope.spawn(|| accept(&listener).write_all(b"+OK\r\n").unwrap());
        dialer.dial(after(LONG)).unwrap();
    });
}

#[test]
fn refusal_to_an_unclaimed_dial_is_what_the_next_late_caller_is_told() {
    let (listener, dialer) = far();
    is_late(&dialer);
    let mut peer = accept(&listener);
    peer.write_all(b"-NOAUTH Authentication required.\r\n")
        .unwrap();
    // The client closes the connection when it has read the error.
    assert_eq!(peer.read(&mut [0]).unwrap_or(0), 0);
    let failure = loop {
        let failure = dialer.dial(after(SHORT)).err().expect("no server answers");
        if !failure.error().to_string().contains("in time") {
            break failure;
        }
    };
    assert!(matches!(failure, Failure::Refused(_)), "{failure:?}");
    assert!(
        failure.error().to_string().contains("asks for a password"),
        "{failure:?}"
    );
    is_late(&dialer);
}

#[test]
fn old_refusal_to_an_unclaimed_dial_is_forgotten() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connect = SHORT * 20;
    let dialer = Dialer::new(Destination::of(&listener, connect, SHORT));
    is_late(&dialer);
    let mut peer = accept(&listener);
    peer.write_all(b"-NOAUTH Authentication required.\r\n")
        .unwrap();
    assert_eq!(peer.read(&mut [0]).unwrap_or(0), 0);
    // A refusal that is older than the connect timeout is not returned: the password may have been
    // corrected meanwhile.
    SystemClock.wait(&Arc::default(), after(connect * 2));
    is_late(&dialer);
}

/// The first connection never gets a reply, as from a load balancer whose target has vanished.
#[test]
fn dial_without_an_end_is_not_all_that_callers_wait_for() {
    let (listener, dialer) = far();
    let mut silent = vec![next_is_tried_behind_a_silent_one(&listener, &dialer)];
    // From now on the usual duration of a dial is known.
    let began = SystemClock.now();
    silent.extend((0..2).map(|_| next_is_tried_behind_a_silent_one(&listener, &dialer)));
    println!("two after {:?}", SystemClock.now().since(began));
}

/// Checks that the next dial succeeds while an earlier dial gets no reply. Returns the silent
/// connection, which must not break before the end of the test.
fn next_is_tried_behind_a_silent_one(listener: &TcpListener, dialer: &Dialer) -> TcpStream {
    is_late(dialer);
    let silent = accept(listener);
    std::thread::scope(|scope| {
        // The connection stays open, because a later caller may fetch it.
        let _served = scope.spawn(|| {
            let mut peer = accept(listener);
            peer.write_all(b"+OK\r\n").unwrap();
            peer
        });
        let until = after(LONG);
        while dialer.dial(after(SHORT)).is_err() {
            if SystemClock.now() >= until {
                // Ends the accepting thread, too.
                TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                panic!("the dial that hangs is waited for");
            }
        }
    });
    no_other_connection(listener);
    silent
}

/// Returns how many connections three dials of a second each make to a server with this report.
fn connections_to(says: &str) -> usize {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let destination = Destination::of(&listener, LONG, LONG).identified(Identity::followed(LONG));
    let dialer = Dialer::new(destination);
    let info = format!("run_id:a\r\n{says}\r\n");
    let reply = format!("+OK\r\n${}\r\n{info}\r\n", info.len());
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let mut connections = 0;
            while let Ok((mut peer, _)) = listener.accept()
                && !is_over.load(Ordering::SeqCst)
            {
                connections += 1;
                peer.write_all(reply.as_bytes()).unwrap();
                // Reads until the client has closed the connection: unread bytes would reset it.
                while peer.read(&mut [0; 100]).is_ok_and(|read| read > 0) {}
            }
            connections
        });
        for _ in 0..3 {
            let failure = dialer
                .destination
                .dial(after(SECOND), &<_>::default())
                .err()
                .unwrap();
            assert!(matches!(failure, Failure::NotSent(_)), "{failure:?}");
        }
        is_over.store(true, Ordering::SeqCst);
        TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        server.join().unwrap()
    })
}

/// Pauses are needed because many clients wait for the server, which has data to load.
#[test]
fn server_that_is_loading_is_dialled_after_pauses_from_the_first_on() {
    let dialled = connections_to("role:master\r\nloading:1");
    assert!((3..20).contains(&dialled), "{dialled} connections");
    // After a replica, the next dial follows at once: behind a balancer it may reach the master.
    let dialled = connections_to("role:slave\r\nmaster_host:10.0.0.7\r\nmaster_port:1");
    assert!(dialled > 3 * 8, "{dialled} connections");
}

/// A dialer ends its dials when it is dropped or retired, with or without a waiting caller.
#[test]
fn dials_end_with_their_dialer() {
    let (listener, dialer) = far();
    is_late(&dialer);
    let mut peer = accept(&listener);
    drop(dialer);
    assert_eq!(peer.read(&mut [0]).unwrap_or(0), 0);
    let (listener, dialer) = far();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| dialer.dial(after(LONG)).err().expect("no server answers"));
        let mut peer = accept(&listener);
        dialer.retire();
        assert_eq!(peer.read(&mut [0]).unwrap_or(0), 0);
        let failure = waiting.join().unwrap();
        assert!(
            failure.error().to_string().contains("not the master"),
            "{failure:?}"
        );
    });
}

/// After the handshake, the limit is the command timeout, even if the connect timeout is longer.
#[cfg(target_os = "linux")]
#[test]
fn unacknowledged_data_ends_a_connection_after_command_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let command = Duration::from_millis(1_234);
    let dialer = Dialer::to(&listener, command);
    std::thread::scope(|scope| {
        scope.spawn(|| accept(&listener).write_all(b"+OK\r\n").unwrap());
        let connection = dialer.dial(Moment::NEVER).unwrap();
        let transport = connection.into_transport().unwrap();
        let socket = transport.socket();
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(command));
        assert!(socket.keepalive().unwrap() && socket.tcp_nodelay().unwrap());
    });
}
