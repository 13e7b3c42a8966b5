//! [`Interrupt`]: ends another thread's wait for a lock.

use crate::call::notification::{self, Notification, Wanted, notification};
use crate::error::{Error, ErrorKind};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::channel::Sender;
use crate::time::Signal;
use std::fmt;
use std::sync::Arc;

/// Ends waits for locks from another thread, as Java's `Thread.interrupt` does.
///
/// Clones share one interrupt, and any number of waits, on any locks, may use it.
/// [`fire`](Self::fire) ends them all; every later wait ends at once, until [`reset`](Self::reset).
/// A request that was already sent is completed first, which takes at most the command timeout and
/// the timeout for replicas: cancelling the request would leave its outcome unknown.
///
/// # Examples
///
/// ```
/// # extern crate lock_core as distlock;
/// use distlock::Interrupt;
///
/// let stop = Interrupt::new();
/// let same = stop.clone();
/// same.fire();
/// assert!(stop.is_fired());
/// ```
#[derive(Clone, Default)]
pub struct Interrupt(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// Written by `fire` and `reset`. A waiter registers before it reads the flag, so it misses no
    /// firing.
    fired: AtomicBool,
    /// The number of firings. A wait compares it with the number at its registration, and so ends
    /// even if `reset` is called between the firing and the waiter's check.
    times: AtomicU64,
    /// The waits in progress.
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    /// The signals of waits for a lock.
    signals: Vec<Arc<Signal>>,
    /// The channels returned by [`Interrupt::fired`].
    channels: Vec<(Sender<()>, Wanted)>,
}

impl Interrupt {
    /// Creates an interrupt that has not fired.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an interrupt that fires on Ctrl-C (SIGINT), SIGTERM and SIGHUP.
    ///
    /// The crate `ctrlc` sets the handler, which uses one thread and lasts until the program ends.
    /// These signals no longer end the program: check [`is_fired`](Self::is_fired) between jobs,
    /// and wait for locks with this interrupt. A program that was started with the signals ignored,
    /// by `nohup` or with `&` in a script, no longer ignores them; start such a program with
    /// `setsid` instead.
    ///
    /// Needs the feature `ctrlc`. Cargo unifies features. So with this feature, a handler that the
    /// program itself sets with the crate `ctrlc` also runs on SIGTERM and SIGHUP, and these
    /// signals no longer end the program.
    ///
    /// # Errors
    ///
    /// [`Error::is_misuse`] if the program already has a handler for one of these signals, or if
    /// the handler cannot be set.
    #[cfg(feature = "ctrlc")]
    pub fn on_ctrl_c() -> Result<Self, Error> {
        let interrupt = Self::new();
        let handler = || {
            let fired_by_handler = interrupt.clone();
            move || fired_by_handler.fire()
        };
        let set = match ctrlc::try_set_handler(handler()) {
            // `ctrlc` mistakes an ignored signal for one that has a handler. If no signal has one,
            // set the handler nevertheless.
            Err(ctrlc::Error::MultipleHandlers) if !signals_have_handlers() => {
                ctrlc::set_handler(handler())
            }
            set => set,
        };
        set.map_err(|source| {
            Error::misuse(
                "the program already handles Ctrl-C: make an `Interrupt::new()` and fire it from \
                that handler",
            )
            .with_source(source)
        })?;
        Ok(interrupt)
    }

    /// Ends all waits with this interrupt, now and until [`reset`](Self::reset). Does not block.
    pub fn fire(&self) {
        self.0.fired.store(true, Ordering::SeqCst);
        self.0.times.fetch_add(1, Ordering::SeqCst);
        let (signals, channels) = {
            let mut waiting = self.0.waiting.lock();
            (
                waiting.signals.clone(),
                std::mem::take(&mut waiting.channels),
            )
        };
        for signal in signals {
            signal.raise();
        }
        for (channel, _) in channels {
            // Fails only if the channel is full or has no receiver: then no message is needed.
            let _told = channel.try_send(());
        }
    }

