//! TLS faults: a server that is not trusted, that does not trust the client, or that has no TLS.
//! What the error says, and how long that takes.

use super::scene::{Row, Scene, client_of, command, refused};
use super::table::Case;
use distlock::{Error, LossCause};
use distlock_tests::authority::Authority;
use distlock_tests::process::RedisServer;
use std::net::{Ipv4Addr, TcpListener};

pub(super) const CASES: &[Case] = &[
    (
        "certificate of an authority that we do not know",
        unknown_authority,
    ),
    ("certificate that has expired", || {
        of_server("127.0.0.1", 2021, "no", "has expired")
    }),
    ("certificate for another host", || {
        of_server("redis.example", 2090, "no", "`tls_name=HOST`")
    }),
    ("the server asks for our certificate", || {
        of_server("127.0.0.1", 2090, "yes", "tls_cert=FILE")
    }),
    ("the server does not know our certificate", ours_is_unknown),
    ("TLS with a server that has none", server_without_tls),
    ("no TLS with a server that has it", client_without_tls),
    ("a handshake without an answer", silent_handshake),
    ("frozen while holding, over TLS", frozen_while_holding),
];

fn of_server(host: &str, last_year: i32, asks: &str, says: &str) -> Row {
    let authority = Authority::new();
    let (_server, port) = authority.server(host, last_year, asks, &[]);
    refused(
        &client_of(&authority.url(port)),
        Error::is_configuration,
        says,
    )
}

fn unknown_authority() -> Row {
    let (authority, other) = (Authority::new(), Authority::new());
    let (_server, port) = authority.server("127.0.0.1", 2090, "no", &[]);
    refused(
        &client_of(&other.url(port)),
        Error::is_configuration,
        "`tls_ca=FILE`",
    )
}

fn ours_is_unknown() -> Row {
    let (authority, other) = (Authority::new(), Authority::new());
    let (_server, port) = authority.server("127.0.0.1", 2090, "yes", &[]);
    other.certify("client", "worker", 2090);
    let (cert, key) = (other.file("client.crt"), other.file("client.key"));
    let client = client_of(&format!(
        "{}&tls_cert={cert}&tls_key={key}",
        authority.url(port)
    ));
    refused(&client, Error::is_configuration, "`tls_cert`")
}

fn server_without_tls() -> Row {
    let server = RedisServer::start();
    let client = client_of(&Authority::new().url(server.port()));
    refused(&client, Error::is_unavailable, "`redis://`")
}

fn client_without_tls() -> Row {
    let authority = Authority::new();
    let (_server, port) = authority.server("127.0.0.1", 2090, "no", &[]);
    let client = client_of(&format!("redis://127.0.0.1:{port}"));
    refused(&client, Error::is_unavailable, "`rediss://`")
}

fn silent_handshake() -> Row {
    // The system accepts the connection, and no server ever reads from it.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let client = client_of(&Authority::new().url(silent.local_addr().unwrap().port()));
    refused(&client, Error::is_unavailable, "TLS handshake")
}

fn frozen_while_holding() -> Row {
    let authority = Authority::new();
    let (server, port) = authority.server("127.0.0.1", 2090, "no", &[]);
    let client = client_of(&authority.url(port));
    let mut scene = Scene { server, client };
    let row = scene.lost(LossCause::Expired, |scene| scene.server.pause());
    assert!(row.took > command());
    row
}
