//! [`WatchRegistry`]: who waits for which lock, where locks move from node to node: by a failover, or with their slots. Whoever
//! waits is subscribed where the lock lives now, and is woken to look again each time it has moved.

use crate::format::Format;
use crate::node::Node;
use lock_core::backend::{Failure, Wake, Watch};
use lock_core::{LockName, Moment};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};

/// The watches of a client.
#[derive(Default)]
pub struct WatchRegistry(Arc<Mutex<Registry>>);

#[derive(Default)]
struct Registry {
    entries: HashMap<u64, Entry>,
    last: u64,
}

struct Entry {
    name: LockName,
    wake: Arc<dyn Wake>,
    /// `None` until it is subscribed for the first time, and where that failed.
    standing: Option<Standing>,
}

/// Where a watch is subscribed. It does not keep the node.
struct Standing {
    node: Weak<Node>,
    _watch: Watch,
}

/// One watch, wherever it is subscribed; ends with it.
pub struct RelocatableWatch {
    registry: Arc<Mutex<Registry>>,
    number: u64,
    name: LockName,
    wake: Arc<dyn Wake>,
}

impl WatchRegistry {
    /// Writes down that somebody waits, so that it is moved and woken from now on. Before its first subscription, or a
    /// move that comes between would miss it.
    #[must_use = "it ends when it is dropped"]
    pub fn register(&self, name: &LockName, wake: Arc<dyn Wake>) -> RelocatableWatch {
        let mut registry = self.0.lock();
        registry.last += 1;
        let number = registry.last;
        let entry = Entry { name: name.clone(), wake: Arc::clone(&wake), standing: None };
        registry.entries.insert(number, entry);
        drop(registry);
        RelocatableWatch { registry: Arc::clone(&self.0), number, name: name.clone(), wake }
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.lock().entries.is_empty()
    }

    /// Moves everybody whose lock lives on another node now, and wakes them. `home` says where a lock lives; `None`:
    /// nobody knows, and its watches stay where they are.
    ///
    /// Waits for nothing: the subscriptions are confirmed later, and whoever may have missed something until then is
    /// woken again.
    pub fn relocate(&self, format: &Format, home: impl Fn(&LockName) -> Option<Arc<Node>>) {
        let mut left = Vec::new();
        let mut registry = self.0.lock();
        for entry in registry.entries.values_mut() {
            left.extend(home(&entry.name).and_then(|node| entry.move_to(&node, format)));
        }
        drop(registry);
        left.into_iter().for_each(Left::wake);
    }
}

impl std::fmt::Debug for WatchRegistry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchRegistry").field("count", &self.0.lock().entries.len()).finish()
    }
}

/// What one left that was moved. It runs what is not ours, so not under the lock of the registry.
struct Left {
    standing: Option<Standing>,
    wake: Arc<dyn Wake>,
}

impl Left {
    fn wake(self) {
        drop(self.standing);
        let _panicked = catch_unwind(AssertUnwindSafe(|| self.wake.wake()));
    }
}

impl Entry {
    /// Moves it, if it does not stand there.
    fn move_to(&mut self, node: &Arc<Node>, format: &Format) -> Option<Left> {
        if self.stands_on(node) {
            return None;
        }
        // Where it fails, a wait has a bound of its own, and then looks.
        let watch = node.follow(format, &self.name, Arc::clone(&self.wake)).ok();
        let standing = watch.map(|watch| Standing::new(node, watch));
        let standing = std::mem::replace(&mut self.standing, standing);
        Some(Left { standing, wake: Arc::clone(&self.wake) })
    }

    fn stands_on(&self, node: &Arc<Node>) -> bool {
        let here = Arc::as_ptr(node);
        self.standing.as_ref().is_some_and(|standing| standing.node.as_ptr() == here)
    }
}

impl Standing {
    fn new(node: &Arc<Node>, watch: Watch) -> Self {
        Self { node: Arc::downgrade(node), _watch: watch }
    }
}

impl RelocatableWatch {
    /// Subscribes it on this node, and waits for the confirmation until `by`. Whoever calls this looks afterwards
    /// whether the lock lives there still, and otherwise calls it again: a move may have come between.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    pub fn subscribe_on(
        &self,
        node: &Arc<Node>,
        format: &Format,
        by: Moment,
    ) -> Result<(), Failure> {
        let watch = node.watch(format, &self.name, Arc::clone(&self.wake), by)?;
        let mut registry = self.registry.lock();
        let entry = registry.entries.get_mut(&self.number).expect("it is there until we go");
        let left = entry.standing.replace(Standing::new(node, watch));
        drop(registry);
        drop(left);
        Ok(())
    }
}

impl RelocatableWatch {
    /// Moves this one alone, as [`WatchRegistry::relocate`] does all, to the node where its lock lives now.
    pub fn follow(&self, node: &Arc<Node>, format: &Format) {
        let mut registry = self.registry.lock();
        let entry = registry.entries.get_mut(&self.number).expect("it is there until we go");
        let left = entry.move_to(node, format);
        drop(registry);
        left.into_iter().for_each(Left::wake);
    }
}

impl Drop for RelocatableWatch {
    fn drop(&mut self) {
        let entry = self.registry.lock().entries.remove(&self.number);
        drop(entry);
    }
}

impl std::fmt::Debug for RelocatableWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RelocatableWatch").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::NodeSettings;
    use lock_core::{ClientId, Config, Context, SystemClock};
    use std::sync::atomic::{AtomicU32, Ordering};

    #[derive(Default)]
    struct Calls(AtomicU32);

    impl Wake for Calls {
        fn wake(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// To be woken when the subscription stands would be soon enough as a rule, and too late on a node that does not answer.
    #[test]
    fn whoever_waits_is_woken_at_once_when_its_lock_lives_elsewhere_and_only_then() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = silent.local_addr().unwrap().port();
        let context = Context::new(Arc::new(SystemClock), ClientId::random());
        let config = Config::from_url("redis://127.0.0.1").unwrap();
        let settings = NodeSettings::new(&config, 0, &context).unwrap();
        let nodes = [(); 2].map(|()| Arc::new(settings.guest_on("127.0.0.1", port, None).unwrap()));
        let (format, watches) = (Format::of(&config).unwrap(), WatchRegistry::default());
        let (name, calls) = (LockName::new("a").unwrap(), Arc::<Calls>::default());
        let _moving = watches.register(&name, Arc::clone(&calls) as _);
        for (home, woken) in [(0, 1), (0, 1), (1, 2), (0, 3)] {
            watches.relocate(&format, |_| Some(Arc::clone(&nodes[home])));
            assert_eq!(calls.0.load(Ordering::SeqCst), woken);
        }
        watches.relocate(&format, |_| None);
        assert_eq!(calls.0.load(Ordering::SeqCst), 3, "nobody knows better");
    }
}
