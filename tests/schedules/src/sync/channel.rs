//! Channels with the methods of crossbeam's channels, whose waits would block the only OS thread.

use super::{Condvar, Mutex};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

pub use crossbeam_channel::{RecvError, TryRecvError, TrySendError};

struct Channel<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    queue: VecDeque<T>,
    capacity: usize,
    has_sender: bool,
    has_receiver: bool,
}

/// The sending end.
pub struct Sender<T>(Arc<Channel<T>>);

/// The receiving end. Its clones receive from the same channel.
pub struct Receiver<T>(Arc<ReceivingEnd<T>>);

struct ReceivingEnd<T>(Arc<Channel<T>>);

/// Makes a channel for at most `capacity` messages.
#[must_use]
pub fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let (queue, has_sender, has_receiver) = (VecDeque::new(), true, true);
    let state = Mutex::new(State {
        queue,
        capacity,
        has_sender,
        has_receiver,
    });
    let channel = Arc::new(Channel {
        state,
        changed: Condvar::new(),
    });
    let receiver = Receiver(Arc::new(ReceivingEnd(Arc::clone(&channel))));
    (Sender(channel), receiver)
}

/// Makes a channel for any number of messages.
#[must_use]
pub fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    bounded(usize::MAX)
}

impl<T> Sender<T> {
    /// Sends a message without waiting.
    ///
    /// # Errors
    ///
    /// If the channel is full, or all receivers were dropped.
    pub fn try_send(&self, message: T) -> Result<(), TrySendError<T>> {
        let mut state = self.0.state.lock();
        if !state.has_receiver {
            return Err(TrySendError::Disconnected(message));
        }
        if state.queue.len() == state.capacity {
            return Err(TrySendError::Full(message));
        }
        state.queue.push_back(message);
        drop(state);
        self.0.changed.notify_all();
        Ok(())
    }
}

impl<T> Receiver<T> {
    /// Receives a message without waiting.
    ///
    /// # Errors
    ///
    /// `Empty` if there is no message, `Disconnected` if the sender was dropped, too.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        let mut state = self.0.0.state.lock();
        match state.queue.pop_front() {
            Some(message) => Ok(message),
            None if state.has_sender => Err(TryRecvError::Empty),
            None => Err(TryRecvError::Disconnected),
        }
    }

    /// Waits for a message.
    ///
    /// # Errors
    ///
    /// If the channel is empty and the sender was dropped.
    pub fn recv(&self) -> Result<T, RecvError> {
        let mut state = self.0.0.state.lock();
        loop {
            if let Some(message) = state.queue.pop_front() {
                return Ok(message);
            }
            if !state.has_sender {
                return Err(RecvError);
            }
            self.0.0.changed.wait(&mut state);
        }
    }

    /// Receives messages until the queue is empty and the sender was dropped.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        std::iter::from_fn(|| self.recv().ok())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.state.lock().has_sender = false;
        self.0.changed.notify_all();
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for ReceivingEnd<T> {
    fn drop(&mut self) {
        self.0.state.lock().has_receiver = false;
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender(..)")
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receiver(..)")
    }
}
