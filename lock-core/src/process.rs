//! [`Origin`]: whether this is still the process that made a client, or a forked child that has a copy of its memory.

/// The process that made a client. A forked child has our memory, but neither our threads nor a
/// right to our locks.
#[derive(Debug)]
pub(crate) struct Origin {
    process: u32,
    /// Sees the C library's `fork`; `None` if the library would not have it.
    #[cfg(unix)]
    mark: Option<forkguard::atfork::Guard>,
}

impl Origin {
    /// This process.
    pub(crate) fn here() -> Self {
        Self {
            process: std::process::id(),
            #[cfg(unix)]
            mark: forkguard::atfork::Guard::try_new().ok(),
        }
    }

    /// Whether this is another process. A system call, which takes longer than all the rest of a
    /// nested lock.
    ///
    /// The mark is asked, too: a child in a room of its own for process numbers (a container's) may
    /// have our number.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.process != std::process::id() || self.is_marked().unwrap_or(false)
    }

    /// The same by a look at memory: of children that were made past the C library, by a system
    /// call of their own, it knows nothing. For what can do no harm there: whatever reaches the
    /// store asks [`is_elsewhere`](Self::is_elsewhere).
    pub(crate) fn seems_elsewhere(&self) -> bool {
        self.is_marked().unwrap_or_else(|| self.is_elsewhere())
    }

    /// Whether the C library has left its mark; `None` where it leaves none.
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
    fn here_is_not_elsewhere() {
        let origin = Origin::here();
        assert!(!origin.is_elsewhere() && !origin.seems_elsewhere());
    }
}
