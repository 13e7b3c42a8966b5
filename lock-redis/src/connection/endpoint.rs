//! [`Endpoint`]: the address of a server; [`SocketRoute`]: connects to a socket in the file system.

use super::DialTime;
use super::address::write_address;
use super::background_call::{BackgroundCall, CallNotDone, SystemError};
use lock_core::backend::{no_descriptor, no_thread};
use lock_core::{Error, SystemClock};
use socket2::{Domain, SockAddr, Socket, Type};
use std::fmt;
use std::fs::{self, FileType};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The address of a server. Its `Display` form is `host:port` or the path of its socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Endpoint {
    Tcp {
        host: String,
        port: u16,
    },
    Unix(PathBuf),
    /// The server of the application's pool, which does not name it.
    #[cfg_attr(
        not(feature = "redis-rs"),
        expect(dead_code, reason = "the feature alone makes it")
    )]
    Lent,
}

impl Endpoint {
    pub(crate) fn tcp(host: &str, port: u16) -> Self {
        Self::Tcp {
            host: host.to_owned(),
            port,
        }
    }

    /// Returns the endpoint of a socket in the file system; refuses a path that no socket can have.
    pub(crate) fn unix(path: &str) -> Result<Self, Error> {
        SocketAddr::from_pathname(path).map_err(|error| {
            Error::configuration(format!(
                "{path:?} cannot be the path of a socket: it has {} bytes, where the system takes \
                 about 100, and may have no NUL in it; use a shorter one, or a link to it",
                path.len()
            ))
            .with_source(error)
        })?;
        Ok(Self::Unix(path.into()))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } => write_address(f, host, *port),
            Self::Unix(path) => path.display().fmt(f),
            Self::Lent => f.write_str("the server of the application's pool"),
        }
    }
}

/// Connects to a socket in the file system.
#[derive(Debug)]
pub(super) struct SocketRoute {
    path: PathBuf,
    /// Reads of the path's file type, in the background: the system has no deadline for a path on a
    /// file system that hangs.
    looks: BackgroundCall<Result<FileType, SystemError>>,
}

