//! Servers on different loopback addresses, and host names that resolve to them without a name
//! server.
//!
//! Each server also listens on 127.0.0.1, for the test's own connections, but announces only its
//! own address. No server listens on its port at another server's address, so a client that
//! confuses two servers cannot connect.

/// Returns the loopback address `127.0.0.number`.
pub fn loopback(number: u8) -> String {
    format!("127.0.0.{number}")
}

/// Returns a host name of [`loopback`]: its address as one hexadecimal number. A client does not
/// parse it as an address, but the system's resolver resolves it without a name server.
pub fn name(number: u8) -> String {
    format!("0x7f{number:06x}")
}

/// Returns the command-line arguments with which a server also listens on this loopback address,
/// and announces it by the option `announce`.
pub fn arguments(number: u8, announce: &str) -> Vec<String> {
    let address = loopback(number);
    ["--bind", "127.0.0.1", &address, announce, &address]
        .map(str::to_owned)
        .into()
}
