//! TLS by rustls: certificates, sessions, and the meaning of errors. No function here waits, except
//! to read certificate files.

use super::background_call::{BackgroundCall, CallNotDone};
use super::{DialTime, Endpoint, Server, TlsOptions};
use lock_core::backend::no_thread;
use lock_core::{Error, ErrorKind as Kind, WarningKind};
use parking_lot::Mutex;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, ClientConnection, RootCertStore};
use std::fmt;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;

/// The TLS settings for all servers of a client. The files are read for each new connection; while
/// they do not change, sessions are resumed.
#[derive(Clone)]
pub(crate) struct TlsSettings {
    files: Arc<Files>,
    /// The name in the servers' certificates, if it is not the host.
    name: Option<String>,
}

/// The certificate files, and the configuration made from them.
struct Files {
    ca: Option<String>,
    /// The client's own certificate, and its key.
    identity: Option<[String; 2]>,
    /// Not locked while a file is read.
    current: Mutex<Option<Current>>,
    reads: BackgroundCall<Result<(), Error>>,
}

struct Current {
    contents: Contents,
    config: Arc<ClientConfig>,
    /// True if a server was not trusted: the system's authorities may have changed.
    doubtful: bool,
}

/// The contents of the files.
#[derive(PartialEq)]
struct Contents {
    ca: Option<Vec<u8>>,
    identity: Option<[Vec<u8>; 2]>,
}

impl TlsSettings {
    /// Reads the files within `time`.
    pub(crate) fn read(options: &TlsOptions<'_>, time: &DialTime<'_>) -> Result<Self, Error> {
        let ca = options.ca.map(str::to_owned);
        let identity = options
            .identity
            .map(|(cert, key)| [cert, key].map(str::to_owned));
        let (current, reads) = (Mutex::default(), BackgroundCall::new());
        let files = Arc::new(Files {
            ca,
            identity,
            current,
            reads,
        });
        files.renew(time).map_err(|error| {
            let is_configuration = error.is_configuration();
            if is_configuration {
                error
            } else {
                Error::configuration(error.to_string()).with_source(error)
            }
        })?;
        Ok(Self {
            files,
            name: options.name.map(str::to_owned),
        })
    }

    /// Returns the TLS settings for the server on this host.
    pub(crate) fn of(&self, host: &str) -> Result<Tls, Error> {
        let name = self.name.as_deref().unwrap_or(host);
        let name = ServerName::try_from(name.to_owned()).map_err(|error| {
            let message = format!("{name:?} is no name that a certificate can be for");
            Error::configuration(message).with_source(error)
        })?;
        Ok(Tls {
            files: Arc::clone(&self.files),
            name,
        })
    }
}

impl fmt::Debug for TlsSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSettings")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Files {
    /// Returns the configuration of the files. If the files are not consistent, or cannot be read
    /// in a part of the `time`, returns the previous configuration: an administrator cannot replace
    /// a certificate and its key at the same moment.
    fn config(
        self: &Arc<Self>,
        server: &Server,
        time: &DialTime<'_>,
    ) -> io::Result<Arc<ClientConfig>> {
        match self.renew(&time.part(PARTS)) {
            Ok(()) => server.clear_warnings(WarningKind::TlsFile),
            Err(error) => server.warn(WarningKind::TlsFile, || {
                format!(
                    "new connections to {server} are made with the certificates as they were \
                     before: {error}"
                )
            }),
        }
        let current = self.current.lock();
        let config = current.as_ref().map(|current| Arc::clone(&current.config));
        config.ok_or_else(|| io::Error::other("no certificates were read"))
    }

    /// Reads the files within `time`, and makes a new configuration if they have changed.
    fn renew(self: &Arc<Self>, time: &DialTime<'_>) -> Result<(), Error> {
        let files = Arc::clone(self);
        self.reads
            .call(time, move || files.read())
            .map_err(|error| {
                let attempt = format!("{} cannot be read", self.named());
                match error {
                    CallNotDone::NoThread(error) => no_thread(&attempt, error),
                    CallNotDone::Late => Error::unavailable(format!(
                        "{attempt}: reading did not end in time, is the file system there?"
                    )),
                    CallNotDone::Panicked => Error::unavailable(attempt),
                }
            })?
    }

    /// Reads the files, without a time limit.
    fn read(&self) -> Result<(), Error> {
        let (ca, identity) = (self.ca.as_deref(), self.identity.as_ref());
        let contents = Contents::read(ca, identity)?;
        let is_current = |current: &Current| current.contents == contents && !current.doubtful;
        if self.current.lock().as_ref().is_some_and(is_current) {
            return Ok(());
        }
        let config = Arc::new(config(ca, identity, &contents)?);
        *self.current.lock() = Some(Current {
            contents,
            config,
            doubtful: false,
        });
        Ok(())
    }

    /// Returns the names of the files for messages.
    fn named(&self) -> String {
        let ca = self.ca.as_ref().map(|ca| format!("`tls_ca={ca}`"));
        let identity = self
            .identity
            .as_ref()
            .map(|[cert, key]| format!("`tls_cert={cert}` with `tls_key={key}`"));
        match (ca, identity) {
            (Some(ca), Some(identity)) => format!("{ca} or {identity}"),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => "the system's certificates of authorities".to_owned(),
        }
    }
}

