//! Reads the servers that a URL names, or a master and its sentinels: addresses, credentials, TLS.

use crate::connection::{
    AddressMap, CredentialsSource, DialTime, Endpoint, PasswordSource, TlsOptions, TlsSettings,
};
use lock_core::{Config, Error, Secret};
use options::{
    DB, SENTINEL_PASSWORD, SENTINEL_PASSWORD_FILE, SENTINEL_USER, TLS_CA, TLS_CERT, TLS_KEY,
    TLS_NAME,
};
use std::sync::Arc;

/// The options that the URLs of some schemes may have.
pub(crate) mod options {
    pub(crate) const DB: &str = "db";
    pub(crate) const SENTINEL_USER: &str = "sentinel_user";
    pub(crate) const SENTINEL_PASSWORD: &str = "sentinel_password";
    pub(crate) const SENTINEL_PASSWORD_FILE: &str = "sentinel_password_file";
    pub(crate) const TLS_CA: &str = "tls_ca";
    pub(crate) const TLS_CERT: &str = "tls_cert";
    pub(crate) const TLS_KEY: &str = "tls_key";
    pub(crate) const TLS_NAME: &str = "tls_name";
}

pub(crate) const TLS: &str = "rediss";
pub(crate) const UNIX: &str = "redis+unix";
pub(crate) const SENTINEL: &str = "redis+sentinel";
pub(crate) const SENTINEL_TLS: &str = "rediss+sentinel";
/// The schemes of `lock-cluster` with TLS: this constant and the next.
const TLS_CLUSTER: &str = "rediss+cluster";
const TLS_QUORUM: &str = "redlocks";

/// The port if a URL names none.
const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// A master and its sentinels, as a URL names them.
pub(crate) struct Sentinels {
    pub(crate) master: String,
    pub(crate) sentinels: Vec<(String, u16)>,
    pub(crate) database: u32,
    /// The reachable addresses of the sentinels and servers that sentinels announce.
    pub(crate) addresses: AddressMap,
}

/// Reads the master that a URL names, and the sentinels to ask.
pub(crate) fn sentinels(config: &Config) -> Result<Sentinels, Error> {
    let (scheme, master) = (config.scheme(), config.path());
    if config.hosts().is_empty() || master.is_empty() || master.contains('/') {
        return Err(Error::configuration(format!(
            "`{scheme}://` means a master by its name, and the sentinels to ask, as in \
             `{scheme}://host1:26379,host2:26379,host3:26379/mymaster`; the URL has {} hosts and \
             the name `{}`",
            config.hosts().len(),
            master.escape_debug()
        )));
    }
    let hosts = config.hosts().iter();
    Ok(Sentinels {
        master: master.to_owned(),
        sentinels: hosts
            .map(|host| (host.name.clone(), host.port.unwrap_or(SENTINEL_PORT)))
            .collect(),
        database: database_option(config)?,
        addresses: AddressMap::of(config)?,
    })
}

/// Reads the credentials for the sentinels. A password file must be readable within `time`.
pub(crate) fn sentinel_secrets(
    config: &Config,
    time: &DialTime<'_>,
) -> Result<CredentialsSource, Error> {
    let given = config.scheme_option(SENTINEL_PASSWORD).map(Secret::new);
    let file = config.scheme_option(SENTINEL_PASSWORD_FILE);
    let password = match (file, given) {
        (Some(_), Some(_)) => {
            return Err(Error::configuration(
                "there are both `sentinel_password` and `sentinel_password_file`: leave one of \
                 them out",
            ));
        }
        (Some(path), None) => PasswordSource::in_file(SENTINEL_PASSWORD_FILE, path),
        (None, given) => given.map_or(PasswordSource::None, PasswordSource::Given),
    };
    let provider = config.credentials().map(Arc::clone);
    let user = config.scheme_option(SENTINEL_USER).map(str::to_owned);
    let secrets = CredentialsSource {
        user,
        password,
        provider,
        is_sentinel: true,
    };
    secrets.check(time)?;
    Ok(secrets)
}

/// Reads the server and the database that a URL names.
pub(crate) fn address(config: &Config) -> Result<(Endpoint, u32), Error> {
    if config.scheme() == UNIX {
        socket(config)
    } else {
        host(config)
    }
}

/// Reads the TLS settings; `None` if the scheme does not use TLS. The files must be readable within
/// `time`.
pub(crate) fn tls(config: &Config, time: &DialTime<'_>) -> Result<Option<TlsSettings>, Error> {
    if ![TLS, SENTINEL_TLS, TLS_CLUSTER, TLS_QUORUM].contains(&config.scheme()) {
        return Ok(None);
    }
    let identity = match (
        config.scheme_option(TLS_CERT),
        config.scheme_option(TLS_KEY),
    ) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        _ => {
            return Err(Error::configuration(
                "`tls_cert` and `tls_key` belong together, and only one of them is there",
            ));
        }
    };
    let (ca, name) = (config.scheme_option(TLS_CA), config.scheme_option(TLS_NAME));
    TlsSettings::read(&TlsOptions { ca, identity, name }, time).map(Some)
}

fn host(config: &Config) -> Result<(Endpoint, u32), Error> {
    let [host] = config.hosts() else {
        return Err(Error::configuration(format!(
            "`{0}://` means one server, as in `{0}://127.0.0.1:6379`, and the URL has {1} hosts; \
             servers that belong together have schemes of their own: `redis+sentinel://`, \
             `redis+cluster://`, `redlock://`",
            config.scheme(),
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
    Ok((
        Endpoint::tcp(&host.name, host.port.unwrap_or(PORT)),
        database,
    ))
}

fn socket(config: &Config) -> Result<(Endpoint, u32), Error> {
    if !config.hosts().is_empty() || config.path().is_empty() {
        return Err(Error::configuration(
            "`redis+unix://` means one socket by its whole path, and so has three slashes, as in \
             `redis+unix:///run/redis.sock`",
        ));
    }
    let database = database_option(config)?;
    Ok((Endpoint::unix(&format!("/{}", config.path()))?, database))
}

/// Reads the database from the option `db`, for URLs whose path has another meaning.
fn database_option(config: &Config) -> Result<u32, Error> {
    match config.scheme_option(DB) {
        None => Ok(0),
        Some(text) => text.parse().map_err(|_| {
            Error::configuration(format!(
                "`db={}` is no database number, as in `db=0`",
                text.escape_debug()
            ))
        }),
    }
}
