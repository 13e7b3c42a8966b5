//! Limits of the operating system: how its refusals read, and how to raise the limits.

use crate::error::Error;
use rustix::io::Errno;
use std::io;

/// How to mend it, if `failure` says that no file descriptor is left for another file or
/// connection.
///
/// For backends: a connection that was not made for want of a descriptor says nothing about the
/// server.
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

/// The error of a thread that could not be started; `attempt` says which, as in "could not start
/// the thread for events".
///
/// [`Error::is_unavailable`]. If it is one of the system's limits that is in the way, the text says how to raise it.
#[must_use]
pub fn no_thread(attempt: &str, failure: io::Error) -> Error {
    let mend = match Errno::from_io_error(&failure) {
        Some(Errno::AGAIN | Errno::NOMEM) => Some(
            "the system has no thread or no memory left for this process: raise its limits (`ulimit -u` and `-v`, or \
             `TasksMax=` and `MemoryMax=` of a systemd unit)",
        ),
        // Some have a connection of their own, by which they are woken.
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
    fn a_limit_of_the_system_is_told_with_how_to_raise_it() {
        for (errno, says) in [
            (Errno::MFILE, "`ulimit -n`, or `LimitNOFILE="),
            (Errno::NFILE, "`sysctl fs.file-max`"),
        ] {
            assert!(no_descriptor(&failure(errno)).unwrap().contains(says), "{errno:?}");
        }
        for (errno, says) in [
            (Errno::AGAIN, "could not start it: the system has no thread"),
            (Errno::NOMEM, "`TasksMax=` and `MemoryMax="),
            (Errno::MFILE, "could not start it: this process has as many files"),
        ] {
            let error = no_thread("could not start it", failure(errno));
            assert!(error.is_unavailable() && error.to_string().contains(says), "{error:?}");
        }
    }

    #[test]
    fn what_is_no_limit_is_not_taken_for_one() {
        let (refused, odd) = (failure(Errno::CONNREFUSED), io::Error::other("odd"));
        assert!(no_descriptor(&refused).is_none() && no_descriptor(&odd).is_none());
        assert_eq!(no_thread("could not start it", odd).to_string(), "could not start it");
    }
}
