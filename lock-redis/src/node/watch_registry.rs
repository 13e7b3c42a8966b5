//! [`WatchRegistry`]: watches on locks that move to another node, by failover or with their slots.
//!
//! A watch is subscribed on the node of its lock, and wakes its waiter each time the lock has
//! moved.

use crate::node::{Node, WeakNode};
use lock_core::backend::{Failure, NextOwner, Wake, Watch, contain};
use lock_core::{LockName, Moment};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The watches of a client.
#[derive(Default)]
pub struct WatchRegistry(Arc<Mutex<Registry>>);

#[derive(Default)]
struct Registry {
    entries: HashMap<u64, WatchEntry>,
    last: u64,
}

/// The function that returns whether a waiter may rely on a node's grants of a lock at the moment.
/// Never waits.
pub(crate) type Counts = Arc<dyn Fn(&LockName, &WeakNode) -> bool + Send + Sync>;

struct WatchEntry {
    name: LockName,
    wake: Arc<dyn Wake>,
    counts: Counts,
    /// `None` before the first subscription, and after a move whose subscription failed.
    subscribed: Option<SubscribedOn>,
}

/// The node on which a watch is subscribed. Does not keep the node alive.
struct SubscribedOn {
    node: WeakNode,
    wake: Arc<WakeFromNode>,
    _watch: Watch,
}

/// Wakes the waiter for messages of one node. Once the watch has moved to another node, a late
/// message wakes the waiter without a grant, because the former node's grants are no longer valid.
/// Whether a grant is valid is checked again when the waiter takes the grant.
struct WakeFromNode {
    wake: Arc<dyn Wake>,
    has_left: Arc<AtomicBool>,
    counts: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl WakeFromNode {
    fn new(name: &LockName, node: &Node, wake: &Arc<dyn Wake>, counts: &Counts) -> Arc<Self> {
        let has_left = Arc::new(AtomicBool::new(false));
        let (left, counts) = (Arc::clone(&has_left), Arc::clone(counts));
        let (name, node) = (name.clone(), node.downgrade());
        Arc::new(Self {
            wake: Arc::clone(wake),
            has_left,
            counts: Arc::new(move || !left.load(Ordering::SeqCst) && counts(&name, &node)),
        })
    }
}

impl Wake for WakeFromNode {
    fn wake(&self) {
        self.wake.wake();
    }

    fn wake_next(&self, next: &NextOwner) {
        if self.has_left.load(Ordering::SeqCst) {
            self.wake.wake();
        } else {
            let next = next.clone().only_while(Arc::clone(&self.counts));
            self.wake.wake_next(&next);
        }
    }
}

/// A watch that moves from node to node; ends when dropped.
pub struct RelocatableWatch {
    registry: Arc<Mutex<Registry>>,
    number: u64,
    name: LockName,
    wake: Arc<dyn Wake>,
    counts: Counts,
}

impl WatchRegistry {
    /// Registers a waiter. From now on its watch is moved when the lock moves, and the waiter is
    /// woken. Must be called before the first subscription: otherwise a move in between would be
    /// missed. `counts` returns whether the waiter may rely on a node's grants of the lock at the
    /// moment, and never waits.
    #[must_use = "it ends when it is dropped"]
    pub fn register(
        &self,
        name: &LockName,
        wake: Arc<dyn Wake>,
        counts: impl Fn(&LockName, &WeakNode) -> bool + Send + Sync + 'static,
    ) -> RelocatableWatch {
        let counts: Counts = Arc::new(counts);
        let mut registry = self.0.lock();
        registry.last += 1;
        let number = registry.last;
        let entry = WatchEntry {
            name: name.clone(),
            wake: Arc::clone(&wake),
            counts: Arc::clone(&counts),
            subscribed: None,
        };
        registry.entries.insert(number, entry);
        drop(registry);
        RelocatableWatch {
            registry: Arc::clone(&self.0),
            number,
            name: name.clone(),
            wake,
            counts,
        }
    }

    /// Returns whether there are no waiters.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.lock().entries.is_empty()
    }

