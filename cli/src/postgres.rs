//! The subcommand `postgres init`.

use crate::arguments::PostgresInitArguments;
use crate::exit::{CONFIGURATION, Failure};
use crate::output;
use crate::store::usable;
use distlock::admin::{Initialised, init_postgres, postgres_schema};

/// Makes the tables and functions of a database, or prints them.
pub(crate) fn init(arguments: &PostgresInitArguments) -> Result<u8, Failure> {
    let config = usable(arguments.store.settings()?.backend_config(None)?)?;
    if !["postgres", "postgresql"].contains(&config.scheme()) {
        let what = format!(
            "`{}://` is no PostgreSQL database: name one, as in postgres://user@host/database",
            config.scheme()
        );
        return Err(Failure::new(CONFIGURATION, what));
    }
    if arguments.dry_run {
        return output::write(postgres_schema(&config)?.as_bytes());
    }
    output::line(match init_postgres(&config)? {
        Initialised::Made => "the tables and functions were made",
        _ => "nothing to do: the tables and functions are there",
    })
}
