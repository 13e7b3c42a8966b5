//! [`Node::standalone`]: the one Redis server that a URL names.

use crate::format::Format;
use crate::node::{Node, NodeSettings};
use crate::url;
use lock_core::{Config, Context, Error};

impl Node {
    /// The server that `config` names. Does not talk to it.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if the URL does not name exactly one server, or no database
    /// number, or a setting contradicts another.
    pub fn standalone(config: &Config, context: &Context, format: Format) -> Result<Self, Error> {
        config.check()?;
        let (place, database) = url::address(config)?;
        NodeSettings::new(config, database, context, format)?.followed(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::{ClientId, SystemClock};
    use std::sync::Arc;

    fn open(url: &str) -> Result<Node, Error> {
        let context = Context::new(Arc::new(SystemClock), ClientId::random());
        let config = Config::from_url(url).unwrap();
        Node::standalone(&config, &context, Format::of(&config)?)
    }

    fn refusal(url: &str) -> String {
        let error = open(url).unwrap_err();
        assert!(error.is_configuration(), "{error:?}");
        error.to_string()
    }

    #[test]
    fn address_that_is_not_one_server_is_refused() {
        assert!(refusal("redis://a,b").contains("`redis+sentinel://`"));
        assert!(refusal("redis://").contains("0 hosts"));
        assert!(refusal("redis://a/b").contains("`/b`"));
        assert!(refusal("redis://a/-1").contains("`/-1`"));
        assert!(refusal("redis+unix://run/redis.sock").contains("three slashes"));
        assert!(refusal("redis+unix://").contains("three slashes"));
        assert!(refusal("redis+unix:///").contains("three slashes"));
        assert!(refusal("redis+unix:///run/redis.sock?db=x").contains("`db=x`"));
        assert!(refusal(&format!("redis+unix:///{}", "x".repeat(200))).contains("shorter"));
    }

    #[test]
    fn new_backend_dials_nothing_and_shows_no_secret() {
        let shown = format!("{:?}", open("redis://me:s3cret@192.0.2.1/3").unwrap());
        assert!(
            shown.contains("192.0.2.1:6379") && !shown.contains("s3cret"),
            "{shown}"
        );
    }
}
