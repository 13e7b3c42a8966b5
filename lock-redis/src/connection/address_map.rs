//! [`AddressMap`]: configured addresses that replace the addresses that servers announce, as behind
//! a tunnel or in a container.

use super::Address;
use lock_core::{Config, Error};
use std::collections::HashMap;
use std::net::Ipv6Addr;

/// The addresses to connect to in place of those that servers announce. An announced address
/// without an entry is used as it is.
#[derive(Clone, Debug, Default)]
pub struct AddressMap {
    addresses: HashMap<Address, Address>,
    /// Hosts that are replaced on every port for which `addresses` has no entry of that host.
    hosts: HashMap<String, String>,
}

/// One side of a pair: `host:port` or a host.
#[derive(Debug, PartialEq, Eq)]
enum Side {
    Address(Address),
    Host(String),
}

impl AddressMap {
    /// The name of this setting in the URL.
    pub const OPTION: &str = "address_map";

    /// Returns the map in `config`; an empty map if there is none.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if the map cannot be read.
    pub fn of(config: &Config) -> Result<Self, Error> {
        config
            .scheme_option(Self::OPTION)
            .map(Self::read)
            .transpose()
            .map(Option::unwrap_or_default)
    }

    /// Parses pairs `announced=real`, separated by commas. Both sides of a pair are `host:port`, or
    /// both are hosts. IPv6 addresses are in brackets, which are optional without a port.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] with an example if a pair has neither form.
    pub fn read(text: &str) -> Result<Self, Error> {
        let mut map = Self::default();
        for pair in text.split(',') {
            let Some((announced, real)) = pair.split_once('=') else {
                return Err(refused(pair));
            };
            match (Side::read(announced), Side::read(real)) {
                (Some(Side::Address(announced)), Some(Side::Address(real))) => {
                    map.addresses.insert(canonical(&announced), real);
                }
                (Some(Side::Host(announced)), Some(Side::Host(real))) => {
                    map.hosts.insert(canonical_host(&announced), real);
                }
                _ => return Err(refused(pair)),
            }
        }
        Ok(map)
    }

    /// Returns the address to connect to in place of an announced address.
    #[must_use]
    pub fn real(&self, announced: &Address) -> Address {
        let canonical = canonical(announced);
        if let Some(real) = self.addresses.get(&canonical) {
            return real.clone();
        }
        match self.hosts.get(&canonical.host) {
            Some(host) => Address::new(host, announced.port),
            None => announced.clone(),
        }
    }
}

impl Side {
    fn read(text: &str) -> Option<Self> {
        if let Some(rest) = text.strip_prefix('[') {
            let (host, port) = rest.split_once(']')?;
            let host = host.parse::<Ipv6Addr>().ok()?.to_string();
            return match port.strip_prefix(':') {
                Some(port) => Self::address(&host, port),
                None => port.is_empty().then_some(Self::Host(host)),
            };
        }
        if let Ok(host) = text.parse::<Ipv6Addr>() {
            return Some(Self::Host(host.to_string()));
        }
        let is_host = |host: &str| {
            !host.is_empty()
                && host
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c))
        };
        match text.split_once(':') {
            Some((host, port)) => is_host(host).then(|| Self::address(host, port)).flatten(),
            None => is_host(text).then(|| Self::Host(text.to_owned())),
        }
    }

    fn address(host: &str, port: &str) -> Option<Self> {
        let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|port| is_number && *port > 0)?;
        Some(Self::Address(Address::new(host, port)))
    }
}

/// Returns the form in which addresses are compared: IPv6 addresses have several spellings, and
/// host names differ in case.
fn canonical(address: &Address) -> Address {
    Address::new(&canonical_host(&address.host), address.port)
}

fn canonical_host(host: &str) -> String {
    host.parse::<Ipv6Addr>()
        .map_or_else(|_| host.to_ascii_lowercase(), |host| host.to_string())
}

