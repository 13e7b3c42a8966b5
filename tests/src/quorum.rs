//! Quorums of a test's own.

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

/// Independent servers, and the URL of the quorum that they are.
pub struct Servers {
    pub servers: Vec<RedisServer>,
    pub url: String,
}

/// The longest lease of a test's quorum, unless it is the subject.
pub const LONGEST: &str = "max_lease=10m";

impl Servers {
    /// So many of them, set up, with these options. `dead` more were set up with them, and have
    /// died since.
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
    /// A client of this URL, and what it warns of.
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

    /// How many of this kind have all of these parts.
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

/// A server on which the library may do what it needs on a node of a quorum.
pub fn start() -> RedisServer {
    let server = RedisServer::start();
    admit(&server);
    server
}

/// Gives the library's user the rights that the document lists, for a server that has just been
/// started.
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

/// Makes them a quorum that votes at once.
pub fn set_up(places: &[String], options: &str) {
    let config = Config::from_url(&url(places, options)).unwrap();
    // On a busy machine a server may need longer than the time-outs that a test asks for; it can be
    // called again.
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

/// A store that cannot be asked anything.
#[derive(Default, Debug)]
pub struct Dead {
    /// Whether there was an attempt.
    pub asked: AtomicBool,
    /// While a test has this, an attempt gets no answer.
    pub stuck: Mutex<()>,
    /// What a watch comes to instead.
    pub watch: Option<fn(Moment) -> Result<Watch, Failure>>,
}

/// What it answers.
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
