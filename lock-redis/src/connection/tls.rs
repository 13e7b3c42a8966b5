//! TLS over a TCP connection, by rustls. The waiting is left to the [`DeadlineStream`](super::stream::DeadlineStream): each call here reads
//! and writes the socket once at most, and says [`ErrorKind::WouldBlock`] when that was not enough.

use super::{Server, Stream};
use lock_core::{Error, ErrorKind as Kind, WarningKind};
use parking_lot::Mutex;
use rustix::net::RecvFlags;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, ClientConnection, RootCertStore};
use std::fmt;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// What a URL says about TLS.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TlsOptions<'a> {
    /// The file of the authorities that are trusted, and no others; without it those that the system trusts.
    pub(crate) ca: Option<&'a str>,
    /// The files of our own certificate and its key.
    pub(crate) identity: Option<(&'a str, &'a str)>,
    /// Whose certificate it must be, if not the host's.
    pub(crate) name: Option<&'a str>,
}

/// How TLS is spoken with all servers of a client. The files are looked at for each new connection; while they stay the
/// same, sessions are resumed from one connection to the next.
#[derive(Clone)]
pub(crate) struct TlsSettings {
    files: Arc<Files>,
    /// Whose certificates they must have, if not their hosts'.
    name: Option<String>,
}

/// Where certificates are read from, and what was made of them.
struct Files {
    ca: Option<String>,
    /// Our own certificate, and its key.
    identity: Option<[String; 2]>,
    current: Mutex<Current>,
}

struct Current {
    contents: Contents,
    config: Arc<ClientConfig>,
    /// A server was not trusted by the system's authorities: they may be others by now.
    doubtful: bool,
}

/// What stands in the files.
#[derive(PartialEq)]
struct Contents {
    ca: Option<Vec<u8>>,
    identity: Option<[Vec<u8>; 2]>,
}

impl TlsSettings {
    /// Reads the files.
    pub(crate) fn read(options: &TlsOptions<'_>) -> Result<Self, Error> {
        let ca = options.ca.map(str::to_owned);
        let identity = options.identity.map(|(cert, key)| [cert, key].map(str::to_owned));
        let contents = Contents::read(ca.as_deref(), identity.as_ref())?;
        let config = Arc::new(config(ca.as_deref(), identity.as_ref(), &contents)?);
        let current = Mutex::new(Current { contents, config, doubtful: false });
        let files = Arc::new(Files { ca, identity, current });
        Ok(Self { files, name: options.name.map(str::to_owned) })
    }

    /// How it is spoken with the server on this host.
    pub(crate) fn of(&self, host: &str) -> Result<Tls, Error> {
        let name = self.name.as_deref().unwrap_or(host);
        let name = ServerName::try_from(name.to_owned()).map_err(|error| {
            let message = format!("{name:?} is no name that a certificate can be for");
            Error::configuration(message).with_source(error)
        })?;
        Ok(Tls { files: Arc::clone(&self.files), name })
    }
}

impl fmt::Debug for TlsSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSettings").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Files {
    /// As the files say it now. While they say nothing that makes sense, as they did before: a certificate and its key are
    /// not replaced in the same moment.
    fn config(&self, server: &Server) -> Arc<ClientConfig> {
        let mut current = self.current.lock();
        let (ca, identity) = (self.ca.as_deref(), self.identity.as_ref());
        let renewed = Contents::read(ca, identity).and_then(|contents| {
            if contents == current.contents && !current.doubtful {
                return Ok(());
            }
            let config = Arc::new(config(ca, identity, &contents)?);
            *current = Current { contents, config, doubtful: false };
            Ok(())
        });
        match renewed {
            Ok(()) => server.is_mended(WarningKind::TlsFile),
            Err(error) => server.warn(WarningKind::TlsFile, || {
                format!("new connections to {server} are made with the certificates as they were before: {error}")
            }),
        }
        Arc::clone(&current.config)
    }
}