    /// Moves the watches whose locks are on another node now, and wakes their waiters. `home`
    /// returns the node of a lock; if it returns none, the watch stays on its present node.
    ///
    /// Does not wait: a waiter is woken again when its subscription is confirmed.
    pub fn relocate(&self, home: impl Fn(&LockName) -> Option<Node>) {
        let mut left = Vec::new();
        let mut registry = self.0.lock();
        for entry in registry.entries.values_mut() {
            left.extend(home(&entry.name).and_then(|node| entry.move_to(&node)));
        }
        drop(registry);
        left.into_iter().for_each(Left::wake);
    }
}

impl std::fmt::Debug for WatchRegistry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchRegistry")
            .field("count", &self.0.lock().entries.len())
            .finish()
    }
}

/// The former subscription of a moved watch. Its waiter is woken after the registry's mutex is
/// unlocked, because waking runs foreign code.
struct Left {
    subscribed: Option<SubscribedOn>,
    wake: Arc<dyn Wake>,
}

impl Left {
    fn wake(self) {
        drop(self.subscribed);
        contain(|| self.wake.wake());
    }
}

impl WatchEntry {
    /// Moves the watch to `node`, unless it is subscribed there.
    fn move_to(&mut self, node: &Node) -> Option<Left> {
        if self.is_on(node) {
            return None;
        }
        // If the subscription fails, the waiter polls after a bounded wait.
        let wake = WakeFromNode::new(&self.name, node, &self.wake, &self.counts);
        let watch = node.follow(&self.name, Arc::clone(&wake) as _).ok();
        let subscribed = watch.map(|watch| SubscribedOn::new(node, wake, watch));
        let subscribed = std::mem::replace(&mut self.subscribed, subscribed);
        Some(Left {
            subscribed,
            wake: Arc::clone(&self.wake),
        })
    }

    fn is_on(&self, node: &Node) -> bool {
        self.subscribed
            .as_ref()
            .is_some_and(|subscribed| subscribed.node.is(node))
    }
}

impl SubscribedOn {
    fn new(node: &Node, wake: Arc<WakeFromNode>, watch: Watch) -> Self {
        Self {
            node: node.downgrade(),
            wake,
            _watch: watch,
        }
    }
}

impl Drop for SubscribedOn {
    fn drop(&mut self) {
        self.wake.has_left.store(true, Ordering::SeqCst);
    }
}

