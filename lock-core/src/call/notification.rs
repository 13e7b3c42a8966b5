//! [`Notification`]: the receiving end of a channel for one message.

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::channel::{Receiver, Sender, bounded};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// The receiving end of a channel that gets at most one message. Dereferences to a [`Receiver`] of
/// `crossbeam-channel`, so a `select!` accepts it.
///
/// Clones share one channel: only one of them gets the message. After the last clone is dropped,
/// the sender removes the channel, so a `select!` in a loop may create a new notification in each
/// round. A receiver made by `Receiver::clone` does not keep the channel registered: once the
/// notifications are dropped, the channel may be closed without a message. A receiver made by
/// `Receiver::from` keeps the channel registered.
///
/// # Examples
///
/// ```
/// # extern crate lock_core as distlock;
/// use distlock::Interrupt;
/// use distlock::crossbeam_channel::{select, unbounded};
///
/// let stop = Interrupt::new();
/// let (jobs, queue) = unbounded();
/// jobs.send(1).expect("the channel is open");
/// let mut done = 0;
/// loop {
///     select! {
///         recv(queue) -> job => {
///             done += job.expect("the channel is open");
///             stop.fire();
///         }
///         recv(stop.fired()) -> _ => break,
///     }
/// }
/// assert_eq!(done, 1);
/// ```
pub struct Notification<T>(Arc<Interest<T>>);

/// The state that clones of a notification share.
struct Interest<T> {
    receiver: Receiver<T>,
    is_wanted: Arc<AtomicBool>,
    /// Set by `Receiver::from`: the drop of that receiver is not observed, so the channel stays
    /// registered.
    is_kept: AtomicBool,
}

/// The flag by which the owner of the sender sees whether the channel may still have a receiver.
#[derive(Clone)]
pub(crate) struct Wanted(Arc<AtomicBool>);

/// Creates a channel for one message.
pub(crate) fn notification<T>() -> (Sender<T>, Wanted, Notification<T>) {
    let (sender, receiver) = bounded(1);
    let is_wanted = Arc::new(AtomicBool::new(true));
    let wanted = Wanted(Arc::clone(&is_wanted));
    let interest = Interest {
        receiver,
        is_wanted,
        is_kept: AtomicBool::new(false),
    };
    (sender, wanted, Notification(Arc::new(interest)))
}

impl Wanted {
    /// Returns a flag that stays set, for a listener that is never removed.
    pub(crate) fn always() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }

    fn is_so(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Adds an entry. Unwanted entries are removed when the vector is full, so an addition takes
/// constant time on average.
pub(crate) fn add<L>(waiting: &mut Vec<L>, new: L, wanted: impl Fn(&L) -> &Wanted) {
    if waiting.len() == waiting.capacity() {
        waiting.retain(|it| wanted(it).is_so());
        waiting.reserve((waiting.len() + 1).max(4));
    }
    waiting.push(new);
}

impl<T> Drop for Interest<T> {
    fn drop(&mut self) {
        if !self.is_kept.load(Ordering::Relaxed) {
            self.is_wanted.store(false, Ordering::Relaxed);
        }
    }
}

impl<T> Clone for Notification<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Deref for Notification<T> {
    type Target = Receiver<T>;

    fn deref(&self) -> &Receiver<T> {
        &self.0.receiver
    }
}

/// Makes a receiver that stays registered until the message is sent or the sender is dropped.
impl<T> From<Notification<T>> for Receiver<T> {
    fn from(notification: Notification<T>) -> Self {
        notification.0.is_kept.store(true, Ordering::Relaxed);
        notification.0.receiver.clone()
    }
}

impl<T> fmt::Debug for Notification<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Notification(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_notifications_are_removed_and_kept_ones_notified() {
        let mut waiting = Vec::new();
        let mut add_one = || {
            let (sender, wanted, notification) = notification::<()>();
            add(&mut waiting, (sender, wanted), |(_, wanted)| wanted);
            (notification, waiting.len())
        };
        let clone = add_one().0.clone();
        let receiver = Receiver::from(add_one().0);
        let most = (0..10_000).map(|_| add_one().1).max();
        assert!(most.is_some_and(|most| most < 20), "{most:?}");
        let kept: Vec<_> = (0..1_000).map(|_| add_one().0).collect();
        for (sender, _) in &waiting {
            let _told = sender.try_send(());
        }
        assert!(clone.try_recv().is_ok() && receiver.try_recv().is_ok());
        assert!(kept.iter().all(|it| it.try_recv().is_ok()));
    }
}