impl Contents {
    fn read(ca: Option<&str>, identity: Option<&[String; 2]>) -> Result<Self, Error> {
        let read = |option: &str, path: &str, what: &str| {
            fs::read(path).map_err(|error| unreadable(option, path, what).with_source(error))
        };
        let ca = ca.map(|path| read("tls_ca", path, CERTIFICATES)).transpose()?;
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

/// How TLS is spoken with one server.
pub(crate) struct Tls {
    files: Arc<Files>,
    name: ServerName<'static>,
}

impl Tls {
    /// Speaks TLS on this connection from now on.
    pub(super) fn wrap(&self, socket: TcpStream, server: &Server) -> io::Result<TlsStream> {
        let session = ClientConnection::new(self.files.config(server), self.name.clone())
            .map_err(io::Error::other)?;
        Ok(TlsStream { session, socket })
    }

    /// A handshake failed: the next one is made with the authorities that the system trusts then.
    pub(super) fn failed(&self, failure: &io::Error) {
        let error = failure.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
        if let Some(rustls::Error::InvalidCertificate(_)) = error {
            self.files.current.lock().doubtful = true;
        }
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What files of certificates have.
const CERTIFICATES: &str = "certificates";

fn config(
    ca: Option<&str>,
    identity: Option<&[String; 2]>,
    contents: &Contents,
) -> Result<ClientConfig, Error> {
    // Ours by name: the default of the process belongs to the program, which may have another or none.
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
    builder.with_client_auth_cert(chain, secret).map_err(|error| {
        let message = format!("tls_cert={cert} and tls_key={key} do not belong together");
        Error::configuration(message).with_source(error)
    })
}

/// The authorities that are trusted: those in this file, of which this is the text, or those of the system.
fn roots(ca: Option<(&str, &[u8])>) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    let Some((path, text)) = ca else {
        // What cannot be read of the system's store, others can do without.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            return Err(Error::configuration(
                "this system has no certificates of authorities: name the server's with `tls_ca=FILE`",
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
    Error::configuration(format!("`{option}={path}` is no file that {what} can be read from (PEM)"))
}

/// A connection that speaks TLS.
#[derive(Debug)]
pub(crate) struct TlsStream {
    session: ClientConnection,
    socket: TcpStream,
}

impl TlsStream {
    /// How often a look may find something that is no data, until the peer is taken for a babbler.
    const LOOKS: usize = 16;

    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.session.is_handshaking()
    }

    /// Whether something that was written is still here.
    pub(super) fn wants_write(&self) -> bool {
        self.session.wants_write()
    }

    /// Writes some of what is still here.
    pub(super) fn push(&mut self) -> io::Result<()> {
        match self.session.write_tls(&mut self.socket) {
            Ok(0) => Err(ErrorKind::WriteZero.into()),
            Ok(_) => Ok(()),
            Err(error)
                if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) =>
            {
                Err(self.last_words().unwrap_or(error))
            }
            Err(error) => Err(error),
        }
    }

    /// Why the peer has closed the connection, if it said so before. It may have done so while we wrote, and nobody
    /// reads after a failed write.
    fn last_words(&mut self) -> Option<io::Error> {
        for _ in 0..Self::LOOKS {
            let read = self.session.read_tls(&mut Unwaiting(self.socket.as_fd()));
            if let Err(error) = self.digest() {
                return Some(error);
            }
            if !read.is_ok_and(|count| count > 0) {
                break;
            }
        }
        None
    }

    /// One step of the handshake.
    pub(super) fn handshake_tls(&mut self) -> io::Result<()> {
        if self.session.wants_write() { self.push() } else { self.pull() }
    }

    fn pull(&mut self) -> io::Result<()> {
        let count = self.session.read_tls(&mut self.socket)?;
        self.digest()?;
        if count == 0 { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    fn digest(&mut self) -> io::Result<()> {
        if let Err(error) = self.session.process_new_packets() {
            // The peer is told, if it takes that at once.
            let _told = self.session.write_tls(&mut self.socket);
            return Err(io::Error::new(ErrorKind::InvalidData, error));
        }
        Ok(())
    }

    /// When this says [`ErrorKind::WouldBlock`], nothing that has been decrypted is left here, so whoever waits for the
    /// socket misses nothing.
    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.session.reader().read(into) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            done => return done,
        }
        if self.session.wants_write() {
            self.push()?;
        }
        self.pull()?;
        // A part of a record, or something that is no data: then it is for the caller to look at the clock.
        self.session.reader().read(into)
    }

    /// Takes some of `bytes`. An error means that it took none.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.session.wants_write() {
            self.push()?;
            if self.session.wants_write() {
                return Err(ErrorKind::WouldBlock.into());
            }
        }
        self.session.writer().write(bytes)
    }

    /// Whether the peer has neither closed the connection nor sent data.
    pub(super) fn is_quiet(&mut self) -> bool {
        is_quiet(&mut self.session, self.socket.as_fd())
    }

    /// The session and the socket, each for itself.
    pub(super) fn split(self) -> (Stream, Option<Session>) {
        (Stream::Tcp(self.socket), Some(Session(self.session)))
    }
}

/// The session of a connection whose socket others read and write.
#[derive(Debug)]
pub(crate) struct Session(ClientConnection);

