//! Servers on different loopback addresses, and names that lead to these without a name server.
//!
//! Each listens on 127.0.0.1, too, for the test's own connections, and announces the address alone:
//! nothing listens on its port at the address of another one.

/// The `number`th loopback address.
pub fn loopback(number: u8) -> String {
    format!("127.0.0.{number}")
}

/// A name of [`loopback`]: a client that parses addresses finds none in it, and the system's
/// resolver, which knows the number, asks no other.
pub fn name(number: u8) -> String {
    format!("0x7f{number:06x}")
}

/// What is added to a server's command line for it to listen there, too, and where replicas and
/// nodes of a cluster announce themselves.
pub fn arguments(number: u8, announce: &str) -> Vec<String> {
    let address = loopback(number);
    ["--bind", "127.0.0.1", &address, announce, &address]
        .map(str::to_owned)
        .into()
}
