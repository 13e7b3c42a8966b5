//! Connecting to one of the addresses of a host, by RFC 8305 ("Happy Eyeballs").

use crate::connection::DialTime;
use lock_core::{Moment, SystemClock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

/// The pause between the starts of the attempts for two addresses of a host, as in RFC 8305. The
/// attempts run in parallel, so that a silent or distant address takes no time from the others. The
/// pause is shorter if the first half of the time would not suffice to begin all attempts.
const PACE: Duration = Duration::from_millis(250);

/// Connects to the first of `addresses` that accepts in `time`. Otherwise fails: with the last
/// error if the attempts for all addresses have failed, or with a time-out.
///
/// Earlier attempts continue while later ones begin. All attempts begin in the first half of the
/// time, so that a distant address has the second half to answer.
pub(super) fn connect_to_any(
    addresses: &[SocketAddr],
    time: &DialTime<'_>,
) -> io::Result<TcpStream> {
    let mut waiting = VecDeque::from(alternating(addresses));
    let parts = u32::try_from(addresses.len().max(1))
        .unwrap_or(u32::MAX)
        .saturating_mul(2);
    let pace = PACE.min(time.left() / parts);
    let mut failure = io::Error::new(ErrorKind::NotFound, "the host has no address");
    let (mut begun, mut next) = (Vec::<Socket>::new(), time.now());
    loop {
        if time.left().is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        if begun.is_empty() || time.now() >= next {
            next = if waiting.is_empty() {
                Moment::NEVER
            } else {
                time.now() + pace
            };
            match waiting.pop_front().map(begin) {
                Some(Ok(socket)) => begun.push(socket),
                Some(Err(error)) => failure = error,
                None if begun.is_empty() => return Err(failure),
                None => {}
            }
            continue;
        }
        let longest = time
            .left()
            .min(next.since(time.now()))
            .min(SystemClock::SLICE);
        for decided in wait_for_any(&begun, longest)?.into_iter().rev() {
            let socket = begun.swap_remove(decided);
            match socket.take_error()? {
                None => {
                    socket.set_nonblocking(false)?;
                    return Ok(socket.into());
                }
                Some(error) => failure = error,
            }
            // The attempt has failed, so the next one begins at once.
            next = time.now();
        }
    }
}

/// Returns the addresses with IPv6 and IPv4 in turn, because one of the two networks may be
/// unreachable.
fn alternating(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let first_is_ipv6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (mut one, mut other): (VecDeque<_>, VecDeque<_>) = addresses
        .iter()
        .partition(|address| address.is_ipv6() == first_is_ipv6);
    let mut ordered = Vec::with_capacity(addresses.len());
    while let Some(address) = one.pop_front().or_else(|| other.pop_front()) {
        ordered.push(address);
        ordered.extend(other.pop_front());
    }
    ordered
}

/// Begins to connect to this address, without waiting.
fn begin(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    match socket.connect(&address.into()) {
        Err(error) if Errno::from_io_error(&error) != Some(Errno::INPROGRESS) => Err(error),
        _ => Ok(socket),
    }
}

/// Waits until a socket is connected or has failed, for at most `longest`. Returns the positions of
/// these sockets, in ascending order.
fn wait_for_any(begun: &[Socket], longest: Duration) -> io::Result<Vec<usize>> {
    let fd = |socket| PollFd::from_borrowed_fd(AsFd::as_fd(socket), PollFlags::OUT);
    let mut fds: Vec<_> = begun.iter().map(fd).collect();
    let timeout =
        Timespec::try_from(longest).map_err(|_| io::Error::from(ErrorKind::InvalidInput))?;
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    Ok((0..fds.len())
        .filter(|place| !fds[*place].revents().is_empty())
        .collect())
}

/// Sets the options of a connected socket. On Linux, sent bytes may stay unacknowledged for at most
/// `unacknowledged`.
pub(super) fn prepare(stream: &TcpStream, unacknowledged: Duration) -> io::Result<()> {
    // Requests are small and written whole, so waiting for more bytes to send has no benefit.
    stream.set_nodelay(true)?;
    // Detects a server that vanished while the connection was idle. Requests have their own
    // deadlines.
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(30))
        .with_interval(Duration::from_secs(10));
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&keepalive)?;
    // For a server that vanished before it received a request: otherwise the kernel would
    // retransmit the request for a quarter of an hour, even after the socket was closed.
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(unacknowledged))?;
    #[cfg(not(target_os = "linux"))]
    let _ = unacknowledged;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::Clock;
    use std::net::TcpListener;
    use std::sync::Arc;

    /// A listener whose queue is full, so that it drops connections like a firewall.
    struct Hole {
        listener: Socket,
        address: SocketAddr,
        queued: Vec<TcpStream>,
    }

    impl Hole {
        fn new() -> Self {
            let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            listener
                .bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())
                .unwrap();
            listener.listen(0).unwrap();
            let address = listener.local_addr().unwrap().as_socket().unwrap();
            let mut queued = Vec::new();
            let short = Duration::from_millis(50);
            while let Ok(stream) = TcpStream::connect_timeout(&address, short) {
                queued.push(stream);
            }
            Self {
                listener,
                address,
                queued,
            }
        }
    }

    fn time(by: Moment) -> DialTime<'static> {
        DialTime::until(&SystemClock, by)
    }

    fn soon(seconds: u64) -> Moment {
        SystemClock.now() + Duration::from_secs(seconds)
    }

    #[test]
    fn address_without_a_reply_leaves_time_for_the_next() {
        let (hole, good) = (Hole::new(), TcpListener::bind("127.0.0.1:0").unwrap());
        let by = soon(3);
        let addresses = [hole.address, good.local_addr().unwrap()];
        let stream = connect_to_any(&addresses, &time(by)).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), addresses[1]);
        let error = connect_to_any(&[hole.address; 2], &time(by)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(SystemClock.now().since(by) < Duration::from_secs(5));
    }

    /// The first of seven addresses answers only the kernel's second attempt, after one second:
    /// later than after a seventh of the time.
    #[test]
    fn slow_address_among_silent_ones_is_connected_to() {
        let (slow, hole) = (Hole::new(), Hole::new());
        let mut addresses = [hole.address; 7];
        addresses[0] = slow.address;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The queue gets room, but only after the kernel's first attempt to connect was
                // dropped.
                SystemClock.wait(&Arc::default(), SystemClock.now() + PACE);
                (0..=slow.queued.len()).for_each(|_| drop(slow.listener.accept().unwrap()));
            });
            let stream = connect_to_any(&addresses, &time(soon(6))).unwrap();
            assert_eq!(stream.peer_addr().unwrap(), addresses[0]);
        });
    }

    #[test]
    fn refused_address_is_followed_by_the_next_at_once() {
        let refused = {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap()
        };
        let mut addresses = vec![refused; 40];
        let error = connect_to_any(&addresses, &time(soon(600))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        let good = TcpListener::bind("127.0.0.1:0").unwrap();
        addresses.push(good.local_addr().unwrap());
        let begun = SystemClock.now();
        let stream = connect_to_any(&addresses, &time(soon(600))).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), good.local_addr().unwrap());
        // Pauses of `PACE` after all of the 40 refusals would take ten seconds.
        assert!(SystemClock.now().since(begun) < Duration::from_secs(5));
    }

    #[test]
    fn families_of_addresses_take_turns() {
        let read = |text: &str| -> Vec<SocketAddr> {
            text.split(' ')
                .map(|address| address.parse().unwrap())
                .collect()
        };
        let ordered = alternating(&read("[::1]:1 [::2]:1 [::3]:1 1.1.1.1:1 2.2.2.2:1"));
        assert_eq!(ordered, read("[::1]:1 1.1.1.1:1 [::2]:1 2.2.2.2:1 [::3]:1"));
        let ordered = alternating(&read("1.1.1.1:1 2.2.2.2:1 [::1]:1"));
        assert_eq!(ordered, read("1.1.1.1:1 [::1]:1 2.2.2.2:1"));
    }
}
