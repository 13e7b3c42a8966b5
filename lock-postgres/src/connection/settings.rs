//! [`Settings`]: what a `postgres://` URL says about connections.

use super::socket::Tls;
use lock_core::{Config, CredentialsProvider, Error};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The options of a `postgres://` URL that are not settings of every store.
pub(crate) const OPTIONS: &[&str] = &[
    FORM,
    SCHEMA,
    SYNCHRONOUS_COMMIT,
    WAKING,
    TARGET,
    SSL_MODE,
    SERVER_OPTIONS,
    PASS_FILE,
    #[cfg(feature = "tls")]
    "tls_ca",
    #[cfg(feature = "tls")]
    "tls_cert",
    #[cfg(feature = "tls")]
    "tls_key",
];

const FORM: &str = "form";
const SCHEMA: &str = "schema";
const SYNCHRONOUS_COMMIT: &str = "synchronous_commit";
const WAKING: &str = "waking";
const TARGET: &str = "target_session_attrs";
const SSL_MODE: &str = "sslmode";
const SERVER_OPTIONS: &str = "options";
const PASS_FILE: &str = "passfile";

/// The port if a URL names none.
const PORT: u16 = 5432;

/// The longest name of a schema, because the names of the channels begin with it.
const LONGEST_SCHEMA: usize = 40;

/// What connections need to know.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(super) hosts: Vec<(String, u16)>,
    pub(super) user: Option<String>,
    pub(super) database: String,
    pub(super) secret: Secrets,
    pub(super) tls: Tls,
    pub(super) client_name: String,
    /// The text of libpq's `options`: settings of the session.
    pub(super) options: String,
    pub(super) connect_timeout: Duration,
    pub(crate) schema: String,
    pub(crate) form: Form,
    /// Whether notifications are not even tried.
    pub(crate) polls: bool,
}

/// How locks are held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    /// Leases in the tables.
    Table,
    /// Locks of sessions.
    Session,
    /// Leases in the tables and in the table of ShedLock.
    ShedLock,
}

/// The values of `form=`. The first one is the default.
const FORMS: [(&str, Form); 3] = [
    ("table", Form::Table),
    ("session", Form::Session),
    ("shedlock", Form::ShedLock),
];

/// Where the password comes from.
#[derive(Clone)]
pub(super) enum Secrets {
    None,
    Given(String),
    /// A file that contains the password.
    File(PathBuf),
    /// A file in the format of libpq's password file.
    PassFile(PathBuf),
    Provider(Arc<dyn CredentialsProvider>),
}

impl Settings {
    /// Reads the settings from a configuration.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] for values that are not accepted.
    pub(crate) fn read(config: &Config) -> Result<Self, Error> {
        let hosts = config.hosts().iter();
        let hosts: Vec<_> = hosts
            .map(|host| (host.name.clone(), host.port.unwrap_or(PORT)))
            .collect();
        let database = config.path();
        if hosts.is_empty() || database.is_empty() || database.contains('/') {
            return Err(Error::configuration(
                "`postgres://` needs a host and a database, as in \
                 `postgres://user@db1:5432,db2:5432/app`; sockets in the file system are not \
                 supported",
            ));
        }
        config.scheme_word(TARGET, &[("read-write", ()), ("primary", ())])?;
        let schema = config.scheme_option(SCHEMA).unwrap_or("distlock");
        let is_good = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if schema.is_empty() || schema.len() > LONGEST_SCHEMA || !schema.chars().all(is_good) {
            return Err(Error::configuration(format!(
                "schema={schema:?} is not a name of at most {LONGEST_SCHEMA} ASCII letters, digits \
                 and underscores"
            )));
        }
        let mut options = config
            .scheme_option(SERVER_OPTIONS)
            .unwrap_or_default()
            .to_owned();
        // The first word leaves it to the server and the role.
        let words = [
            "server",
            "on",
            "off",
            "local",
            "remote_write",
            "remote_apply",
        ];
        let commit = config.scheme_word(SYNCHRONOUS_COMMIT, &words.map(|it| (it, it)))?;
        if commit != words[0] {
            options.push_str(&format!(" -c {SYNCHRONOUS_COMMIT}={commit}"));
        }
        Ok(Self {
            hosts,
            user: config.user().map(str::to_owned),
            database: database.to_owned(),
            secret: secrets(config)?,
            tls: tls(config)?,
            client_name: config.client_name().into_owned(),
            options,
            connect_timeout: config.connect_timeout(),
            schema: schema.to_owned(),
            form: config.scheme_word(FORM, &FORMS)?,
            polls: config.scheme_word(WAKING, &[("listen", false), ("poll", true)])?,
        })
    }

