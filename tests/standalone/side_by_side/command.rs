//! [`Command`]: a call of the library, as data that can be generated, printed and shrunk.

use distlock::{Config, LockOptions};
use proptest::prelude::{Strategy, any, prop_oneof};
use proptest::strategy::Just;
use std::mem::Discriminant;
use std::time::Duration;

/// The number of threads. The first three are of one client, the others of another: a hand-off
/// within a client goes from the second thread to the third.
pub(super) const ACTORS: usize = 6;
/// How many clients there are at any time.
pub(super) const CLIENTS: usize = 2;
/// The number of lock names.
pub(super) const NAMES: usize = 2;

const MINUTE: Duration = Duration::from_secs(60);

/// A lease that is over before the next command, because the clocks are moved.
pub(super) const BRIEF: Duration = Duration::from_secs(3);

/// A lease that is renewed once and no more. It is far longer than a renewal may be late.
pub(super) const RENEWED_ONCE: Duration = Duration::from_secs(12);

/// How long a try with a time limit waits for a lock that stays busy.
pub(super) const PATIENCE: Duration = Duration::from_millis(5);

/// Whether a lock passes from thread to thread within a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HandOff {
    Never,
    /// For the longest time that can be set. A case that runs for nearly that long ends, so only a
    /// moved clock ends the hand-offs, on both sides.
    Always,
}

impl HandOff {
    pub(super) fn time(self) -> Duration {
        match self {
            Self::Never => Duration::ZERO,
            Self::Always => Config::LONGEST_HAND_OFF,
        }
    }

    /// Returns whether the machine's clock may have ended the hand-offs of a case that has run for
    /// `elapsed`. What follows then depends on the machine's speed, and cannot be compared.
    pub(super) fn may_be_over(self, elapsed: Duration) -> bool {
        self == Self::Always && elapsed > self.time() * 9 / 10
    }
}

/// A call of one thread for one lock.
#[derive(Clone, Copy)]
pub(super) struct Command {
    pub(super) actor: usize,
    pub(super) lock: usize,
    pub(super) operation: Operation,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    Lock(Terms),
    Try(Terms),
    TryFor(Terms),
    /// Acquires the lock for a lease that ends before the next command.
    TakeAndOutlive,
    /// Acquires the lock for a lease that may be renewed once, and answers when the renewed lease
    /// has ended, too.
    TakeAndUseUp,
    /// Locks with an interrupt that has fired before.
    LockInterrupted(Terms),
    /// Locks with an interrupt that all waits of this kind share, for any lock and by any client.
    LockTogether(Terms),
    OwnedLock,
    OwnedTry,
    Run,
    TryWithoutALease,
    /// Releases a guard. The number chooses one of the guards, as in the operations below.
    Unlock(usize),
    Drop(usize),
    Detach(usize),
    UnlockDetached,
    Extend(usize, Minutes),
    Ensure(usize, Minutes),
    Verify(usize),
    /// Releases an owned guard, which any thread may do.
    OwnedUnlock(usize),
    OwnedDrop(usize),
    OwnedVerify(usize),
    ForceUnlock,
    /// Deletes the key in the store, without a client's request.
    LoseKey,
    /// Ends this thread's wait, and all waits with the same interrupt.
    Interrupt,
    /// Waits until the thread's client has no pending cleanup.
    Settle,
    /// Replaces the thread's client, and all handles on its locks, by a new one. The guards of the
    /// old client live on, and its detached locks are released with the last of them.
    ReplaceClient,
}

/// The lease of an acquisition.
#[derive(Clone, Copy, Debug)]
pub(super) enum Terms {
    Default,
    Fixed,
    WatchedLonger,
    WatchedAtMost,
}

/// The time of an extension: far from the remaining time of any lease, so that the duration of a
/// test makes no difference.
#[derive(Clone, Copy, Debug)]
pub(super) enum Minutes {
    One,
    Fifteen,
    Forty,
}

impl Command {
    /// Changes the command to the first lock and equal terms, without which no lock is handed over.
    fn alike(&mut self) {
        self.lock = 0;
        if let Operation::Lock(terms) | Operation::LockTogether(terms) = &mut self.operation {
            *terms = Terms::Default;
        }
    }