impl SocketRoute {
    pub(super) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            looks: BackgroundCall::new(),
        }
    }

    /// Connects in `time`.
    pub(super) fn connect(&self, time: &DialTime<'_>) -> Result<UnixStream, Error> {
        let path = self.path.clone();
        let look = move || {
            fs::metadata(&path)
                .map(|it| it.file_type())
                .map_err(SystemError::from)
        };
        let kind = match self.looks.call(time, look) {
            Ok(Ok(kind)) => kind,
            Ok(Err(error)) => return Err(self.explain(None, error.into())),
            Err(CallNotDone::Late) => {
                return Err(self.explain(None, ErrorKind::TimedOut.into()));
            }
            Err(CallNotDone::NoThread(error)) => {
                let attempt = format!("cannot connect to {}", self.path.display());
                return Err(no_thread(&attempt, error));
            }
            Err(CallNotDone::Panicked) => {
                return Err(self.explain(None, io::Error::other("the look at it panicked")));
            }
        };
        self.try_connect(time)
            .map_err(|error| self.explain(Some(kind), error))
    }

    fn try_connect(&self, time: &DialTime<'_>) -> io::Result<UnixStream> {
        let address = SockAddr::unix(&self.path)?;
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        loop {
            let left = time.left();
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            // Bounds the wait while the socket's queue of connections is full, as that of a frozen
            // server may be.
            let slice = left.clamp(Duration::from_millis(1), SystemClock::SLICE);
            socket.set_write_timeout(Some(slice))?;
            match socket.connect(&address) {
                Ok(()) => return Ok(socket.into()),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the error of a failed attempt to connect, with advice. A missing socket is reported
    /// as unavailable, because it may appear when the server starts. A path that is no socket, or
    /// may not be used, is a configuration error.
    pub(super) fn explain(&self, kind: Option<FileType>, error: io::Error) -> Error {
        let shown = self.path.display();
        if let Some(mend) = no_descriptor(&error) {
            let message = format!("cannot connect to {shown}: {mend}");
            return Error::unavailable(message).with_source(error);
        }
        let told = match error.kind() {
            ErrorKind::NotFound => Error::unavailable(format!(
                "there is no socket {shown}: is the server running, and is this the `unixsocket` \
                 in its configuration?"
            )),
            ErrorKind::PermissionDenied => Error::configuration(format!(
                "we may not use the socket {shown}: see `unixsocketperm` in the server's \
                 configuration, and who may enter the directories above it"
            )),
            ErrorKind::TimedOut => Error::unavailable(format!(
                "no connection to {shown} in time: the server does not take connections, is it \
                 frozen or overloaded?"
            )),
            _ => match kind {
                Some(kind) if kind.is_dir() => Error::configuration(format!(
                    "{shown} is a directory: name the socket in it, as in \
                     `redis+unix:///run/redis.sock`"
                )),
                Some(kind) if !kind.is_socket() => Error::configuration(format!(
                    "{shown} is no socket: name the one that `unixsocket` in the server's \
                     configuration names"
                )),
                _ => Error::unavailable(format!(
                    "cannot connect to {shown}: the socket is there, is a server still listening \
                     on it?"
                )),
            },
        };
        told.with_source(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::Clock;

    #[test]
    fn endpoint_prints_as_in_a_url() {
        assert_eq!(
            Endpoint::tcp("redis.example", 6379).to_string(),
            "redis.example:6379"
        );
        assert_eq!(Endpoint::tcp("::1", 6379).to_string(), "[::1]:6379");
        assert_eq!(
            Endpoint::unix("/run/redis.sock").unwrap().to_string(),
            "/run/redis.sock"
        );
    }

    #[test]
    fn path_that_no_socket_can_have_is_refused() {
        for path in [format!("/{}", "x".repeat(200)), "/a\0b".to_owned()] {
            let error = Endpoint::unix(&path).unwrap_err();
            assert!(error.is_configuration(), "{error:?}");
            assert!(error.to_string().contains("path of a socket"), "{error:?}");
        }
    }

    #[test]
    fn socket_without_permission_is_a_configuration_error() {
        let route = SocketRoute::new(Path::new("/run/redis.sock"));
        let error = route.explain(None, ErrorKind::PermissionDenied.into());
        assert!(error.is_configuration(), "{error:?}");
        assert!(error.to_string().contains("`unixsocketperm`"), "{error:?}");
    }

    #[test]
    fn connecting_to_a_full_queue_ends_at_the_deadline() {
        let path = std::env::temp_dir().join(format!("distlock-{}.sock", std::process::id()));
        let address = SockAddr::unix(&path).unwrap();
        let listener = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        listener.bind(&address).unwrap();
        listener.listen(0).unwrap();
        let (route, short) = (SocketRoute::new(&path), || {
            SystemClock.now() + Duration::from_millis(100)
        });
        let connect = |by| route.connect(&DialTime::until(&SystemClock, by));
        // The queue accepts one or a few connections before it is full.
        let mut queued = Vec::new();
        let error = loop {
            let by = short();
            match connect(by) {
                Ok(stream) => queued.push(stream),
                Err(error) => {
                    assert!(SystemClock.now().since(by) < Duration::from_secs(10));
                    break error;
                }
            }
        };
        assert!(
            error.is_unavailable() && error.to_string().contains("in time"),
            "{error:?}"
        );
        drop(listener);
        let error = connect(short()).unwrap_err();
        assert!(
            error.is_unavailable() && error.to_string().contains("listening"),
            "{error:?}"
        );
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn hanging_look_at_a_socket_ends_at_the_deadline() {
        let route = SocketRoute::new(Path::new("/run/redis.sock"));
        route.looks.hang();
        let by = SystemClock.now() + Duration::from_millis(50);
        let error = route
            .connect(&DialTime::until(&SystemClock, by))
            .unwrap_err();
        assert!(SystemClock.now().since(by) < Duration::from_secs(10));
        assert!(
            error.is_unavailable() && error.to_string().contains("in time"),
            "{error:?}"
        );
    }
}
