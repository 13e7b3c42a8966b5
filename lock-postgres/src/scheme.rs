//! [`PostgresScheme`]: the store that a `postgres://` URL names.

use crate::connection::{Form, OPTIONS, Settings};
use crate::session::SessionStore;
use crate::store::PostgresStore;
use lock_core::{Backend, Config, Context, Error, Scheme};
use std::sync::Arc;

/// A PostgreSQL database:
/// `postgres://[user[:password]@]host[:port][,host[:port]..]/database`, or `postgresql://`.
///
/// Of several hosts, the one that takes writes is used. The tables must be there: see
/// [`init`](crate::init). Options, besides the settings of every store:
///
/// - `form=table|session|shedlock`: leases in the tables; or locks of sessions
///   (`pg_advisory_lock`), which need no tables, take one connection for each held lock, and have
///   no tokens; or leases in the tables and in `shedlock`, the table of ShedLock's
///   `JdbcTemplateLockProvider`. The last two have mutexes only
/// - `schema=distlock`: the schema of the tables
/// - `synchronous_commit=server|on|off|local|remote_write|remote_apply`: what a grant waits for; by
///   default what the server or the role says
/// - `sslmode=disable|verify-full`: without (the default) or with TLS, where the server's
///   certificate must name the host; `require` is the same as `verify-full`. `tls_ca`, `tls_cert`
///   and `tls_key` are files in the format PEM (feature `tls`)
/// - `passfile=FILE`: passwords in the format of libpq's password file
/// - `options=-c name=value`: settings of the session, as in libpq
/// - `waking=listen|poll`: how waiters are notified. With `poll` they ask again after 0.1 s, as
///   they also do where notifications prove to have no effect (PgBouncer in transaction mode)
/// - `target_session_attrs=read-write|primary`: accepted because URLs have it; nothing else is
///   possible
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct PostgresScheme;

impl PostgresScheme {
    /// Returns the scheme.
    #[must_use]
    pub fn new() -> Self {
        Self
    }
}

impl Scheme for PostgresScheme {
    fn names(&self) -> &[&str] {
        &["postgres", "postgresql"]
    }

    fn options(&self) -> &[&str] {
        OPTIONS
    }

    fn open(&self, config: &Config, context: &Context) -> Result<Arc<dyn Backend>, Error> {
        let settings = Settings::read(config)?;
        Ok(match settings.form {
            Form::Table | Form::ShedLock => {
                Arc::new(PostgresStore::new(settings, config, context)?)
            }
            Form::Session => Arc::new(SessionStore::new(settings, config, context)),
        })
    }
}
