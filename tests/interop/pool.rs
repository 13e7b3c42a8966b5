//! [`Lent`]: a program for one test at a time. A JVM is kept for the next test of the same library
//! and version.

use crate::libraries::Library;
use crate::peer::Peer;
use parking_lot::Mutex;
use std::ops::Deref;
use std::thread;

/// JVMs that no test uses at the moment, the last used one at the end. Each takes a second of a
/// processor to start, and then some 150 MB.
static IDLE: Mutex<Vec<Peer>> = Mutex::new(Vec::new());

/// The largest number of idle JVMs. Besides these, as many may run as there are tests.
const KEPT: usize = 4;

/// A program that connects to a store of this test's own.
pub(crate) struct Lent(Option<Peer>);

impl Lent {
    /// Connects a program of this library to the store: an idle one if there is one, or a new one.
    pub(crate) fn start(library: &'static Library, url: &str, arguments: &[&str]) -> Self {
        let idle = {
            let mut idle = IDLE.lock();
            idle.iter()
                .rposition(|peer| peer.runs(library))
                .map(|at| idle.remove(at))
        };
        let peer = match idle {
            Some(peer) => {
                peer.open(library, url, arguments);
                peer
            }
            None => Peer::start(library, url, arguments),
        };
        Self(Some(peer))
    }
}

impl Deref for Lent {
    type Target = Peer;

    fn deref(&self) -> &Peer {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let peer = self.0.take().expect("it is dropped once");
        // The program of a failed test is not used again.
        if thread::panicking() || !peer.close() {
            return;
        }
        let mut idle = IDLE.lock();
        idle.push(peer);
        let oldest = (idle.len() > KEPT).then(|| idle.remove(0));
        drop(idle);
        drop(oldest);
    }
}