impl Session {
    /// Deciphers what the socket gave, and appends what it says. `true`: that was the peer's last word.
    pub(crate) fn open(&mut self, mut sealed: &[u8], plain: &mut Vec<u8>) -> io::Result<bool> {
        while !sealed.is_empty() {
            self.0.read_tls(&mut sealed)?;
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

    /// Enciphers `plain`, behind whatever the session itself has to say, and appends it.
    pub(crate) fn seal(&mut self, mut plain: &[u8], sealed: &mut Vec<u8>) -> io::Result<()> {
        while !plain.is_empty() || self.0.wants_write() {
            // It takes only so much until that is fetched.
            let count = self.0.writer().write(plain)?;
            plain = &plain[count..];
            while self.0.wants_write() {
                self.0.write_tls(sealed)?;
            }
        }
        Ok(())
    }

    /// See [`TlsStream::is_quiet`].
    pub(crate) fn is_quiet(&mut self, socket: BorrowedFd<'_>) -> bool {
        is_quiet(&mut self.0, socket)
    }
}

/// Looks without waiting: what belongs to TLS itself, such as a session ticket, is taken in.
fn is_quiet(session: &mut ClientConnection, socket: BorrowedFd<'_>) -> bool {
    for _ in 0..TlsStream::LOOKS {
        match session.process_new_packets() {
            Ok(state) if state.plaintext_bytes_to_read() == 0 && !state.peer_has_closed() => {}
            _ => return false,
        }
        match session.read_tls(&mut Unwaiting(socket)) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
    false
}

/// A socket that is read without waiting, whatever mode it is in.
struct Unwaiting<'a>(BorrowedFd<'a>);

impl Read for Unwaiting<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let (count, _) = rustix::net::recv(self.0, into, RecvFlags::DONTWAIT)?;
        Ok(count)
    }
}

/// What it means if TLS has failed, and what to do about it; `None` if something else has.
pub(super) fn explain(server: &Server, failure: &io::Error) -> Option<Error> {
    let error = failure.get_ref()?.downcast_ref::<rustls::Error>()?;
    let (kind, message) = match error {
        rustls::Error::InvalidCertificate(why) => (Kind::Configuration, distrust(server, why)),
        rustls::Error::AlertReceived(alert) => refusal(server, *alert),
        rustls::Error::InvalidMessage(_) => (Kind::Unavailable, no_tls(server)),
        rustls::Error::PeerIncompatible(_) => (
            Kind::Configuration,
            format!(
                "{server} has no version or cipher of TLS in common with us: it needs TLS 1.2 or 1.3"
            ),
        ),
        _ => (Kind::Unavailable, format!("the TLS connection to {server} failed")),
    };
    Some(Error::new(kind, message).with_source(error.clone()))
}

/// What it means if the handshake came to no end.
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

/// Why we do not trust the server.
fn distrust(server: &Server, why: &CertificateError) -> String {
    use CertificateError as C;
    match why {
        // The latter: one that has the name of a trusted one, and another key.
        C::UnknownIssuer | C::BadSignature => format!(
            "the certificate of {server} is by an authority that is not trusted here: name the right one with `tls_ca=FILE`"
        ),
        C::Expired | C::ExpiredContext { .. } => format!(
            "the certificate of {server} has expired: it needs a new one (or this machine's clock is wrong)"
        ),
        C::NotValidYet | C::NotValidYetContext { .. } => {
            format!("the certificate of {server} is not valid yet: is this machine's clock right?")
        }
        C::NotValidForName | C::NotValidForNameContext { .. } => format!(
            "the certificate of {server} is for another host: name that with `tls_name=HOST` if it is the right server"
        ),
        C::Revoked => format!("the certificate of {server} has been revoked"),
        _ => format!("the certificate of {server} cannot be trusted"),
    }
}

/// Why the server does not trust us.
fn refusal(server: &Server, alert: AlertDescription) -> (Kind, String) {
    use AlertDescription as A;
    match alert {
        A::CertificateRequired => (
            Kind::Configuration,
            format!(
                "{server} asks for a client certificate: name yours with `tls_cert=FILE&tls_key=FILE`"
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
                "{server} refused the TLS handshake: it has no cipher in common with us, or asks for a client \
                 certificate (`tls_cert=FILE&tls_key=FILE`)"
            ),
        ),
        A::ProtocolVersion => (
            Kind::Configuration,
            format!("{server} has no version of TLS in common with us: it needs TLS 1.2 or 1.3"),
        ),
        _ => (Kind::Unavailable, format!("{server} ended the TLS connection")),
    }
}
