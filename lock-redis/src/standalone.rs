//! [`RedisBackend`]: one Redis server as a store of locks.

use crate::format::Format;
use crate::node::{Node, NodeSettings, RequestMode, StoreKind};
use crate::url;
use lock_core::backend::{
    Abilities, AcquisitionId, Answer, Attempt, Failure, FoundBusyBy, HolderInfo, LockInfo,
    LockPage, NodeId, OnReleased, PagePosition, Release, ReleaseOptions, Renewal, RenewalRequest,
    ReplicaSupport, Wake, Watch,
};
use lock_core::{Backend, Config, Context, Error, Finding, LockName, Moment};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// One standalone Redis server.
///
/// Attempts and releases of all threads share one connection, and wait on it for their answers
/// only; renewals have one of their own, so that traffic cannot starve them, others while a renewal
/// hangs, and go over the shared one where none can be had; what cleans up after a lost answer
/// borrows one of at most `pool`; and one more hears of releases, from the first
/// watch on. Nothing is dialled before it is needed.
///
/// Dropping it ends its threads and connections, without waiting for them.
pub struct RedisBackend {
    format: Format,
    node: Node,
}

impl RedisBackend {
    /// The node that renews: one server is one.
    const NODE: u64 = 0;

    /// The server that `config` names. Does not talk to it.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if the URL does not name exactly one server, or no database
    /// number, or a setting contradicts another.
    pub fn new(config: &Config, context: &Context) -> Result<Self, Error> {
        Self::with_format(config, context, Format::of(config)?)
    }

    /// The same with a format that was read already.
    ///
    /// # Errors
    ///
    /// The same.
    #[doc(hidden)]
    pub fn with_format(config: &Config, context: &Context, format: Format) -> Result<Self, Error> {
        config.check()?;
        let (place, database) = url::address(config)?;
        let node = NodeSettings::new(config, database, context)?.followed(place)?;
        Ok(Self { format, node })
    }
}

impl Backend for RedisBackend {
    fn acquire(&self, attempt: &Attempt<'_>, by: Moment) -> Result<Answer, Failure> {
        self.node.acquire(RequestMode::Direct, &self.format, attempt, by)
    }

    fn renew(
        &self,
        _: NodeId,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        self.node.renew(RequestMode::Direct, &self.format, batch, by)
    }

    fn release(
        &self,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure> {
        self.node.release(RequestMode::Direct, &self.format, acquisition, options, by)
    }

    fn submit_release(
        &self,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        by: Moment,
        done: OnReleased,
    ) {
        self.node.submit_release(&self.format, acquisition, options, by, done);
    }

    fn inspect(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure> {
        self.node.inspect(RequestMode::Direct, &self.format, name, by)
    }

    fn peek(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure> {
        self.node.peek(RequestMode::Direct, &self.format, name, by)
    }

    fn verify(
        &self,
        acquisition: &AcquisitionId,
        by: Moment,
    ) -> Result<Option<HolderInfo>, Failure> {
        self.node.verify(RequestMode::Direct, &self.format, acquisition, by)
    }

    fn set_permits(&self, name: &LockName, by: Moment) -> Result<Option<u32>, Failure> {
        self.node.set_permits(RequestMode::Direct, &self.format, name, by)
    }

    fn inspect_all(&self, names: &[LockName], by: Moment) -> Vec<Result<LockInfo, Failure>> {
        let infos = self.node.inspect_all(&self.format, names, by);
        infos.unwrap_or_else(|failure| vec![Err(failure); names.len()])
    }

    fn list(&self, pattern: &str, from: &PagePosition, by: Moment) -> Result<LockPage, Failure> {
        self.node.list(&self.format, pattern, from.cursor, by)?.into_page("")
    }

    fn poll_pause(&self, name: &LockName, found_by: FoundBusyBy) -> Option<Duration> {
        self.node.poll_pause(&self.format, name, found_by)
    }

    fn force_release(&self, name: &LockName, by: Moment) -> Result<bool, Failure> {
        self.node.force_release(RequestMode::Direct, &self.format, name, by)
    }

    fn watch(&self, name: &LockName, wake: Arc<dyn Wake>, by: Moment) -> Result<Watch, Failure> {
        self.node.watch(&self.format, name, wake, by)
    }

    fn renewal_node(&self, _: &LockName) -> NodeId {
        NodeId::new(Self::NODE)
    }

    fn abilities(&self) -> Abilities {
        // Which replicas there should be, a server on its own does not know: those that are gone it
        // has forgotten.
        self.format.abilities(ReplicaSupport::Counted).independent(true)
    }

    fn diagnose(&self, by: Moment) -> Result<Vec<Finding>, Failure> {
        Ok(self.node.diagnose(&self.format, StoreKind::Standalone, by)?.findings)
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackend")
            .field("node", &self.node)
            .field("format", &self.format.name())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::{ClientId, SystemClock};

    fn refusal(url: &str) -> String {
        let context = Context::new(Arc::new(SystemClock), ClientId::random());
        let config = Config::from_url(url).unwrap();
        let error = RedisBackend::new(&config, &context).unwrap_err();
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
        let context = Context::new(Arc::new(SystemClock), ClientId::random());
        let config = Config::from_url("redis://me:s3cret@192.0.2.1/3").unwrap();
        let backend = RedisBackend::new(&config, &context).unwrap();
        let shown = format!("{backend:?}");
        assert!(shown.contains("192.0.2.1:6379") && !shown.contains("s3cret"), "{shown}");
    }
}