impl RelocatableWatch {
    /// Subscribes the watch on this node, and waits for the confirmation until `by`. The lock may
    /// move meanwhile: the caller must check afterwards that the lock is still on this node, and
    /// otherwise call this function for the lock's new node.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    pub fn subscribe_on(&self, node: &Node, by: Moment) -> Result<(), Failure> {
        let wake = WakeFromNode::new(&self.name, node, &self.wake, &self.counts);
        let watch = node.watch(&self.name, Arc::clone(&wake) as _, by)?;
        let mut registry = self.registry.lock();
        let entry = registry
            .entries
            .get_mut(&self.number)
            .expect("the entry lives as long as the watch");
        let left = entry
            .subscribed
            .replace(SubscribedOn::new(node, wake, watch));
        drop(registry);
        drop(left);
        Ok(())
    }

    /// Moves this watch, as [`WatchRegistry::relocate`] does. `home` returns the node of the lock,
    /// and is called while the registry is locked. Otherwise the watch could be moved to a newer
    /// node between the call of `home` and the move, and this function would move the watch back.
    pub fn follow(&self, home: impl FnOnce() -> Option<Node>) {
        let mut registry = self.registry.lock();
        let Some(node) = home() else {
            return;
        };
        let entry = registry
            .entries
            .get_mut(&self.number)
            .expect("the entry lives as long as the watch");
        let left = entry.move_to(&node);
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
        f.debug_struct("RelocatableWatch")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::NodeSettings;
    use crate::protocol::Format;
    use lock_core::backend::{DirectGrant, Grant};
    use lock_core::{ClientId, Config, Context, OwnerText, SystemClock};
    use std::num::NonZeroU64;
    use std::sync::atomic::AtomicU32;

    /// Counts the wake-ups that name no owner, and those that name one.
    #[derive(Default)]
    struct Told(AtomicU32, AtomicU32);

    impl Wake for Told {
        fn wake(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }

        fn wake_next(&self, _next: &NextOwner) {
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Keeps the last grant.
    #[derive(Default)]
    struct Kept(Mutex<Option<DirectGrant>>);

    impl Wake for Kept {
        fn wake(&self) {}

        fn wake_next(&self, next: &NextOwner) {
            self.0.lock().clone_from(&next.granted);
        }
    }

    #[derive(Default)]
    struct Calls(AtomicU32);

    impl Wake for Calls {
        fn wake(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Returns the receiver of messages of the node on which the only watch is subscribed.
    fn present(watches: &WatchRegistry) -> Arc<WakeFromNode> {
        let registry = watches.0.lock();
        let entry = registry.entries.values().next().unwrap();
        Arc::clone(&entry.subscribed.as_ref().unwrap().wake)
    }

    /// Returns two nodes that do not answer.
    fn silent_nodes(silent: &std::net::TcpListener) -> [Node; 2] {
        let port = silent.local_addr().unwrap().port();
        let context = Context::new(Arc::new(SystemClock), ClientId::random());
        let config = Config::from_url("redis://127.0.0.1").unwrap();
        let format = Format::of(&config).unwrap();
        let settings = NodeSettings::new(&config, 0, &context, format).unwrap();
        [(); 2].map(|()| settings.bystander_on("127.0.0.1", port).unwrap())
    }

    /// A late message of the former master grants nothing: the new master may have granted the lock
    /// to another owner.
    #[test]
    fn message_of_a_node_that_was_left_names_no_owner() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let nodes = silent_nodes(&silent);
        let watches = WatchRegistry::default();
        let (name, told) = (LockName::new("a").unwrap(), Arc::<Told>::default());
        let moving = watches.register(&name, Arc::clone(&told) as _, |_, _| true);
        moving.follow(|| Some(nodes[0].clone()));
        let former = present(&watches);
        let next = NextOwner::new(OwnerText::new("a:1"));
        former.wake_next(&next);
        watches.relocate(|_| Some(nodes[1].clone()));
        let [woken, named] = [&told.0, &told.1].map(|count| count.load(Ordering::SeqCst));
        assert_eq!((woken, named), (2, 1), "for each move, and by the message");
        former.wake_next(&next);
        present(&watches).wake_next(&next);
        let [woken, named] = [&told.0, &told.1].map(|count| count.load(Ordering::SeqCst));
        assert_eq!((woken, named), (3, 2), "the former node's wakes only");
    }

    /// The waiter may take the grant long after the message has arrived, so the node is checked
    /// again then.
    #[test]
    fn grant_counts_only_while_its_node_does() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let nodes = silent_nodes(&silent);
        let watches = WatchRegistry::default();
        let (name, told) = (LockName::new("a").unwrap(), Arc::<Kept>::default());
        let counts = Arc::new(AtomicBool::new(true));
        let (home, its) = (nodes[0].clone(), Arc::clone(&counts));
        let moving = watches.register(&name, Arc::clone(&told) as _, move |_, node| {
            node.is(&home) && its.load(Ordering::SeqCst)
        });
        moving.follow(|| Some(nodes[0].clone()));
        let grant = DirectGrant::new(NonZeroU64::MIN, Grant::new(None));
        let next = NextOwner::new(OwnerText::new("a:1")).granted(grant);
        present(&watches).wake_next(&next);
        let kept = told.0.lock().take().unwrap();
        assert!(kept.counts());
        counts.store(false, Ordering::SeqCst);
        assert!(!kept.counts());
        counts.store(true, Ordering::SeqCst);
        watches.relocate(|_| Some(nodes[1].clone()));
        assert!(!kept.counts(), "it has moved");
    }

    /// The nodes do not answer: the waiter is woken without a confirmation of its new watch.
    #[test]
    fn waiter_is_woken_whenever_its_lock_has_moved() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let nodes = silent_nodes(&silent);
        let watches = WatchRegistry::default();
        let (name, calls) = (LockName::new("a").unwrap(), Arc::<Calls>::default());
        let _moving = watches.register(&name, Arc::clone(&calls) as _, |_, _| true);
        for (home, woken) in [(0, 1), (0, 1), (1, 2), (0, 3)] {
            watches.relocate(|_| Some(nodes[home].clone()));
            assert_eq!(calls.0.load(Ordering::SeqCst), woken);
        }
        watches.relocate(|_| None);
        assert_eq!(
            calls.0.load(Ordering::SeqCst),
            3,
            "the node of the lock is not known"
        );
    }
}
