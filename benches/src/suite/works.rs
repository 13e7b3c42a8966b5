//! [`works`]: the workloads, with the columns, the length of a turn and the rounds of each.

use super::{Column, Work};
use crate::peers::{CRATES, FOREIGN_CLIENTS, Peers};
use crate::server::Priority;
use std::path::PathBuf;
use std::time::Duration;

/// How much time the suite takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// About five minutes: for a check after a change.
    Quick,
    /// About an hour: for the published figures.
    Full,
}

impl Scale {
    fn rounds(self, quick: usize, full: usize) -> usize {
        if self == Self::Quick { quick } else { full }
    }
}

/// Makes workloads and their columns.
struct Maker<'a> {
    port: u16,
    own: PathBuf,
    peers: &'a Peers,
    scale: Scale,
}

/// The columns of this program for uncontended locks: a raw socket, the library with `unlock` and
/// with dropped guards, and the library without tokens with each of the two.
const OWN: [&str; 5] = ["raw", "ours", "ours-drop", "ours-bare", "ours-bare-drop"];

const CYCLES: &[(&str, &str)] = &[
    ("rate", "cycles/s"),
    ("client_us", "client us/cycle"),
    ("server_us", "server us/cycle"),
    ("requests_each", "requests/cycle"),
];
const CONTENDED: &[(&str, &str)] = &[
    ("changes_per_s", "changes of owner/s"),
    ("requests_per_change", "requests/change"),
    ("server_us_per_change", "server us/change"),
    ("thread_share", "worst thread's distance from a fair share"),
];
const PROCESSES: &[(&str, &str)] = &[
    ("changes_per_s", "changes of owner/s"),
    ("process_changes_per_s", "changes of process/s"),
    ("requests_per_change", "requests/change"),
    ("requests_per_process_change", "requests/change of process"),
    (
        "process_share",
        "worst process's distance from a fair share",
    ),
];
const ORDER: &[(&str, &str)] = &[
    ("process_changes_per_s", "changes of process/s"),
    ("overtaken", "overtaken by, each"),
    (
        "process_share",
        "worst process's distance from a fair share",
    ),
    ("longest_wait", "longest wait, in times of 8 visits"),
    ("requests_per_process_change", "requests/change of process"),
];
const HANDOFF: &[(&str, &str)] = &[
    ("handoff_p50_us", "p50 us"),
    ("handoff_p99_us", "p99 us"),
    ("requests_per_process_change", "requests/hand-off"),
];
const HELD: &[(&str, &str)] = &[
    ("client_s_per_min", "client s/min"),
    ("server_net_s_per_min", "server s/min"),
    ("ping_p50_us", "another's PING p50 us"),
    ("ping_p99_us", "PING p99 us"),
    ("ping_max_us", "PING max us"),
    ("threads", "threads"),
    ("timer_threads", "timer threads"),
    ("renewal_threads", "renewal threads"),
    ("spare_threads", "spare threads"),
    ("memory", "bytes/lock"),
    ("lost", "lost"),
];
const BURST: &[(&str, &str)] = &[
    ("ping_p99_us", "another's PING p99 us"),
    ("ping_p50_us", "p50 us"),
    ("ping_max_us", "max us"),
    ("lost", "lost"),
];
const CROWD: &[(&str, &str)] = &[
    ("connections", "connections"),
    ("rate", "served/s"),
    ("failed", "failed"),
    ("memory", "bytes/waiter"),
    ("thread_memory", "bytes/idle thread"),
    ("threads", "other threads"),
    ("requests_each", "requests/waiter"),
];
const NESTED: &[(&str, &str)] = &[("rate", "cycles/s"), ("requests_each", "requests/cycle")];
const SCRIPTS: &[(&str, &str)] = &[
    ("server_us", "server us/cycle"),
    ("script_us", "of that in EVALSHA"),
];

/// The kinds of locks besides the mutex: the value of the worker's option, and the title.
const KINDS: [(&str, &str); 4] = [
    ("read", "8 threads that read, one read-write lock"),
    (
        "write",
        "8 threads that write, each with its own read-write lock",
    ),
    ("permits", "8 threads, one semaphore of 100 permits"),
    ("fair", "8 threads, each with its own fair lock"),
];

