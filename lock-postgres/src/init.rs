//! [`init`]: makes the tables and functions in a database.

use crate::connection::{Dialer, Form, Settings};
use crate::schema::{check, statements};
use lock_core::backend::Failure;
use lock_core::{ClientId, Clock, Config, Context, Error, SystemClock};
use postgres::types::Type;
use std::sync::Arc;
use std::time::Duration;

/// The time for the statements, beyond that for a connection, because a busy server takes long to
/// make tables.
const TIME: Duration = Duration::from_secs(10);

/// What [`init`] has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Initialised {
    /// The tables and functions were made.
    Made,
    /// The tables and functions were there, in the version of this library.
    Present,
}

/// Returns the SQL statements that make the tables and functions for a `postgres://` URL, and, as
/// comments, the rights that a role needs that uses locks but does not own the schema.
///
/// # Errors
///
/// [`Error::is_configuration`] if a setting is not accepted.
pub fn schema_sql(config: &Config) -> Result<String, Error> {
    let settings = Settings::read(config)?;
    let (schema, more) = (&settings.schema, more_tables(&settings));
    let grant = match settings.form == Form::ShedLock {
        true => "--   GRANT SELECT, INSERT, UPDATE ON shedlock TO that_role;\n",
        false => "",
    };
    Ok(format!(
        "CREATE SCHEMA IF NOT EXISTS \"{schema}\";\n\n{}\n{more}\n\
         -- For a role that uses locks, and does not own the schema:\n\
         --   GRANT USAGE ON SCHEMA \"{schema}\" TO that_role;\n\
         --   GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA \"{schema}\" TO \
         that_role;\n\
         --   GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA \"{schema}\" TO that_role;\n{grant}",
        statements(schema)
    ))
}

/// Returns the statement that makes the table of ShedLock, if the locks are in it.
fn more_tables(settings: &Settings) -> &'static str {
    match settings.form == Form::ShedLock {
        true => {
            "CREATE TABLE IF NOT EXISTS shedlock (name varchar(64) NOT NULL PRIMARY KEY, \
             lock_until timestamp NOT NULL, locked_at timestamp NOT NULL, \
             locked_by varchar(255) NOT NULL);\n"
        }
        false => "",
    }
}

/// Makes the tables and functions in the database that a `postgres://` URL names, in one
/// transaction. Changes nothing if they are there.
///
/// # Blocking
///
/// Waits for the server for at most `connect_timeout` and ten seconds more.
///
/// # Errors
///
/// [`Error::is_unavailable`] if the server cannot be reached, and [`Error::is_configuration`] if it
/// refuses the statements, if a setting is not accepted, or if the tables are of another version.
pub fn init(config: &Config) -> Result<Initialised, Error> {
    config.check()?;
    let settings = Settings::read(config)?;
    let (schema, more) = (settings.schema.clone(), more_tables(&settings));
    let context = Context::new(Arc::new(SystemClock), ClientId::random());
    let dialer = Dialer::new(settings, config, &context);
    let by = SystemClock.now() + config.connect_timeout() + TIME;
    let fail = Failure::into_error;
    let mut connection = dialer.dial_without_schema(by).map_err(fail)?;
    let found = connection.query(
        "SELECT to_regnamespace($1) IS NULL, obj_description(to_regclass($2), 'pg_class'), \
         to_regclass($2) IS NULL",
        &[
            (&format!("\"{schema}\""), Type::TEXT),
            (&format!("\"{schema}\".locks"), Type::TEXT),
        ],
        by,
    );
    let found = found.map_err(fail)?;
    let row = found
        .first()
        .ok_or_else(|| Error::unavailable("the server has answered nothing"))?;
    let version: Option<String> = row.get(1);
    let has_no_schema: bool = row.get(0);
    let has_table: bool = !row.get::<_, bool>(2);
    if has_table {
        check(version.as_deref(), &schema, connection.server())?;
        connection.run(more, by).map_err(fail)?;
        return Ok(Initialised::Present);
    }
    let create = match has_no_schema {
        true => format!("CREATE SCHEMA \"{schema}\";"),
        false => String::new(),
    };
    let statements = format!("BEGIN;{create}{}{more}COMMIT;", statements(&schema));
    match connection.run(&statements, by) {
        Ok(()) => Ok(Initialised::Made),
        // Perhaps another program makes them just now.
        Err(failure) => match dialer.dial(by) {
            Ok(_) => Ok(Initialised::Present),
            Err(_) => Err(fail(failure)),
        },
    }
}
