//! The texts below the options, in `--help` and in the man pages.

pub(crate) const STORE: &str = "\
The store is a URL, by --url (before or behind the subcommand) or in the
environment variable DISTLOCK_URL:

  redis://127.0.0.1:6379            one Redis server; rediss:// with TLS
  redis+sentinel://s1,s2,s3/master  the master that Sentinel names
  redis+cluster://n1:7000,n2:7001   Redis Cluster
  redlock://a,b,c                   a quorum of independent servers
  postgres://user@host/database     PostgreSQL, after `distlock postgres init`

There is no default. memory:// is refused: no other process sees a lock in this
process's memory. Settings follow as in redis://host?watchdog=10s or, if the URL
is in DISTLOCK_URL, stand in variables such as DISTLOCK_WATCHDOG=10s. Other
users of a machine can read command lines: put a URL with a password into
DISTLOCK_URL.

Or the stores and the settings of locks stand in a TOML file, by --config or in
DISTLOCK_CONFIG; no other file is read. The environment wins over it:

  default = \"main\"
  [backends.main]
  url = \"redis://127.0.0.1:6379\"
  [backends.ledger]
  url = \"redlock://a,b,c?max_lease=10m\"
  [locks.nightly]
  backend = \"ledger\"

Exit status: 64 an argument is wrong, 65 the key of the lock holds something
else, 69 the store cannot be reached, 70 any other failure, 78 the URL or a
setting is wrong, or the store refuses the client; others are listed with each
subcommand.";

pub(crate) const RUN: &str = "\
Environment of the command:
  DISTLOCK_NAME      the name of the lock
  DISTLOCK_TOKEN     its fencing token, a number that grows with every grant;
                     with --shared that of the last --exclusive; not set if the
                     store has none
  DISTLOCK_DEADLINE  when --max-hold ends, in seconds since 1970. Not set
                     without --max-hold: the lock is renewed for as long as the
                     command runs, so it has no end that could be known before.

With --shared and --exclusive NAME is a read-write lock, as a file of flock is.
Without either it is a mutex, which excludes both and is excluded by them. While
an exclusive run waits, no new shared one begins.

The command runs in a process group of its own. HUP, INT, QUIT, TERM, USR1 and
USR2 are passed to the whole group, unless they were ignored when distlock
started. After INT, QUIT or TERM, processes that an ended command left in its
session, as below timeout, get the signal, too, and the lock is held until they
have ended. On a terminal the group is in the foreground. Ctrl-Z stops it and
distlock; the lock is renewed meanwhile, and fg or bg continues both. The lock
is released when the last process of the group has ended, or by
--release=command with the command: a daemon must leave the session (setsid) if
it is to run without the lock.

If the lock is not renewed, because the store cannot be reached, the command and
all its descendants get TERM early enough for the grace of --kill-after, and
KILL before the lease can have ended. If the lock is gone at once, because it
was broken or the store lost it, TERM is sent when that is known, and KILL after
the grace. They also get TERM and KILL if distlock itself is killed, by SIGKILL
too. It runs as two processes that watch each other; only if both are killed at
the same moment do descendants of the command go on, without the lock.

Times are seconds, as in 0.5, or have a unit, as in 500ms or 2h.

Exit status:
  that of the command; 128+n if signal n ended it
  1    the lock is held by another client (another number by -E)
  64   an argument is wrong
  65   the key of the lock holds something else
  69   the store cannot be reached
  70   any other failure
  75   the lock was lost or --max-hold was over, and the command was stopped; or
       the lock was lost before the command ended (not with --on-lost=warn)
  78   the URL or a setting is wrong, or the store refuses the client
  126  the command cannot be executed
  127  there is no such command";

pub(crate) const CHECK: &str = "\
Prints `held` or `free`. Exit status: 0 free, 1 held (another number by -E), or
one of `distlock --help`.";

pub(crate) const WAIT: &str = "\
Asks the store a few times a second and does not take the lock, so another
client may have taken it when this returns. Exit status: 0 free, 1 still held at
the end of -w (another number by -E), 128+n after signal n, or one of `distlock
--help`.";

pub(crate) const STATUS: &str = "\
What the store does not know, or does not tell, is `unknown`, and null with
--json. The holder is its label, or the beginning of its identity in the store:
the whole of it would be enough to release the lock. `largest_token` in JSON is
the largest that was granted or reserved so far: stores do not keep the holder's
own. WAITERS are the clients that listen for the release; clients that poll are
not among them. Of a read-write lock each reader has a line, and the state says
whether a writer waits. Exit status: 0, or one of `distlock --help`.";

pub(crate) const LIST: &str = "\
Goes through the keys of the store by SCAN, a thousand at a time, on every
master of a cluster and every server of a quorum; the columns are those of
`status`. PATTERN is a glob as in `SCAN .. MATCH`, without the prefix of the
URL: quote it, as in 'orders:*'. Listed is what is, or looks like, a lock of the
client's format=: with `redisson` a hash of owners, also a read-write lock, with
the reader whose lease ends last. With `token` any text may be a lock, so those
are listed that look like an owner and expire: a UUID, or that and a number, 16
to 64 hexadecimal digits, 22 to 64 digits of base 64, or what ShedLock writes.
Formats without owners cannot be listed, nor are semaphores. Locks that are
taken or released meanwhile may be missing or too many. Of a file, all backends
are gone through, and sections of locks that have a format or a prefix of their
own.