    /// Returns the statement that calls a function for requests about locks, as in
    /// `release($1, $2)`.
    pub(crate) fn call(&self, function: &str) -> String {
        let form = match self.form {
            Form::ShedLock => "shed_",
            Form::Table | Form::Session => "",
        };
        format!("SELECT * FROM \"{}\".{form}{function}", self.schema)
    }

    /// Returns the hosts and the database, for messages.
    pub(crate) fn hosts(&self) -> String {
        let hosts = self
            .hosts
            .iter()
            .map(|(host, port)| format!("{host}:{port}"));
        let hosts: Vec<_> = hosts.collect();
        format!("{}/{}", hosts.join(","), self.database)
    }

    /// Returns user and password for a connection to this host. Reads files anew each time, because
    /// passwords are changed while programs run.
    pub(super) fn credentials(
        &self,
        host: &str,
        port: u16,
    ) -> Result<(String, Option<String>), Error> {
        let user = self.user.clone().unwrap_or_else(|| "postgres".to_owned());
        let read = |path: &PathBuf| {
            std::fs::read_to_string(path).map_err(|error| {
                Error::unavailable(format!("cannot read the password file {}", path.display()))
                    .with_source(error)
            })
        };
        let password = match &self.secret {
            Secrets::None => None,
            Secrets::Given(password) => Some(password.clone()),
            Secrets::File(path) => Some(read(path)?.trim_end_matches(['\r', '\n']).to_owned()),
            Secrets::PassFile(path) => {
                let wanted = [host, &port.to_string(), &self.database, &user];
                read(path)?
                    .lines()
                    .find_map(|line| password_of(line, wanted))
            }
            Secrets::Provider(provider) => {
                let credentials = provider.credentials(&format!("{host}:{port}"))?;
                let user = credentials.user().map_or(user, str::to_owned);
                return Ok((user, Some(credentials.password().reveal().to_owned())));
            }
        };
        Ok((user, password))
    }
}

fn secrets(config: &Config) -> Result<Secrets, Error> {
    let pass_file = config.scheme_option(PASS_FILE).map(PathBuf::from);
    let given = config.password().map(|it| it.reveal().to_owned());
    let file = config.password_file().map(PathBuf::from);
    let mut all = [
        given.map(Secrets::Given),
        file.map(Secrets::File),
        pass_file.map(Secrets::PassFile),
        config.credentials().cloned().map(Secrets::Provider),
    ]
    .into_iter()
    .flatten();
    match (all.next(), all.next()) {
        (None, _) => Ok(Secrets::None),
        (Some(one), None) => Ok(one),
        _ => Err(Error::configuration(
            "there are several passwords: leave all but one of the URL's, `password_file`, \
             `passfile` and the provider out",
        )),
    }
}

/// Returns the password in a line of libpq's password file, if the line is for these values.
fn password_of(line: &str, wanted: [&str; 4]) -> Option<String> {
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        match c {
            ':' if fields.len() < 5 => fields.push(String::new()),
            '\\' => fields.last_mut()?.extend(characters.next()),
            c => fields.last_mut()?.push(c),
        }
    }
    let [given @ .., password] = &fields[..] else {
        return None;
    };
    let fits = |(given, wanted): (&String, &&str)| given == "*" || given == *wanted;
    let is_line = given.len() == 4 && !line.starts_with('#');
    (is_line && given.iter().zip(&wanted).all(fits)).then(|| password.clone())
}

