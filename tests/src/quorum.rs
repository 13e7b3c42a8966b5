//! Quorums that a test has for itself.

use crate::process::RedisServer;
use crate::rights::LOGIN;
use crate::time::eventually;
use distlock::admin::WarningKind;
use distlock::backend::{
    Abilities, AcquisitionId, Admin, Answer, Attempt, Backend, Failure, LockInfo, NodeId, Proposal,
    ProposalAnswer, Release, ReleaseOptions, Renewal, RenewalRequest, Voter, Wake, Watch,
};
use distlock::time::Moment;
use distlock::{Client, Config, Error, Event, LockName};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The independent servers of a quorum, and its URL.
pub struct Servers {
    pub servers: Vec<RedisServer>,
    pub url: String,
}

/// The longest lease of a test's quorum, unless this limit is the subject of the test.
pub const LONGEST: &str = "max_lease=10m";

impl Servers {
    /// Starts a quorum of `alive + dead` servers with these options, sets it up, and then kills the
    /// last `dead` servers.
    pub fn with(alive: usize, dead: usize, options: &str) -> Self {
        let mut servers: Vec<_> = (0..alive + dead).map(|_| start()).collect();
        let places: Vec<_> = servers.iter().map(|server| place(server.port())).collect();
        set_up(&places, options);
        servers.truncate(alive);
        Self {
            url: url(&places, options),
            servers,
        }
    }

    /// Kills a server and starts it again on the same port, with what is on its disk.
    pub fn restart(&mut self, at: usize) {
        self.servers[at].restart();
        admit(&self.servers[at]);
    }

    pub fn client(&self) -> Client {
        distlock::connect(&self.url).unwrap()
    }
}

/// The warnings that a client emitted.
#[derive(Clone, Default)]
pub struct Warnings(Arc<Mutex<Vec<(WarningKind, String)>>>);

impl Warnings {
    /// Connects a client to this URL, and returns it with the warnings that it emits.
    pub fn of(url: &str) -> (Client, Self) {
        let warnings = Self::default();
        let noted = Arc::clone(&warnings.0);
        let handler = move |event: &Event| {
            if let Event::Warning { kind, message, .. } = event {
                noted.lock().push((*kind, message.clone()));
            }
        };
        let builder = distlock::builder()
            .url(url)
            .unwrap()
            .events(Arc::new(handler));
        (builder.connect().unwrap(), warnings)
    }

    /// Returns how many warnings of this kind contain all of these texts.
    pub fn count(&self, kind: WarningKind, parts: &[&str]) -> usize {
        let warnings = self.0.lock();
        let is_it = |(its, text): &&(WarningKind, String)| {
            *its == kind && parts.iter().all(|part| text.contains(part))
        };
        warnings.iter().filter(is_it).count()
    }

    pub fn have(&self, kind: WarningKind, parts: &[&str]) -> bool {
        self.count(kind, parts) > 0
    }
}

/// Starts a server on which the library's user has the rights for a node of a quorum.
pub fn start() -> RedisServer {
    let server = RedisServer::start();
    admit(&server);
    server
}

/// Gives the library's user on a running server the additional rights that `docs/OPERATIONS.md`
/// lists for a node of a quorum. A restart loses them.
pub fn admit(server: &RedisServer) {
    let operations = include_str!("../../docs/OPERATIONS.md");
    let mut rules = operations
        .lines()
        .filter_map(|line| line.strip_prefix("ACL SETUSER "));
    let rule = rules
        .find(|rule| rule.starts_with("locker +hmget"))
        .expect("the document has the rule");
    let words: Vec<_> = ["ACL", "SETUSER"]
        .into_iter()
        .chain(rule.split(' '))
        .collect();
    assert_eq!(server.probe().command(&words).text(), "OK");
}

pub fn place(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

pub fn url(places: &[String], options: &str) -> String {
    format!("redlock://{LOGIN}@{}?{options}", places.join(","))
}

/// Sets up the servers at these places as one quorum.
pub fn set_up(places: &[String], options: &str) {
    let config = Config::from_url(&url(places, options)).unwrap();
    // Repeated because on a busy machine a server may need longer than the time-outs in `options`.
    // A repeated call does no harm.
    eventually("the quorum is set up", Duration::from_secs(20), || {
        match distlock::admin::set_up_quorum(&config) {
            Err(error) if error.is_unavailable() => false,
            outcome => {
                outcome.unwrap();
                true
            }
        }
    });
}

/// A store that no request reaches.
#[derive(Default, Debug)]
pub struct Dead {
    /// True after the first attempt.
    pub asked: AtomicBool,
    /// Attempts block while a test holds this mutex.
    pub stuck: Mutex<()>,
    /// The outcome of `watch`; with `None`, `watch` fails as all other requests do.
    pub watch: Option<fn(Moment) -> Result<Watch, Failure>>,
}

/// Fails as a request that was not sent.
///
/// # Errors
///
/// Always.
pub fn dead<T>() -> Result<T, Failure> {
    Err(Failure::NotSent(Error::unavailable("no server is there")))
}

impl Backend for Dead {
    fn acquire(&self, _: &Attempt<'_>, _: Moment) -> Result<Answer, Failure> {
        self.asked.store(true, Ordering::SeqCst);
        drop(self.stuck.lock());
        dead()
    }

    fn renew(
        &self,
        _: NodeId,
        batch: &[RenewalRequest],
        _: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        batch.iter().map(|_| dead()).collect()
    }

    fn release(&self, _: &AcquisitionId, _: ReleaseOptions, _: Moment) -> Result<Release, Failure> {
        dead()
    }

    fn inspect(&self, _: &LockName, _: Moment) -> Result<LockInfo, Failure> {
        dead()
    }

    fn watch(&self, _: &LockName, _: Arc<dyn Wake>, by: Moment) -> Result<Watch, Failure> {
        self.watch.map_or_else(dead, |watch| watch(by))
    }

    fn renewal_node(&self, _: &LockName) -> NodeId {
        NodeId::new(0)
    }

    fn abilities(&self) -> Abilities {
        Abilities::full()
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }

    fn voter(&self) -> Option<&dyn Voter> {
        Some(self)
    }
}

impl Voter for Dead {
    fn propose(
        &self,
        attempt: &Attempt<'_>,
        _: Proposal,
        by: Moment,
    ) -> Result<ProposalAnswer, Failure> {
        self.acquire(attempt, by).map(ProposalAnswer::Answer)
    }
}

impl Admin for Dead {
    fn force_release(&self, _: &LockName, _: Moment) -> Result<bool, Failure> {
        dead()
    }
}