With --json each lock is an object on a line of its own. Exit status: 0, also if
none is held, or one of `distlock --help`; what was found before a failure is
shown.";

pub(crate) const WATCH: &str = "\
Shows what `list` or `status` shows, again and again: the locks of a PATTERN if
one word has *, ? or [ in it, all held locks without a word, and otherwise the
locks of these names, also free ones. On a terminal the table is redrawn in
place; q or Ctrl-C ends it. Elsewhere, and with --json, each round is printed:
a table, or an object with its number as `round` and the `locks`. A round that
fails is reported and the next one comes; if the first fails, it ends. Exit
status: 0 after q or --count rounds, 128+n after signal n, the failure of the
last round, or one of `distlock --help`.";

pub(crate) const BENCH: &str = "\
THIS LOADS THE SERVER as fast as it answers, for about the time of --seconds:
other clients wait longer meanwhile. It uses locks `distlock:bench:..` of its
own, which are free at the end, also after Ctrl-C; the counters of their tokens
expire after three minutes (on a quorum after its token_retention).

Measured are lock and unlock of one thread; of many threads with a lock each, and
with one lock for all, of one client and of two; the time from a release to the
grant of another client that waits; and the renewals of held locks, which have a
lease of 3 s here. Times of locks include the wait for them. Of a file, the
default backend is measured.

Exit status: 0, 128+n after signal n, or one of `distlock --help`.";

pub(crate) const BREAK: &str = "\
This breaks mutual exclusion: another holder may enter at once. The old one
learns of it within a third of its lease if that is renewed; with a fixed lease,
or of another library, perhaps only when it releases. Asks for confirmation on a
terminal; elsewhere --yes is needed. Exit status: 0 the lock was broken, 1 it was
free or the answer was no, or one of `distlock --help`.";

pub(crate) const HOLD: &str = "\
For scripts that cannot run their work as a command. It also ends with its
parent process, or with that of --with-pid. Answers are JSON lines on standard
output, commands are lines on standard input:

  check    {\"event\":\"check\",\"valid\":true,\"remaining_ms\":29871}, by the local
           clock alone
  verify   the same with \"event\":\"verify\", from the store (null: no end)
  release  {\"event\":\"released\"}; so does the end of the input
  others   {\"event\":\"unknown\",..}

It begins with {\"event\":\"held\",\"token\":N}, or with {\"event\":\"busy\"}. When the
lock is lost it says {\"event\":\"lost\",\"cause\":\"..\"} at once, answers for another
second what was asked before that was read, and exits with 75. HUP, INT, QUIT,
TERM, USR1 and USR2 end the wait (status 128+n) or release. Exit status: 0
released, 1 busy (another number by -E), 75 lost, or one of `distlock --help`.";

pub(crate) const DOCTOR: &str = "\
Connects with the settings that the other subcommands use, reads what the server
says of itself, and acquires and releases the lock `distlock:doctor` once for
each kind of lock (a semaphore `distlock:doctor:slots`, which stays there). Says
of each finding what was seen, why it matters and how to mend it: danger (two
holders are possible, or no lock can be taken), warning, unknown (the server
does not let this user look), ok. Exit status: 0 no danger, 1 a danger, or one
of `distlock --help`.";

pub(crate) const CONFIG_CHECK: &str = "\
Shows each backend with all its settings, and of each section of a lock what
differs; with --lock the settings of that lock, as `run` uses them. A value
comes from a line of the file, from the environment, which wins over the file,
or is a default. Users and passwords are not shown. No store is asked. Exit
status: 0 the settings are right, or one of `distlock --help`, 78 with the file,
the line and what is accepted.";

pub(crate) const QUORUM: &str = "\
For a URL as in redlock://a,b,c. Other stores need no set-up.";

pub(crate) const SERVE: &str = "\
  /            a page: a table with search and sorting, the lease of each lock,
               and its holders of the last ten minutes; without scripts a table
  /metrics     for Prometheus: each lock by its name, so --limit bounds them
  /api/locks   JSON, with the objects of `list --json`
  /healthz     503 if the last sample failed or is old

Reads only. The store is asked once in --interval, and for a tenth of the time at
most, however many pages are open. A store that hangs delays no answer: the page
shows the age of the sample. Listens on this machine only: a proxy in front that
asks for a password serves others. A hold counts as expired if its lease was
over before the next sample. Exit status: 128+n after signal n, or one of
`distlock --help`.";

pub(crate) const POSTGRES: &str = "\
For a URL as in postgres://user@host/database.";

pub(crate) const POSTGRES_INIT: &str = "\
Makes the tables and functions in the schema `distlock`, or in that of the URL's
option schema=.., in one transaction, and changes nothing if they are there. The
role needs the right to make the schema, or owns it. --dry-run prints the
statements and, behind them, the rights of a role that only uses locks. Exit
status: 0 they are there, or one of `distlock --help`.";

pub(crate) const INIT: &str = "\
Declares that no lock was held on these servers within the last max_lease, and
makes them a quorum that votes at once. If some of them vote already, the others
join them and vote after max_lease. Asks for confirmation on a terminal;
elsewhere --yes is needed. Exit status: 0 all are members, 1 the answer was no,
or one of `distlock --help`.";

pub(crate) const QUORUM_STATUS: &str = "\
Shows of each server whether it is a member, since when it votes or when it
will, and by how much its clock is ahead of this machine's. Exit status: 0 a
majority votes, 1 none does, or one of `distlock --help`.";
