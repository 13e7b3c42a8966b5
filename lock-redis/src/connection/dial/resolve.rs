//! [`Resolver`]: the addresses of a host. The system's look-up has no deadline: it runs in
//! background.

use super::background_call::{BackgroundCall, CallNotDone};
use lock_core::backend::no_descriptor;
use lock_core::{Clock, Moment};
use socket2::{Domain, Socket, Type};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

/// Looks up one host, never twice at the same time.
#[derive(Debug)]
pub(super) struct Resolver {
    host: String,
    port: u16,
    look_ups: BackgroundCall<Result<Vec<SocketAddr>, LookUpFailure>>,
}

/// The error of a look-up that can be cloned: a system error number, or a text.
#[derive(Clone, Debug)]
enum LookUpFailure {
    Number(i32),
    Text(String),
}

/// Why there are no addresses.
#[derive(Debug)]
pub(super) enum LookUpError {
    /// No thread could be started.
    NoThread(io::Error),
    Failed(io::Error),
}

impl Resolver {
    pub(super) fn new(host: &str, port: u16) -> Self {
        Self { host: host.to_owned(), port, look_ups: BackgroundCall::new() }
    }

    /// The host's addresses until `by`; at once if the host is an address.
    pub(super) fn resolve(
        &self,
        clock: &dyn Clock,
        by: Moment,
    ) -> Result<Vec<SocketAddr>, LookUpError> {
        if let Ok(address) = self.host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, self.port)]);
        }
        let (host, port) = (self.host.clone(), self.port);
        let look_up = move || {
            let found = (host.as_str(), port).to_socket_addrs();
            found.map(Iterator::collect).map_err(|error| LookUpFailure::of(&error))
        };
        match self.look_ups.call(clock, by, look_up) {
            Ok(Ok(addresses)) => Ok(addresses),
            Ok(Err(failure)) => Err(LookUpError::Failed(failure.into())),
            Err(CallNotDone::NoThread(error)) => Err(LookUpError::NoThread(error)),
            Err(CallNotDone::Late) => {
                let late = io::Error::new(ErrorKind::TimedOut, "the name server did not answer");
                Err(LookUpError::Failed(late))
            }
            Err(CallNotDone::Panicked) => {
                Err(LookUpError::Failed(io::Error::other("the look-up panicked")))
            }
        }
    }
}

impl LookUpFailure {
    fn of(error: &io::Error) -> Self {
        // Without free descriptors the C library reports that the name is not known.
        let limit = Socket::new(Domain::UNIX, Type::STREAM, None).err();
        let limit = limit.filter(|limit| no_descriptor(limit).is_some());
        let number = limit.as_ref().unwrap_or(error).raw_os_error();
        number.map_or_else(|| Self::Text(error.to_string()), Self::Number)
    }
}

impl From<LookUpFailure> for io::Error {
    fn from(failure: LookUpFailure) -> Self {
        match failure {
            LookUpFailure::Number(number) => Self::from_raw_os_error(number),
            LookUpFailure::Text(text) => Self::other(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::SystemClock;
    use std::time::Duration;

    fn soon() -> Moment {
        SystemClock.now() + Duration::from_secs(5)
    }

    #[test]
    fn address_needs_no_look_up() {
        let resolver = Resolver::new("::1", 7);
        let found = resolver.resolve(&SystemClock, SystemClock.now()).unwrap();
        assert_eq!(found, ["[::1]:7".parse().unwrap()]);
        assert_eq!(resolver.look_ups.ended(), 0);
    }

    #[test]
    fn name_is_looked_up_each_time() {
        let resolver = Resolver::new("localhost", 7);
        for times in 1..=2 {
            let found = resolver.resolve(&SystemClock, soon()).unwrap();
            assert!(found.iter().any(|address| address.ip().is_loopback()), "{found:?}");
            assert_eq!(resolver.look_ups.ended(), times);
        }
    }

    #[test]
    fn look_up_that_hangs_is_bounded_and_not_started_twice() {
        let resolver = Resolver::new("hangs.invalid", 7);
        resolver.look_ups.hang();
        let by = SystemClock.now() + Duration::from_millis(20);
        let error = resolver.resolve(&SystemClock, by).unwrap_err();
        assert!(matches!(error, LookUpError::Failed(error) if error.kind() == ErrorKind::TimedOut));
        assert!(SystemClock.now().since(by) < Duration::from_secs(5));
        assert_eq!(resolver.look_ups.ended(), 0);
    }

    #[test]
    fn unknown_name_is_an_error() {
        assert!(Resolver::new("no such host", 7).resolve(&SystemClock, soon()).is_err());
    }
}
