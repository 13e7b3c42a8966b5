//! [`Database`]: a PostgreSQL server as a subject of the conformance suite.

use crate::postgres::PostgresServer;
use crate::time::eventually;
use distlock::backend::{Backend, Context};
use distlock::{ClientBuilder, Config, LockName};
use lock_conformance::{Seen, Subject};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// A server that cases share, with its locks read without the library.
pub struct Database {
    url: String,
    probe: Mutex<postgres::Client>,
    _server: Arc<PostgresServer>,
}

impl Database {
    /// Opens the database with these options of the URL.
    pub fn new(server: Arc<PostgresServer>, options: &str) -> Self {
        Self {
            url: format!("{}?{options}", server.url()),
            probe: Mutex::new(server.admin()),
            _server: server,
        }
    }
}

impl Subject for Database {
    fn name(&self) -> String {
        self.url.clone()
    }

    fn backend(&self, context: &Context) -> Arc<dyn Backend> {
        let config = Config::from_url(&self.url).unwrap();
        distlock::schemes().open(&config, context).unwrap()
    }

    fn client(&self, context: &Context) -> ClientBuilder {
        distlock::builder()
            .clock(Arc::clone(&context.clock))
            .url(&self.url)
            .unwrap()
    }

    fn probe(&self, lock: &LockName) -> Seen {
        let statement = "SELECT (extract(epoch FROM held.until - now.t) * 1000000)::bigint \
            FROM (SELECT clock_timestamp() AS t) now, ( \
                SELECT expires_at AS until FROM distlock.locks WHERE name = $1 \
                UNION ALL SELECT expires_at FROM distlock.shares WHERE name = $1) held \
            WHERE held.until > now.t ORDER BY 1 DESC LIMIT 1";
        let row = self.probe.lock().query_opt(statement, &[&lock.as_str()]);
        row.unwrap().map_or(Seen::FREE, |row| {
            let micros: i64 = row.get(0);
            Seen::held(Some(Duration::from_micros(micros.try_into().unwrap())))
        })
    }

    fn lose(&self, lock: &LockName) {
        let mut probe = self.probe.lock();
        let tables =
            ["locks", "shares", "waiters", "tombstones"].map(|it| format!("distlock.{it}"));
        let shared = self.url.ends_with("form=shedlock");
        for table in tables
            .into_iter()
            .chain(shared.then(|| "shedlock".to_owned()))
        {
            let statement = format!("DELETE FROM {table} WHERE name = $1");
            probe.execute(&statement, &[&lock.as_str()]).unwrap();
        }
    }
}

/// A server whose sessions hold the locks.
pub struct Sessions(Database);

impl Sessions {
    pub fn new(server: Arc<PostgresServer>) -> Self {
        Self(Database::new(server, "form=session"))
    }
}

/// The sessions that hold a lock.
const HOLDERS: &str = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted \
    AND (classid::bigint << 32 | objid::bigint) = hashtextextended($1, 0)";

impl Subject for Sessions {
    fn name(&self) -> String {
        self.0.name()
    }

    fn backend(&self, context: &Context) -> Arc<dyn Backend> {
        self.0.backend(context)
    }

    fn client(&self, context: &Context) -> ClientBuilder {
        self.0.client(context)
    }

    fn probe(&self, lock: &LockName) -> Seen {
        let rows = self.0.probe.lock().query(HOLDERS, &[&lock.as_str()]);
        match rows.unwrap().is_empty() {
            true => Seen::FREE,
            false => Seen::held(None),
        }
    }

    fn lose(&self, lock: &LockName) {
        let end = format!("SELECT pg_terminate_backend(pid) FROM ({HOLDERS}) holders");
        let mut probe = self.0.probe.lock();
        probe.query(&end, &[&lock.as_str()]).unwrap();
        let mut is_held = || !probe.query(HOLDERS, &[&lock.as_str()]).unwrap().is_empty();
        eventually("the session has ended", Duration::from_secs(10), || {
            !is_held()
        });
    }
}