fn refused(pair: &str) -> Error {
    Error::configuration(format!(
        "`address_map` has {pair:?}, which is not an announced address and a real one, as in \
         `10.0.0.1:7000=gateway:17000` or `[fd00::1]:7000=[fd00::2]:7000`, nor two hosts, as in \
         `10.0.0.1=gateway` or `fd00::1=fd00::2`; commas stand between several",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_map_prefers_addresses_to_hosts() {
        let map = AddressMap::read("a:1=b:2,a=c,[::1]:7000=d:7").unwrap();
        let real = |host, port| map.real(&Address::new(host, port)).to_string();
        assert_eq!(real("a", 1), "b:2");
        assert_eq!(real("a", 9), "c:9");
        assert_eq!(real("::1", 7000), "d:7");
        assert_eq!(real("x", 1), "x:1");
    }

    /// Pairs of hosts and of addresses are read in all spellings of a host; mixed pairs are
    /// refused.
    #[test]
    fn each_side_of_the_map_is_read_in_all_its_forms() {
        let hosts = [
            ("gateway", "gateway"),
            ("10.0.0.1", "10.0.0.1"),
            ("::1", "::1"),
            ("[::1]", "::1"),
            ("fd00::99", "fd00::99"),
            ("[fd00::99]", "fd00::99"),
            ("[FD00:0:0:0:0:0:0:99]", "fd00::99"),
            ("fd00:0:0:0:0:0:0:99", "fd00::99"),
            // Without brackets, the last group cannot be distinguished from a port.
            ("fd00::1:7000", "fd00::1:7000"),
        ];
        let addresses = [
            ("gateway:17000", "gateway", 17_000),
            ("10.0.0.1:7000", "10.0.0.1", 7_000),
            ("[::1]:7000", "::1", 7_000),
            ("[fd00::99]:1", "fd00::99", 1),
        ];
        for (announced, host) in hosts {
            for (real, other) in hosts {
                let map = AddressMap::read(&format!("{announced}={real}")).unwrap();
                let found = map.real(&Address::new(host, 7));
                assert_eq!(found, Address::new(other, 7), "{announced}={real}");
            }
            for (real, ..) in addresses {
                for pair in [format!("{announced}={real}"), format!("{real}={announced}")] {
                    assert!(
                        AddressMap::read(&pair).unwrap_err().is_configuration(),
                        "{pair}"
                    );
                }
            }
        }
        for (announced, host, port) in addresses {
            for (real, other, at) in addresses {
                let map = AddressMap::read(&format!("{announced}={real}")).unwrap();
                let found = map.real(&Address::new(host, port));
                assert_eq!(found, Address::new(other, at), "{announced}={real}");
                assert_eq!(map.real(&Address::new(host, 2)), Address::new(host, 2));
            }
        }
    }

    #[test]
    fn announced_addresses_are_found_in_every_spelling() {
        let map = AddressMap::read("fd00::99=a,[::1]:7000=b:1,Node.Example=c").unwrap();
        let real = |host, port| map.real(&Address::new(host, port)).to_string();
        assert_eq!(real("fd00:0:0:0:0:0:0:99", 5), "a:5");
        assert_eq!(real("0:0:0:0:0:0:0:1", 7000), "b:1");
        assert_eq!(real("node.example", 5), "c:5");
    }

    #[test]
    fn malformed_address_map_is_refused_with_an_example() {
        for text in [
            "",
            "a",
            "a:1",
            "a:1=b",
            "a=b:1",
            "a=",
            "=b",
            ":1=b:1",
            "a:1=b:1,",
            "a b=c",
            "a:=b:1",
            "a:0=b:1",
            "a:+1=b:1",
            "a:65536=b:1",
            "a:1:2=b:1",
            "[a]=b",
            "[::1=b",
            "::1]=b",
            "[::1]7=b:7",
            "[]=b",
            "[10.0.0.1]:7=b:7",
            "1:2:3=b",
            "::1:7000:=b:1",
            "fe80::1%e=b",
        ] {
            let error = AddressMap::read(text).unwrap_err();
            assert!(error.is_configuration(), "{text}");
            assert!(
                error.to_string().contains("10.0.0.1:7000=gateway:17000"),
                "{text}: {error}"
            );
        }
    }
}
