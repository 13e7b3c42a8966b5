//! A TLS peer that ends its side of the session with `close_notify`.

use super::*;
use crate::connection::{DialTime, TlsOptions, TlsSettings};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection};

#[test]
fn reply_beside_close_notify_counts_and_nothing_follows() {
    let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let ca = directory.path().join("ca.crt");
    std::fs::write(&ca, key.cert.pem()).unwrap();
    let options = TlsOptions {
        ca: ca.to_str(),
        ..TlsOptions::default()
    };
    let time = DialTime::until(&SystemClock, within(10_000));
    let tls = TlsSettings::read(&options, &time)
        .unwrap()
        .of("localhost")
        .unwrap();
    let secret = PrivateKeyDer::Pkcs8(key.signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![key.cert.der().clone()], secret)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let peer = thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut session = ServerConnection::new(Arc::new(config)).unwrap();
        rustls::Stream::new(&mut session, &mut socket)
            .read_exact(&mut [0])
            .unwrap();
        session.writer().write_all(b":1\r\n").unwrap();
        session.send_close_notify();
        let mut bytes = Vec::new();
        while session.wants_write() {
            session.write_tls(&mut bytes).unwrap();
        }
        socket.write_all(&bytes).unwrap();
        // The socket stays open.
        socket
    });
    let socket = TcpStream::connect(address).unwrap();
    let server = Arc::new(Server::new(Endpoint::tcp("test", 1), None));
    let transport = Transport::new(socket, Some(tls.session(&server, &time).unwrap())).unwrap();
    let mut connection = Connection::new(Arc::new(transport), server, Arc::new(SystemClock));
    connection.handshake_tls(within(10_000)).unwrap();
    let connection =
        Arc::new(MultiplexedConnection::new(connection, Duration::ZERO, 0, GRACE, &[]).unwrap());
    assert_eq!(
        call(&connection, b"a", within(10_000)).unwrap(),
        Reply::Int(1)
    );
    let outcome = call(&connection, b"b", within(10_000));
    assert!(matches!(outcome, Err(CallError::NotSent(_))), "{outcome:?}");
    drop(peer.join().unwrap());
}