/// Returns all workloads, in the order of the notes.
pub(crate) fn works(port: u16, peers: &Peers, scale: Scale) -> Vec<Work> {
    let own = std::env::current_exe().expect("this program is a file");
    let maker = Maker {
        port,
        own,
        peers,
        scale,
    };
    let mut works = vec![maker.alone()];
    works.extend([1, 8, 32, 128].map(|threads| maker.own_locks(threads)));
    works.extend([
        maker.contended(),
        maker.processes(),
        maker.handoff(),
        maker.order(),
    ]);
    works.extend(KINDS.map(|kind| maker.kind(kind)));
    let held: &[usize] = if scale == Scale::Quick {
        &[1_000, 10_000]
    } else {
        &[1_000, 10_000, 100_000]
    };
    works.extend(held.iter().map(|&locks| maker.held(locks)));
    works.extend([
        maker.burst(),
        maker.large(),
        maker.nested(),
        maker.crowd(),
        maker.scripts(&[]),
    ]);
    works
}

/// Returns the workload that measures scripts: the library's, Redisson's, minimal ones, and those
/// in the directories `trials`, each with an `acquire.lua` and a `release.lua`.
pub(crate) fn scripts(port: u16, peers: &Peers, trials: &[String], scale: Scale) -> Work {
    let own = std::env::current_exe().expect("this program is a file");
    Maker {
        port,
        own,
        peers,
        scale,
    }
    .scripts(trials)
}

/// Returns whether the library of this name notifies waiters in other processes of a release. A
/// polling client succeeds only if a poll falls into a pause of the holder, so its figures would
/// cover a biased sample.
fn is_told(name: &str) -> bool {
    name == "redisson"
}

/// Returns whether the library of this name lets a thread lock a lock that the thread already
/// holds.
fn is_reentrant(name: &str) -> bool {
    name == "redisson"
}

/// Returns whether the library of this name renews a lock while the lock is held.
fn has_watchdog(name: &str) -> bool {
    name == "redisson"
}

