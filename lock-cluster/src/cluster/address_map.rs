//! [`AddressMap`]: configured addresses that replace announced ones, as behind a tunnel or in a
//! container.

use lock_core::Error;
use lock_redis::parts::Address;
use std::collections::HashMap;

/// The address to connect to for an announced one; by default the announced one.
#[derive(Clone, Debug, Default)]
pub(crate) struct AddressMap {
    addresses: HashMap<Address, Address>,
    /// Hosts, with any port.
    hosts: HashMap<String, String>,
}

impl AddressMap {
    /// Parses `announced=real`, with commas between pairs; both sides are `host:port`, or both are
    /// hosts.
    pub(crate) fn read(text: &str) -> Result<Self, Error> {
        let mut map = Self::default();
        for pair in text.split(',') {
            let Some((announced, real)) = pair.split_once('=') else { return Err(refused(pair)) };
            match (Address::parse(announced), Address::parse(real)) {
                (Some(announced), Some(real))
                    if is_host(&announced.host) && is_host(&real.host) =>
                {
                    map.addresses.insert(announced, real);
                }
                (None, None) if is_host(announced) && is_host(real) => {
                    map.hosts.insert(announced.to_owned(), real.to_owned());
                }
                _ => return Err(refused(pair)),
            }
        }
        Ok(map)
    }

    /// The address to connect to.
    pub(crate) fn real(&self, announced: &Address) -> Address {
        if let Some(real) = self.addresses.get(announced) {
            return real.clone();
        }
        match self.hosts.get(&announced.host) {
            Some(host) => Address::new(host, announced.port),
            None => announced.clone(),
        }
    }
}

fn is_host(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || ".-_:".contains(c))
}

fn refused(pair: &str) -> Error {
    Error::configuration(format!(
        "`address_map` has {:?}, which is not an announced address and a real one, as in \
         `10.0.0.1:7000=gateway:17000`, nor two hosts, as in `10.0.0.1=gateway`; commas stand \
         between several",
        pair
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

    #[test]
    fn malformed_address_map_is_refused_with_an_example() {
        for text in ["", "a", "a:1", "a:1=b", "a=b:1", "a=", "=b", ":1=b:1", "a:1=b:1,", "a b=c"] {
            let error = AddressMap::read(text).unwrap_err();
            assert!(error.is_configuration(), "{text}");
            assert!(error.to_string().contains("10.0.0.1:7000=gateway:17000"), "{text}: {error}");
        }
    }
}
