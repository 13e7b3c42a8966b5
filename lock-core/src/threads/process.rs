//! [`Origin`]: distinguishes a forked child from the process that created a client.

/// The process that created a client. A forked child inherits the client's memory, but neither its
/// threads nor its locks.
#[derive(Debug)]
pub(crate) struct Origin {
    process: u32,
    /// Detects the C library's `fork`; `None` if the handler of forks could not be registered.
    #[cfg(unix)]
    mark: Option<forkguard::atfork::Guard>,
}

impl Origin {
    /// Returns the origin for this process.
    pub(crate) fn here() -> Self {
        Self {
            process: std::process::id(),
            #[cfg(unix)]
            mark: forkguard::atfork::Guard::try_new().ok(),
        }
    }

    /// Returns whether the current process is another than the origin. Makes a system call, which
    /// takes longer than a re-entrant `lock()`.
    ///
    /// Checks the mark as well: a child in another PID namespace may have the same process ID.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.process != std::process::id() || self.is_marked().unwrap_or(false)
    }

    /// Returns whether the current process is most likely another than the origin, without a system
    /// call if forks are marked. Misses a child made by a raw system call, so each request checks
    /// [`is_elsewhere`](Self::is_elsewhere).
    pub(crate) fn seems_elsewhere(&self) -> bool {
        self.is_marked().unwrap_or_else(|| self.is_elsewhere())
    }

    /// Returns whether the C library marked a fork; `None` if it does not mark forks.
    fn is_marked(&self) -> Option<bool> {
        #[cfg(unix)]
        return self.mark.as_ref().map(|mark| mark.clone().detected_fork());
        #[cfg(not(unix))]
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_is_not_elsewhere() {
        let origin = Origin::here();
        assert!(!origin.is_elsewhere() && !origin.seems_elsewhere());
    }
}
