//! [`RedisScheme`]: what `redis://` and `redis+unix://` stand for.

use crate::backend::RedisBackend;
use crate::link::Place;
use lock_core::{Backend, Config, Context, Error, Scheme};
use std::sync::Arc;

/// One Redis server, reached over TCP or over a socket in the file system.
///
/// - [`new`](Self::new): `redis://[user[:password]@]host[:port][/database]`
/// - [`unix`](Self::unix): `redis+unix://[user[:password]@]/path/of/socket[?db=database]`
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct RedisScheme(Transport);

#[derive(Clone, Copy, Debug, Default)]
enum Transport {
    #[default]
    Tcp,
    Unix,
}

const UNIX: &str = "redis+unix";
/// The port where a URL names none.
const PORT: u16 = 6379;

impl RedisScheme {
    /// `redis://`.
    #[must_use]
    pub fn new() -> Self {
        Self(Transport::Tcp)
    }

    /// `redis+unix://`.
    #[must_use]
    pub fn unix() -> Self {
        Self(Transport::Unix)
    }
}

impl Scheme for RedisScheme {
    fn names(&self) -> &[&str] {
        match self.0 {
            Transport::Tcp => &["redis"],
            Transport::Unix => &[UNIX],
        }
    }

    fn options(&self) -> &[&str] {
        match self.0 {
            Transport::Tcp => &[],
            Transport::Unix => &["db"],
        }
    }

    fn open(&self, config: &Config, context: &Context) -> Result<Arc<dyn Backend>, Error> {
        Ok(Arc::new(RedisBackend::new(config, context)?))
    }
}

/// The server and the database that a URL names.
pub(crate) fn address(config: &Config) -> Result<(Place, u32), Error> {
    if config.scheme() == UNIX { socket(config) } else { host(config) }
}

fn host(config: &Config) -> Result<(Place, u32), Error> {
    let [host] = config.hosts() else {
        return Err(Error::configuration(format!(
            "`redis://` means one server, as in `redis://127.0.0.1:6379`, and the URL has {} hosts; servers that belong \
             together have schemes of their own: `redis+sentinel://`, `redis+cluster://`, `redlock://`",
            config.hosts().len()
        )));
    };
    let database = match config.path() {
        "" => 0,
        path => path.parse().map_err(|_| {
            Error::configuration(format!(
                "`/{}` in the URL is no database number, as in `redis://127.0.0.1:6379/0`",
                path.escape_debug()
            ))
        })?,
    };
    Ok((Place::tcp(&host.name, host.port.unwrap_or(PORT)), database))
}

fn socket(config: &Config) -> Result<(Place, u32), Error> {
    if !config.hosts().is_empty() || config.path().is_empty() {
        return Err(Error::configuration(
            "`redis+unix://` means one socket by its whole path, and so has three slashes, as in \
             `redis+unix:///run/redis.sock`",
        ));
    }
    let database = match option(config, "db") {
        None => 0,
        Some(text) => text.parse().map_err(|_| {
            Error::configuration(format!(
                "`db={}` is no database number, as in `db=0`",
                text.escape_debug()
            ))
        })?,
    };
    Ok((Place::unix(&format!("/{}", config.path()))?, database))
}

/// What a URL says to an option of ours.
fn option<'a>(config: &'a Config, name: &str) -> Option<&'a str> {
    config.extra().find(|(option, _)| *option == name).map(|(_, value)| value)
}