#[cfg(not(feature = "tls"))]
fn tls(config: &Config) -> Result<Tls, Error> {
    let words = [("disable", false), ("require", true), ("verify-full", true)];
    match config.scheme_word(SSL_MODE, &words)? {
        false => Ok(Tls::Off),
        true => Err(Error::configuration(
            "TLS needs the cargo feature `tls` of `distlock`",
        )),
    }
}

#[cfg(feature = "tls")]
fn tls(config: &Config) -> Result<Tls, Error> {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::{ClientConfig, RootCertStore};

    let words = [("disable", false), ("require", true), ("verify-full", true)];
    let is_on = config.scheme_word(SSL_MODE, &words)?;
    let [ca, cert, key] = ["tls_ca", "tls_cert", "tls_key"].map(|it| config.scheme_option(it));
    if !is_on {
        return match ca.or(cert).or(key) {
            None => Ok(Tls::Off),
            Some(_) => Err(Error::configuration(
                "there is a file for TLS, and no TLS: add `sslmode=verify-full`",
            )),
        };
    }
    let wrong = |what: &str, error: &dyn std::fmt::Display| {
        Error::configuration(format!("{what} cannot be used for TLS: {error}"))
    };
    let read = |path: &str| -> Result<Vec<CertificateDer<'static>>, Error> {
        let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
        all.map_err(|error| wrong(path, &error))
    };
    let mut roots = RootCertStore::empty();
    let authorities = match ca {
        Some(path) => read(path)?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    let (added, _) = roots.add_parsable_certificates(authorities);
    if added == 0 {
        return Err(wrong(
            ca.unwrap_or("the system's list of authorities"),
            &"it is empty",
        ));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong("the provider", &error))?
        .with_root_certificates(roots);
    let made = match (cert, key) {
        (None, None) => builder.with_no_client_auth(),
        (Some(cert), Some(key)) => {
            let private = PrivateKeyDer::from_pem_file(key).map_err(|it| wrong(key, &it))?;
            builder
                .with_client_auth_cert(read(cert)?, private)
                .map_err(|it| wrong(cert, &it))?
        }
        _ => {
            return Err(Error::configuration(
                "`tls_cert` and `tls_key` belong together: give both, or neither",
            ));
        }
    };
    Ok(Tls::On(tokio_postgres_rustls::MakeRustlsConnect::new(made)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn password_file_is_read_as_by_libpq() {
        let wanted = ["db", "5432", "app", "me"];
        for (line, password) in [
            ("db:5432:app:me:secret", Some("secret")),
            ("*:*:*:me:s:e", Some("s:e")),
            (r"db:5432:app:me:a\:b\\c", Some(r"a:b\c")),
            ("db:5432:app:you:secret", None),
            ("#db:5432:app:me:secret", None),
            ("db:5432:app:me", None),
            ("", None),
        ] {
            assert_eq!(password_of(line, wanted).as_deref(), password, "{line}");
        }
    }

    #[test]
    fn settings_that_are_wrong_are_refused() {
        for (url, part) in [
            ("postgres://db", "database"),
            ("postgres://db/a/b", "database"),
            ("postgres://db/app?schema=a-b", "schema"),
            ("postgres://db/app?target_session_attrs=any", "read-write"),
            ("postgres://db/app?sslmode=prefer", "sslmode"),
            (
                "postgres://db/app?synchronous_commit=maybe",
                "synchronous_commit",
            ),
            ("postgres://u:p@db/app?passfile=/x", "several passwords"),
        ] {
            let config = Config::from_url(url).unwrap_or_else(|error| panic!("{error}"));
            let Err(error) = Settings::read(&config) else {
                panic!("{url} is accepted");
            };
            assert!(error.is_configuration(), "{url}: {error}");
            assert!(error.to_string().contains(part), "{url}: {error}");
        }
    }
}
