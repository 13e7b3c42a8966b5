//! Errors caused by limits of the operating system, with advice to raise the limit.

use crate::error::Error;
use rustix::io::Errno;
use std::io;

/// Returns advice to raise the limit, if `failure` means that no file descriptor is available.
///
/// Backends call this function: a connection that fails for lack of a descriptor proves nothing
/// about the server.
#[must_use]
pub fn no_descriptor(failure: &io::Error) -> Option<&'static str> {
    match Errno::from_io_error(failure)? {
        Errno::MFILE => Some(
            "this process has as many files and connections open as it may: raise its limit (`ulimit -n`, or \
             `LimitNOFILE=` of a systemd unit)",
        ),
        Errno::NFILE => Some(
            "this machine has as many files and connections open as it may: raise its limit (`sysctl fs.file-max`)",
        ),
        _ => None,
    }
}

/// Returns the error of a thread that could not be started: [`Error::is_unavailable`]. Its text
/// begins with `attempt`, as in "could not start the thread for events".
///
/// If a limit of the system is the cause, the text includes advice to raise it.
#[must_use]
pub fn no_thread(attempt: &str, failure: io::Error) -> Error {
    let mend = match Errno::from_io_error(&failure) {
        Some(Errno::AGAIN | Errno::NOMEM) => Some(
            "the system has no thread or no memory left for this process: raise its limits (`ulimit -u` and `-v`, or \
             `TasksMax=` and `MemoryMax=` of a systemd unit)",
        ),
        // Some threads open a connection for their wake-ups when they start, which needs a
        // descriptor.
        _ => no_descriptor(&failure),
    };
    let message = mend.map_or_else(|| attempt.to_owned(), |mend| format!("{attempt}: {mend}"));
    Error::unavailable(message).with_source(failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(errno: Errno) -> io::Error {
        io::Error::from_raw_os_error(errno.raw_os_error())
    }

    #[test]
    fn error_of_a_system_limit_says_how_to_raise_it() {
        for (errno, says) in [
            (Errno::MFILE, "`ulimit -n`, or `LimitNOFILE="),
            (Errno::NFILE, "`sysctl fs.file-max`"),
        ] {
            assert!(
                no_descriptor(&failure(errno)).unwrap().contains(says),
                "{errno:?}"
            );
        }
        for (errno, says) in [
            (Errno::AGAIN, "could not start it: the system has no thread"),
            (Errno::NOMEM, "`TasksMax=` and `MemoryMax="),
            (
                Errno::MFILE,
                "could not start it: this process has as many files",
            ),
        ] {
            let error = no_thread("could not start it", failure(errno));
            assert!(
                error.is_unavailable() && error.to_string().contains(says),
                "{error:?}"
            );
        }
    }

    #[test]
    fn other_system_error_is_not_reported_as_a_limit() {
        let (refused, odd) = (failure(Errno::CONNREFUSED), io::Error::other("odd"));
        assert!(no_descriptor(&refused).is_none() && no_descriptor(&odd).is_none());
        assert_eq!(
            no_thread("could not start it", odd).to_string(),
            "could not start it"
        );
    }
}