/// Reading the files may take one of this many parts of the time to connect. After that the
/// contents that were read before are used.
const PARTS: u32 = 4;

impl Contents {
    fn read(ca: Option<&str>, identity: Option<&[String; 2]>) -> Result<Self, Error> {
        let read = |option: &str, path: &str, what: &str| {
            fs::read(path).map_err(|error| unreadable(option, path, what).with_source(error))
        };
        let ca = ca
            .map(|path| read("tls_ca", path, CERTIFICATES))
            .transpose()?;
        let identity = match identity {
            None => None,
            Some([cert, key]) => Some([
                read("tls_cert", cert, CERTIFICATES)?,
                read("tls_key", key, "a private key")?,
            ]),
        };
        Ok(Self { ca, identity })
    }
}

/// The TLS settings for one server.
pub(crate) struct Tls {
    files: Arc<Files>,
    name: ServerName<'static>,
}

impl Tls {
    /// Begins a session on a new connection, within `time`.
    pub(super) fn session(&self, server: &Server, time: &DialTime<'_>) -> io::Result<TlsSession> {
        let config = self.files.config(server, time)?;
        let session = ClientConnection::new(config, self.name.clone());
        session.map(TlsSession).map_err(io::Error::other)
    }

    /// Records a failed handshake. If the server was not trusted, the next handshake reads the
    /// system's authorities again.
    pub(super) fn failed(&self, failure: &io::Error) {
        let error = failure
            .get_ref()
            .and_then(|error| error.downcast_ref::<rustls::Error>());
        if let Some(rustls::Error::InvalidCertificate(_)) = error
            && let Some(current) = &mut *self.files.current.lock()
        {
            current.doubtful = true;
        }
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// The content of certificate files, as messages name it.
const CERTIFICATES: &str = "certificates";

fn config(
    ca: Option<&str>,
    identity: Option<&[String; 2]>,
    contents: &Contents,
) -> Result<ClientConfig, Error> {
    // The provider is named, because the default one of the process belongs to the application.
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring has ciphers for the default versions")
        .with_root_certificates(roots(ca.zip(contents.ca.as_deref()))?);
    let Some(([cert, key], [chain, secret])) = identity.zip(contents.identity.as_ref()) else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = certificates("tls_cert", cert, chain)?;
    let secret = PrivateKeyDer::from_pem_slice(secret)
        .map_err(|error| unreadable("tls_key", key, "a private key").with_source(error))?;
    builder
        .with_client_auth_cert(chain, secret)
        .map_err(|error| {
            let message = format!("tls_cert={cert} and tls_key={key} do not belong together");
            Error::configuration(message).with_source(error)
        })
}

/// Returns the trusted authorities: those in this file, or those of the system.
fn roots(ca: Option<(&str, &[u8])>) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    let Some((path, text)) = ca else {
        // Certificates of the system that cannot be read are ignored.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            return Err(Error::configuration(
                "this system has no certificates of authorities: name the server's with \
                 `tls_ca=FILE`",
            ));
        }
        return Ok(roots);
    };
    for certificate in certificates("tls_ca", path, text)? {
        roots.add(certificate).map_err(|error| {
            unreadable("tls_ca", path, "certificates of authorities").with_source(error)
        })?;
    }
    Ok(roots)
}

fn certificates(
    option: &str,
    path: &str,
    text: &[u8],
) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(text)
        .collect::<Result<_, _>>()
        .map_err(|error| unreadable(option, path, CERTIFICATES).with_source(error))?;
    if found.is_empty() {
        return Err(unreadable(option, path, CERTIFICATES));
    }
    Ok(found)
}

fn unreadable(option: &str, path: &str, what: &str) -> Error {
    Error::configuration(format!(
        "`{option}={path}` is no file that {what} can be read from (PEM)"
    ))
}

/// One TLS session: encrypts and decrypts. The socket belongs to the
/// [`Transport`](super::transport::Transport).
#[derive(Debug)]
pub(crate) struct TlsSession(ClientConnection);

impl TlsSession {
    pub(super) fn is_handshaking(&self) -> bool {
        self.0.is_handshaking()
    }

