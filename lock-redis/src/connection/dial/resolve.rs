//! [`Resolver`]: the addresses of a host. The system's look-up has no deadline, so it runs in the
//! background.

use crate::connection::DialTime;
use crate::connection::background_call::{BackgroundCall, CallNotDone, SystemError};
use lock_core::backend::no_descriptor;
use socket2::{Domain, Socket, Type};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

/// Looks up the addresses of one host; concurrent callers share a look-up.
#[derive(Debug)]
pub(super) struct Resolver {
    host: String,
    port: u16,
    look_ups: BackgroundCall<Result<Vec<SocketAddr>, SystemError>>,
}

/// The reasons why there are no addresses.
#[derive(Debug)]
pub(super) enum LookUpError {
    /// No thread could be started.
    NoThread(io::Error),
    Failed(io::Error),
}

impl Resolver {
    pub(super) fn new(host: &str, port: u16) -> Self {
        Self {
            host: host.to_owned(),
            port,
            look_ups: BackgroundCall::new(),
        }
    }

    /// Returns the addresses of the host, if they are found in `time`; at once if the host is an IP
    /// address.
    pub(super) fn resolve(&self, time: &DialTime<'_>) -> Result<Vec<SocketAddr>, LookUpError> {
        if let Ok(address) = self.host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, self.port)]);
        }
        let (host, port) = (self.host.clone(), self.port);
        let look_up = move || {
            let found = (host.as_str(), port).to_socket_addrs();
            found.map(Iterator::collect).map_err(cause)
        };
        match self.look_ups.call(time, look_up) {
            Ok(Ok(addresses)) => Ok(addresses),
            Ok(Err(failure)) => Err(LookUpError::Failed(failure.into())),
            Err(CallNotDone::NoThread(error)) => Err(LookUpError::NoThread(error)),
            Err(CallNotDone::Late) => Err(LookUpError::late()),
            Err(CallNotDone::Panicked) => Err(LookUpError::Failed(io::Error::other(
                "the look-up panicked",
            ))),
        }
    }
}

impl LookUpError {
    pub(super) fn late() -> Self {
        Self::Failed(io::Error::new(
            ErrorKind::TimedOut,
            "the name server did not answer",
        ))
    }
}

/// Returns the cause of a failed look-up. If no descriptor is free, the C library reports an
/// unknown name, so this function opens a socket to find out whether a descriptor is free.
fn cause(error: io::Error) -> SystemError {
    let limit = Socket::new(Domain::UNIX, Type::STREAM, None).err();
    limit
        .filter(|limit| no_descriptor(limit).is_some())
        .unwrap_or(error)
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::{Clock, SystemClock};
    use std::time::Duration;

    fn time(left: Duration) -> DialTime<'static> {
        DialTime::until(&SystemClock, SystemClock.now() + left)
    }

    fn soon() -> DialTime<'static> {
        time(Duration::from_secs(5))
    }

    #[test]
    fn address_needs_no_look_up() {
        let resolver = Resolver::new("::1", 7);
        let found = resolver.resolve(&time(Duration::ZERO)).unwrap();
        assert_eq!(found, ["[::1]:7".parse().unwrap()]);
        assert_eq!(resolver.look_ups.ended(), 0);
    }

    #[test]
    fn name_is_looked_up_each_time() {
        let resolver = Resolver::new("localhost", 7);
        for times in 1..=2 {
            let found = resolver.resolve(&soon()).unwrap();
            assert!(
                found.iter().any(|address| address.ip().is_loopback()),
                "{found:?}"
            );
            assert_eq!(resolver.look_ups.ended(), times);
        }
    }

    #[test]
    fn look_up_that_hangs_is_bounded_and_not_started_twice() {
        let resolver = Resolver::new("hangs.invalid", 7);
        resolver.look_ups.hang();
        let by = SystemClock.now() + Duration::from_millis(20);
        let error = resolver
            .resolve(&DialTime::until(&SystemClock, by))
            .unwrap_err();
        assert!(matches!(error, LookUpError::Failed(error) if error.kind() == ErrorKind::TimedOut));
        assert!(SystemClock.now().since(by) < Duration::from_secs(5));
        assert_eq!(resolver.look_ups.ended(), 0);
    }

    #[test]
    fn unknown_name_is_an_error() {
        assert!(Resolver::new("no such host", 7).resolve(&soon()).is_err());
    }
}
