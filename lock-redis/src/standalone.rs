//! One server as a [`Topology`]: the server that a URL names.

use crate::node::{Node, NodeSettings, StoreKind, WatchRegistry};
use crate::protocol::Format;
use crate::store::RedisStore;
use crate::topology::{Effect, Hop, JudgeSubmitted, RoutedRequest, Topology, Verdict};
use crate::url;
use lock_core::backend::{Abilities, AcquisitionId, Failure, NodeId, ReplicaSupport};
use lock_core::{Config, Context, Error, Finding, LockName, Moment};
use std::sync::Arc;

impl RedisStore<Node> {
    /// Makes the store of the server that `config` names, without connecting to it.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if the URL does not name exactly one server, if its database is
    /// not a number, if a setting is invalid or contradicts another, or if a file cannot be read.
    /// [`Error::is_unavailable`] if a thread cannot be started.
    pub fn standalone(config: &Config, context: &Context, format: Format) -> Result<Self, Error> {
        config.check()?;
        let (place, database) = url::address(config)?;
        let node = NodeSettings::new(config, database, context, format)?.followed(place)?;
        Ok(Self::with_topology(Arc::new(node)))
    }
}

/// Returns the hop to the one server.
#[inline]
fn only_hop(node: &Node) -> Hop<()> {
    Hop {
        node: node.clone(),
        number: 0,
        state: (),
    }
}

/// Every request goes to the one server, once, and every outcome is believed.
impl Topology for Node {
    type RouteState = ();

    const IS_SPREAD: bool = false;

    const IS_INDEPENDENT: bool = true;

    fn abilities(&self) -> Abilities {
        // A server on its own does not know which replicas it should have: it has forgotten those
        // that are gone.
        let abilities = self.format().abilities(ReplicaSupport::Counted);
        let abilities = abilities.waits_for_releases(self.is_lent());
        match self.waking() {
            Some(waking) => abilities.waking(waking),
            None => abilities,
        }
    }

    fn known(&self, _: &LockName) -> Option<Hop<()>> {
        Some(only_hop(self))
    }

    #[inline]
    fn renewal_node(&self, _: &LockName) -> NodeId {
        NodeId::new(0)
    }

    #[inline]
    fn route(self: &Arc<Self>, _: &RoutedRequest<'_>, _: Moment) -> Result<Hop<()>, Failure> {
        Ok(only_hop(self))
    }

    #[inline]
    fn judge(&self, _: &RoutedRequest<'_>, _: &Hop<()>, _: Result<Effect, &Failure>) -> Verdict {
        Verdict::Believe
    }

    #[inline]
    fn judge_submitted(self: &Arc<Self>, _: &Hop<()>, _: &AcquisitionId) -> Option<JudgeSubmitted> {
        None
    }

    fn reroute(
        self: &Arc<Self>,
        _: &RoutedRequest<'_>,
        _: Hop<()>,
        failure: Option<Failure>,
        _: Moment,
    ) -> Result<Hop<()>, Failure> {
        // Not called, because every outcome is believed and there is no other server.
        Err(failure.unwrap_or_else(|| {
            Failure::Unknown(Error::unavailable("no other server has the answer"))
        }))
    }

    fn watches(&self) -> Option<&WatchRegistry> {
        None
    }

    fn diagnose(self: &Arc<Self>, by: Moment) -> Result<Vec<Finding>, Failure> {
        Ok(self.examine(StoreKind::Standalone, by)?.findings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::{ClientId, SystemClock};

    fn open(url: &str) -> Result<RedisStore<Node>, Error> {
        let context = Context::new(Arc::new(SystemClock), ClientId::random());
        let config = Config::from_url(url).unwrap();
        RedisStore::standalone(&config, &context, Format::of(&config)?)
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