    /// Decrypts received bytes, and appends the plaintext. Returns `true` if the peer has ended the
    /// session.
    pub(super) fn decrypt(&mut self, mut received: &[u8], plain: &mut Vec<u8>) -> io::Result<bool> {
        while !received.is_empty() {
            self.0.read_tls(&mut received)?;
            let state = self
                .0
                .process_new_packets()
                .map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
            let (count, begin) = (state.plaintext_bytes_to_read(), plain.len());
            plain.resize(begin + count, 0);
            self.0.reader().read_exact(&mut plain[begin..])?;
            if state.peer_has_closed() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Appends the session's own messages and `plain`, encrypted.
    pub(super) fn encrypt(&mut self, mut plain: &[u8], sealed: &mut Vec<u8>) -> io::Result<()> {
        while !plain.is_empty() || self.0.wants_write() {
            // The writer takes a limited amount until its output is fetched.
            let count = self.0.writer().write(plain)?;
            plain = &plain[count..];
            while self.0.wants_write() {
                self.0.write_tls(sealed)?;
            }
        }
        Ok(())
    }
}

/// Returns the error for a failure of TLS, with advice; `None` for other failures.
pub(super) fn explain(server: &Server, failure: &io::Error) -> Option<Error> {
    let error = failure.get_ref()?.downcast_ref::<rustls::Error>()?;
    let (kind, message) = match error {
        rustls::Error::InvalidCertificate(why) => (Kind::Configuration, distrust(server, why)),
        rustls::Error::AlertReceived(alert) => refusal(server, *alert),
        rustls::Error::InvalidMessage(_) => (Kind::Unavailable, no_tls(server)),
        rustls::Error::PeerIncompatible(_) => (
            Kind::Configuration,
            format!(
                "{server} has no version or cipher of TLS in common with us: it needs TLS 1.2 or \
                 1.3"
            ),
        ),
        _ => (
            Kind::Unavailable,
            format!("the TLS connection to {server} failed"),
        ),
    };
    Some(Error::new(kind, message).with_source(error.clone()))
}

/// Returns the error for a handshake that did not finish.
pub(super) fn unfinished(server: &Server, failure: io::Error) -> Error {
    if let Some(error) = explain(server, &failure) {
        return error;
    }
    Error::unavailable(no_tls(server)).with_source(failure)
}

fn no_tls(server: &Server) -> String {
    format!(
        "{server} does not finish a TLS handshake: is it a port for TLS? One without is `redis://`"
    )
}

/// Returns why the client does not trust the server.
fn distrust(server: &Server, why: &CertificateError) -> String {
    use CertificateError as C;
    let is_host =
        |name: &str| matches!(&server.endpoint, Endpoint::Tcp { host, .. } if host == name);
    match why {
        // `BadSignature`: an authority with the name of a trusted one, but another key.
        C::UnknownIssuer | C::BadSignature => format!(
            "the certificate of {server} is by an authority that is not trusted here: name the \
             right one with `tls_ca=FILE`"
        ),
        C::Expired | C::ExpiredContext { .. } => format!(
            "the certificate of {server} has expired: it needs a new one (or this machine's clock \
             is wrong)"
        ),
        C::NotValidYet | C::NotValidYetContext { .. } => {
            format!("the certificate of {server} is not valid yet: is this machine's clock right?")
        }
        C::NotValidForNameContext { presented, .. } if presented.is_empty() => format!(
            "the certificate of {server} names no host: it needs a subject alternative name, \
             because the common name does not count"
        ),
        C::NotValidForNameContext {
            expected,
            presented,
        } if !is_host(&expected.to_str()) => {
            format!(
                "the certificate of {server} is not for {}, which `tls_name` names, but for {}",
                expected.to_str(),
                presented.join(", ")
            )
        }
        C::NotValidForName | C::NotValidForNameContext { .. } => format!(
            "the certificate of {server} is for another host: name that with `tls_name=HOST` if it \
             is the right server"
        ),
        C::Revoked => format!("the certificate of {server} has been revoked"),
        other => {
            // rustls passes these errors on under the names that webpki gives them.
            let named = |name: &str| format!("{other:?}").contains(name);
            if named("CaUsedAsEndEntity") {
                format!(
                    "the certificate of {server} is that of an authority, which is no server's: \
                     make one for the server, signed by that authority, or one that signs itself \
                     with `basicConstraints=CA:FALSE`"
                )
            } else if named("UnsupportedCertVersion") {
                format!(
                    "the certificate of {server} is of version 1, which has no names of hosts: \
                     make one of version 3"
                )
            } else {
                format!("the certificate of {server} cannot be trusted")
            }
        }
    }
}

/// Returns the meaning of an alert with which the server has ended the handshake or the session.
fn refusal(server: &Server, alert: AlertDescription) -> (Kind, String) {
    use AlertDescription as A;
    match alert {
        A::CertificateRequired => (
            Kind::Configuration,
            format!(
                "{server} asks for a client certificate: name yours with \
                 `tls_cert=FILE&tls_key=FILE`"
            ),
        ),
        A::UnknownCA
        | A::BadCertificate
        | A::UnsupportedCertificate
        | A::CertificateExpired
        | A::CertificateRevoked
        | A::CertificateUnknown
        | A::AccessDenied
        | A::DecryptError => (
            Kind::Configuration,
            format!("{server} does not accept our client certificate: see `tls_cert`"),
        ),
        A::HandshakeFailure => (
            Kind::Configuration,
            format!(
                "{server} refused the TLS handshake: it has no cipher in common with us, or asks \
                 for a client certificate (`tls_cert=FILE&tls_key=FILE`)"
            ),
        ),
        A::ProtocolVersion => (
            Kind::Configuration,
            format!("{server} has no version of TLS in common with us: it needs TLS 1.2 or 1.3"),
        ),
        _ => (
            Kind::Unavailable,
            format!("{server} ended the TLS connection"),
        ),
    }
}