    /// Returns a channel that gets one message when this interrupt fires, or at once if it [is
    /// fired](Self::is_fired) already.
    ///
    /// For programs that also wait for other events than locks, as with `select!`. Each call
    /// creates another channel.
    #[must_use]
    pub fn fired(&self) -> Notification<()> {
        let (sender, wanted, notification) = notification();
        let mut waiting = self.0.waiting.lock();
        // Checked under the mutex: `fire` sets the flag before it locks the mutex, so either this
        // thread sees the flag, or `fire` sees the new channel.
        if self.is_fired() {
            let _told = sender.try_send(());
        } else {
            notification::add(&mut waiting.channels, (sender, wanted), |(_, wanted)| {
                wanted
            });
        }
        notification
    }

    /// Returns whether the interrupt has fired and was not reset since.
    #[must_use]
    pub fn is_fired(&self) -> bool {
        self.0.fired.load(Ordering::SeqCst)
    }

    /// Lets new waits begin after the interrupt has fired. Waits that had begun before the firing
    /// still end.
    pub fn reset(&self) {
        self.0.fired.store(false, Ordering::SeqCst);
    }

    /// Registers a signal that each firing raises, until the registration is dropped.
    pub(crate) fn register(&self, signal: &Arc<Signal>) -> Registration<'_> {
        let times = self.0.times.load(Ordering::SeqCst);
        self.0.waiting.lock().signals.push(Arc::clone(signal));
        Registration {
            interrupt: self,
            signal: Arc::clone(signal),
            times,
        }
    }
}

/// Returns whether this process handles SIGHUP, SIGINT or SIGTERM; true if the system does not
/// report it.
#[cfg(feature = "ctrlc")]
fn signals_have_handlers() -> bool {
    const HUP_INT_TERM: u64 = 1 | 1 << 1 | 1 << 14;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_none_or(|mask| mask & HUP_INT_TERM != 0)
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interrupt")
            .field("fired", &self.is_fired())
            .finish()
    }
}

/// The registration of a wait with an interrupt, removed on drop.
pub(crate) struct Registration<'a> {
    interrupt: &'a Interrupt,
    signal: Arc<Signal>,
    /// The number of firings before the wait began.
    times: u64,
}

impl Registration<'_> {
    /// Fails if the interrupt is fired, or was fired since this registration.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let times = self.interrupt.0.times.load(Ordering::SeqCst);
        if self.interrupt.is_fired() || times != self.times {
            return Err(Error::new(
                ErrorKind::Interrupted,
                "the wait was interrupted",
            ));
        }
        Ok(())
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        let mut waiting = self.interrupt.0.waiting.lock();
        let mut signals = waiting.signals.iter();
        if let Some(at) = signals.position(|signal| Arc::ptr_eq(signal, &self.signal)) {
            waiting.signals.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fire_raises_every_registered_signal_and_no_other() {
        let interrupt = Interrupt::new();
        let (here, gone) = (Arc::new(Signal::new()), Arc::new(Signal::new()));
        let registration = interrupt.register(&here);
        drop(interrupt.register(&gone));
        assert!(registration.check().is_ok());
        interrupt.fire();
        assert!(here.take() && !gone.take());
        assert!(registration.check().unwrap_err().is_interrupted());
        interrupt.reset();
        assert!(
            registration.check().unwrap_err().is_interrupted(),
            "registered before the fire"
        );
        assert!(interrupt.register(&here).check().is_ok());
    }

    #[test]
    fn dropped_channels_are_forgotten_and_others_notified() {
        let interrupt = Interrupt::new();
        let kept = interrupt.fired();
        for _ in 0..10_000 {
            assert!(interrupt.fired().try_recv().is_err());
        }
        let channels = interrupt.0.waiting.lock().channels.len();
        assert!(channels < 20, "{channels}");
        interrupt.fire();
        assert!(kept.try_recv().is_ok());
    }

    #[test]
    fn channel_gets_one_message_before_or_after_fire() {
        let interrupt = Interrupt::new();
        let before = interrupt.fired();
        assert!(before.try_recv().is_err());
        interrupt.fire();
        interrupt.fire();
        assert!(before.try_recv().is_ok() && before.try_recv().is_err());
        assert!(interrupt.fired().try_recv().is_ok());
    }
}
