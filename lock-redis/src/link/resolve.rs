//! [`Resolver`]: addresses of a host, looked up on a thread of its own, because the system's look-up has no deadline.

use lock_core::backend::no_descriptor;
use lock_core::{Clock, Moment};
use parking_lot::{Condvar, Mutex};
use socket2::{Domain, Socket, Type};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Looks up one host, never twice at the same time: with a name server that hangs, a thread for each try would pile up.
#[derive(Debug)]
pub(super) struct Resolver {
    host: String,
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Written by the look-up's thread and by whoever starts one; read by all who wait for it.
    state: Mutex<State>,
    finished: Condvar,
}

#[derive(Debug, Default)]
struct State {
    running: bool,
    /// How many look-ups have ended.
    ended: u64,
    /// What the last one found, or what the system said.
    addresses: Vec<SocketAddr>,
    trouble: Option<Trouble>,
}

/// What the system said of a look-up: as a number where it is one of the system's own, otherwise as text.
#[derive(Clone, Debug)]
enum Trouble {
    Number(i32),
    Text(String),
}

/// Why there are no addresses.
#[derive(Debug)]
pub(super) enum LookUpError {
    /// The look-up was not begun: there is no thread for it.
    NoThread(io::Error),
    Failed(io::Error),
}

impl Resolver {
    /// The longest wait without a look at the clock.
    const SLICE: Duration = Duration::from_secs(1);

    pub(super) fn new(host: &str, port: u16) -> Self {
        Self { host: host.to_owned(), port, shared: Arc::default() }
    }

    /// The host's addresses: at once if it is one itself, otherwise until `by`.
    pub(super) fn resolve(
        &self,
        clock: &dyn Clock,
        by: Moment,
    ) -> Result<Vec<SocketAddr>, LookUpError> {
        if let Ok(address) = self.host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, self.port)]);
        }
        let mut state = self.shared.state.lock();
        let awaited = state.ended + 1;
        if !state.running {
            self.start().map_err(LookUpError::NoThread)?;
            state.running = true;
        }
        while state.ended < awaited {
            let left = by.since(clock.now());
            if left.is_zero() {
                let late = io::Error::new(ErrorKind::TimedOut, "the name server did not answer");
                return Err(LookUpError::Failed(late));
            }
            let _timed_out = self.shared.finished.wait_for(&mut state, left.min(Self::SLICE));
        }
        match &state.trouble {
            Some(trouble) => Err(LookUpError::Failed(trouble.clone().into())),
            None => Ok(state.addresses.clone()),
        }
    }

    /// Starts a look-up. Its thread ends with it; nobody can end it earlier.
    fn start(&self) -> io::Result<()> {
        let (host, port) = (self.host.clone(), self.port);
        let shared = Arc::clone(&self.shared);
        let look_up = move || {
            let outcome = (host.as_str(), port).to_socket_addrs();
            let mut state = shared.state.lock();
            state.running = false;
            state.ended += 1;
            (state.addresses, state.trouble) = match outcome {
                Ok(addresses) => (addresses.collect(), None),
                Err(error) => (Vec::new(), Some(Trouble::of(&error))),
            };
            drop(state);
            shared.finished.notify_all();
        };
        thread::Builder::new().name("distlock-lookup".to_owned()).spawn(look_up).map(drop)
    }
}

impl Trouble {
    fn of(error: &io::Error) -> Self {
        // Where it cannot open its files or a connection, the C library says that the name is not known.
        let limit = Socket::new(Domain::UNIX, Type::STREAM, None).err();
        let limit = limit.filter(|limit| no_descriptor(limit).is_some());
        let number = limit.as_ref().unwrap_or(error).raw_os_error();
        number.map_or_else(|| Self::Text(error.to_string()), Self::Number)
    }
}

impl From<Trouble> for io::Error {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Number(number) => Self::from_raw_os_error(number),
            Trouble::Text(text) => Self::other(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::SystemClock;

    fn soon() -> Moment {
        SystemClock.now() + Duration::from_secs(5)
    }

    #[test]
    fn an_address_needs_no_look_up() {
        let resolver = Resolver::new("::1", 7);
        let found = resolver.resolve(&SystemClock, SystemClock.now()).unwrap();
        assert_eq!(found, ["[::1]:7".parse().unwrap()]);
        assert_eq!(resolver.shared.state.lock().ended, 0);
    }

    #[test]
    fn a_name_is_looked_up_anew_each_time() {
        let resolver = Resolver::new("localhost", 7);
        for times in 1..=2 {
            let found = resolver.resolve(&SystemClock, soon()).unwrap();
            assert!(found.iter().any(|address| address.ip().is_loopback()), "{found:?}");
            assert_eq!(resolver.shared.state.lock().ended, times);
        }
    }

    #[test]
    fn a_look_up_that_hangs_is_not_waited_for_beyond_the_deadline_nor_started_twice() {
        let resolver = Resolver::new("hangs.invalid", 7);
        resolver.shared.state.lock().running = true;
        let by = SystemClock.now() + Duration::from_millis(20);
        let error = resolver.resolve(&SystemClock, by).unwrap_err();
        assert!(matches!(error, LookUpError::Failed(error) if error.kind() == ErrorKind::TimedOut));
        assert!(SystemClock.now().since(by) < Duration::from_secs(5));
        assert_eq!(resolver.shared.state.lock().ended, 0);
    }

    #[test]
    fn an_unknown_name_is_told() {
        assert!(Resolver::new("no such host", 7).resolve(&SystemClock, soon()).is_err());
    }
}