impl Maker<'_> {
    fn column(&self, work: &str, name: &'static str, options: &[(&str, usize)]) -> Column {
        let mut arguments = vec!["worker".to_owned(), work.to_owned(), name.to_owned()];
        for (option, value) in [("port", usize::from(self.port))].iter().chain(options) {
            arguments.extend([format!("--{option}"), value.to_string()]);
        }
        Column {
            name,
            program: Some(self.own.clone()),
            arguments,
            processes: 1,
            far: None,
        }
    }

    /// Returns the columns of this program's own workers.
    fn columns(&self, work: &str, who: &[&'static str], options: &[(&str, usize)]) -> Vec<Column> {
        who.iter()
            .map(|who| self.column(work, who, options))
            .collect()
    }

    /// Returns the columns of the other crates and of the libraries of other languages.
    fn peers(&self, work: &str, options: &[(&str, usize)]) -> Vec<Column> {
        let program = &self.peers.crates;
        let column = |name| Column {
            program: program.clone(),
            ..self.column(work, name, options)
        };
        let crates = CRATES.map(column);
        crates
            .into_iter()
            .chain(self.foreign_clients(work, options, |_| true))
            .collect()
    }

    /// Returns the columns of those libraries of other languages that are `wanted`.
    fn foreign_clients(
        &self,
        work: &str,
        options: &[(&str, usize)],
        wanted: fn(&str) -> bool,
    ) -> Vec<Column> {
        let column = |(name, program): (&'static str, &Option<PathBuf>)| {
            let mut column = self.column(work, name, options);
            match program {
                Some(it) => {
                    column
                        .arguments
                        .extend(["--program".to_owned(), it.display().to_string()]);
                }
                None => column.program = None,
            }
            column
        };
        let names = FOREIGN_CLIENTS
            .iter()
            .map(|foreign_client| foreign_client.name);
        let all = names.zip(&self.peers.foreign_clients);
        all.filter(|(name, _)| wanted(name)).map(column).collect()
    }

    fn work(
        &self,
        name: &str,
        title: &str,
        columns: Vec<Column>,
        metrics: &'static [(&str, &str)],
    ) -> Work {
        let (columns, left_out): (Vec<_>, Vec<_>) = columns
            .into_iter()
            .partition(|column| column.program.is_some());
        Work {
            name: name.to_owned(),
            title: title.to_owned(),
            columns,
            left_out: left_out.into_iter().map(|column| column.name).collect(),
            turn: Duration::from_millis(250),
            rounds: self.scale.rounds(8, 40),
            solo: false,
            priority: Priority::RealTime,
            metrics,
        }
    }

    fn alone(&self) -> Work {
        let mut columns = self.columns("cycles", &[&OWN[..], &["raw-async"]].concat(), &[]);
        columns.extend(self.peers("cycles", &[]));
        self.work(
            "alone",
            "Uncontended lock and unlock, one thread",
            columns,
            CYCLES,
        )
    }

    fn own_locks(&self, threads: usize) -> Work {
        let options = [("threads", threads)];
        let mut columns = self.columns("cycles", &[&OWN[..], &["pipeline"]].concat(), &options);
        columns.extend(self.peers("cycles", &options));
        let title = match threads {
            1 => "One thread with its own lock".to_owned(),
            _ => format!("{threads} threads, each with its own lock"),
        };
        self.work(&format!("own-{threads}"), &title, columns, CYCLES)
    }

    fn contended(&self) -> Work {
        let options = [("threads", 8)];
        let mut columns = self.columns("contend", &["publish-retry", "gate", "ours"], &options);
        columns.extend(self.peers("contend", &options));
        let work = self.work(
            "contended",
            "One lock, 8 threads of one process",
            columns,
            CONTENDED,
        );
        let (turn, rounds) = (Duration::from_millis(500), self.scale.rounds(6, 40));
        Work {
            turn,
            rounds,
            priority: Priority::Nice,
            ..work
        }
    }

    fn processes(&self) -> Work {
        let options = [("threads", 4)];
        let who = ["publish-retry", "gate", "ours", "ours-fair"];
        let mut columns = self.columns("contend", &who, &options);
        columns.extend(self.foreign_clients("contend", &options, is_told));
        columns.iter_mut().for_each(|column| column.processes = 8);
        let title = "One lock, 8 processes with 4 threads each";
        let work = self.work("processes", title, columns, PROCESSES);
        // Long turns: a process gets the lock only about fifteen times a second, and for a varying
        // number of visits.
        let (turn, rounds) = (Duration::from_secs(5), self.scale.rounds(2, 5));
        Work {
            turn,
            rounds,
            priority: Priority::Nice,
            ..work
        }
    }

    fn handoff(&self) -> Work {
        // After its release a process pauses long enough for the other one to enter.
        let options = [("threads", 1), ("hold", 2_000), ("pause", 1_000)];
        let who = ["publish-retry", "direct-grant", "ours", "ours-fair"];
        let mut columns = self.columns("contend", &who, &options);
        columns.extend(self.foreign_clients("contend", &options, is_told));
        columns.iter_mut().for_each(|column| column.processes = 2);
        let title = "From `unlock()` in one process to the end of `lock()` in another";
        let work = self.work("handoff", title, columns, HANDOFF);
        let (turn, rounds) = (Duration::from_secs(1), self.scale.rounds(4, 40));
        Work {
            turn,
            rounds,
            priority: Priority::Nice,
            ..work
        }
    }

    /// Returns the workload of one kind of lock, for distlock and Redisson.
    fn kind(&self, (kind, title): (&str, &str)) -> Work {
        let options = [("threads", 8)];
        let mut columns = self.columns("cycles", &["ours"], &options);
        columns.extend(self.foreign_clients("cycles", &options, is_told));
        for column in &mut columns {
            column
                .arguments
                .extend(["--kind".to_owned(), kind.to_owned()]);
        }
        self.work(&format!("kind-{kind}"), title, columns, CYCLES)
    }

    /// Returns the workload that shows how far waiters are served in the order of their arrival.
    fn order(&self) -> Work {
        let options = [("threads", 1)];
        let who = ["publish-retry", "direct-grant", "ours", "ours-fair"];
        let mut columns = self.columns("contend", &who, &options);
        columns.extend(self.foreign_clients("contend", &options, is_told));
        for column in &mut columns {
            column.processes = 8;
            if column.name == "redisson" {
                column
                    .arguments
                    .extend(["--kind".to_owned(), "fair".to_owned()]);
            }
        }
        let title = "One lock, 8 processes of one thread; Redisson's fair lock";
        let work = self.work("order", title, columns, ORDER);
        let (turn, rounds) = (Duration::from_secs(2), self.scale.rounds(3, 20));
        Work {
            turn,
            rounds,
            priority: Priority::Nice,
            ..work
        }
    }

    fn held(&self, locks: usize) -> Work {
        let quick = self.scale == Scale::Quick;
        // A turn is at least ten seconds longer than a lease, so that a lock without renewal is
        // gone at its end. It is also a whole number of renewal intervals (a third of the lease),
        // so that it does not matter when the turn begins.
        let (lease, turn) = if quick { (6_000, 16) } else { (30_000, 40) };
        let options = [("locks", locks), ("lease", lease)];
        let mut columns = self.columns("hold", &["raw", "ours", "no-lock"], &options);
        columns.extend(self.foreign_clients("hold", &options, has_watchdog));
        let title = format!(
            "{locks} held locks under the watchdog, lease {} s",
            lease / 1000
        );
        let work = self.work(&format!("held-{locks}"), &title, columns, HELD);
        Work {
            turn: Duration::from_secs(turn),
            rounds: self.scale.rounds(1, 3),
            solo: true,
            ..work
        }
    }

    /// Returns the workload of locks that were taken at the same time, so that their renewals are
    /// due at the same time.
    fn burst(&self) -> Work {
        let options = [("locks", 10_000), ("lease", 6_000), ("threads", 128)];
        let mut columns = self.columns("hold", &["no-lock", "ours-burst"], &options);
        columns.extend(self.foreign_clients("hold", &options, has_watchdog));
        let title = "10000 held locks, lease 6 s, taken in a burst by 128 threads";
        let work = self.work("burst", title, columns, BURST);
        // Each lock is renewed three times.
        Work {
            turn: Duration::from_secs(6),
            rounds: self.scale.rounds(2, 6),
            solo: true,
            ..work
        }
    }

    /// Returns the workload of large operations, which would block the server if each were done in
    /// one piece.
    fn large(&self) -> Work {
        let options = [("locks", 100), ("lease", 6_000)];
        let who = ["no-lock", "many-permits", "force-permits", "force-readers"];
        let columns = self.columns("hold", &who, &options);
        let title = "100 guards of 1000 permits; forced release of 10^6 permits, of 10^5 readers";
        let work = self.work("large", title, columns, BURST);
        Work {
            turn: Duration::from_secs(6),
            rounds: self.scale.rounds(2, 6),
            solo: true,
            ..work
        }
    }

    fn nested(&self) -> Work {
        let mut columns = self.columns(
            "nested",
            &["parking_lot-free", "parking_lot-held", "ours", "memory"],
            &[],
        );
        columns.extend(self.foreign_clients("nested", &[], is_reentrant));
        let work = self.work("nested", "Nested lock and unlock", columns, NESTED);
        Work {
            turn: Duration::from_millis(50),
            rounds: self.scale.rounds(10, 40),
            ..work
        }
    }

    fn crowd(&self) -> Work {
        let (threads, locks) = if self.scale == Scale::Quick {
            (2_000, 200)
        } else {
            (10_000, 1_000)
        };
        let columns = vec![self.column(
            "crowd",
            "ours",
            &[("threads", threads), ("locks", locks), ("lease", 600_000)],
        )];
        let title = format!("{threads} threads that wait for {locks} locks");
        let work = self.work("crowd", &title, columns, CROWD);
        Work {
            rounds: self.scale.rounds(1, 3),
            solo: true,
            ..work
        }
    }

    fn scripts(&self, trials: &[String]) -> Work {
        let names = [
            "lean",
            "redisson",
            "ours",
            "ours-first",
            "ours-joined-4",
            "ours-joined-16",
        ];
        let mut columns: Vec<_> = names.map(|who| self.column("scripts", who, &[])).into();
        for trial in trials {
            let name: &'static str = format!("dir:{trial}").leak();
            columns.push(self.column("scripts", name, &[]));
        }
        let title = "Server time of acquire and release, beside other scripts";
        let work = self.work("scripts", title, columns, SCRIPTS);
        Work {
            turn: Duration::from_millis(100),
            rounds: self.scale.rounds(10, 40),
            ..work
        }
    }
}