    pub(super) fn actor(&self) -> usize {
        self.actor
    }

    /// Returns the name of the operation, without its details.
    pub(super) fn kind(&self) -> impl std::fmt::Debug + use<> {
        let text = format!("{:?}", self.operation);
        Name(text.split('(').next().unwrap_or_default().to_owned())
    }

    pub(super) fn is(&self, operation: Operation) -> bool {
        let kind: fn(&Operation) -> Discriminant<Operation> = std::mem::discriminant;
        kind(&self.operation) == kind(&operation)
    }
}

struct Name(String);

impl std::fmt::Debug for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "thread {} lock {} {:?}",
            self.actor, self.lock, self.operation
        )
    }
}

impl Terms {
    pub(super) fn options(self) -> LockOptions {
        match self {
            Self::Default => LockOptions::new(),
            Self::Fixed => LockOptions::new().lease(10 * MINUTE),
            Self::WatchedLonger => LockOptions::new().watched(10 * MINUTE),
            Self::WatchedAtMost => LockOptions::new().watched_at_most(10 * MINUTE, 2),
        }
    }
}

impl Minutes {
    pub(super) fn time(self) -> Duration {
        MINUTE
            * match self {
                Self::One => 1,
                Self::Fifteen => 15,
                Self::Forty => 40,
            }
    }
}

/// Lists of commands, half of them with hand-offs.
pub(super) fn cases() -> impl Strategy<Value = (HandOff, Vec<Command>)> {
    prop_oneof![
        commands().prop_map(|commands| (HandOff::Never, commands)),
        commands().prop_map(|mut commands| {
            commands.iter_mut().for_each(Command::alike);
            (HandOff::Always, commands)
        }),
    ]
}

fn commands() -> impl Strategy<Value = Vec<Command>> {
    let command = (0..ACTORS, 0..NAMES, operation());
    let command = command.prop_map(|(actor, lock, operation)| Command {
        actor,
        lock,
        operation,
    });
    proptest::collection::vec(command, 1..80)
}

fn operation() -> impl Strategy<Value = Operation> {
    let terms = || {
        prop_oneof![
            Just(Terms::Default),
            Just(Terms::Fixed),
            Just(Terms::WatchedLonger),
            Just(Terms::WatchedAtMost),
        ]
    };
    let minutes = || {
        prop_oneof![
            Just(Minutes::One),
            Just(Minutes::Fifteen),
            Just(Minutes::Forty)
        ]
    };
    let which = || any::<u8>().prop_map(usize::from);
    let taking = prop_oneof![
        20 => terms().prop_map(Operation::Lock),
        12 => terms().prop_map(Operation::LockTogether),
        16 => terms().prop_map(Operation::Try),
        8 => terms().prop_map(Operation::TryFor),
        4 => Just(Operation::TakeAndOutlive),
        // Rare, because it takes long.
        1 => Just(Operation::TakeAndUseUp),
        3 => terms().prop_map(Operation::LockInterrupted),
        8 => Just(Operation::OwnedLock),
        8 => Just(Operation::OwnedTry),
        4 => Just(Operation::Run),
        4 => Just(Operation::TryWithoutALease),
    ];
    let holding = prop_oneof![
        6 => which().prop_map(Operation::Unlock),
        4 => which().prop_map(Operation::Drop),
        3 => which().prop_map(Operation::Detach),
        4 => Just(Operation::UnlockDetached),
        2 => (which(), minutes()).prop_map(|(which, minutes)| Operation::Extend(which, minutes)),
        2 => (which(), minutes()).prop_map(|(which, minutes)| Operation::Ensure(which, minutes)),
        2 => which().prop_map(Operation::Verify),
        3 => which().prop_map(Operation::OwnedUnlock),
        2 => which().prop_map(Operation::OwnedDrop),
        1 => which().prop_map(Operation::OwnedVerify),
    ];
    let meddling = prop_oneof![
        2 => Just(Operation::ForceUnlock),
        2 => Just(Operation::LoseKey),
        3 => Just(Operation::Interrupt),
        1 => Just(Operation::Settle),
        1 => Just(Operation::ReplaceClient),
    ];
    prop_oneof![20 => taking, 24 => holding, 5 => meddling]
}
