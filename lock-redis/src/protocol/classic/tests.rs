//! Tests of [`ClassicRules`] on a store in memory: which requests are sent, and which are not.

use super::*;
use lock_core::backend::{
    Abilities, AcquisitionId, Admin, Answer, Attempt, Failure, LockInfo, NodeId, Receipt, Release,
    ReleaseOptions, Renewal, RenewalRequest, Wake, Watch,
};
use lock_core::{
    Backend, Client, ClientId, Clock, LeaseTime, LockName, LockOptions, ManualClock, MemoryBackend,
    Moment, OwnerId,
};
use parking_lot::Mutex;
use std::time::Duration;

/// Returns the format that `config` names.
fn classic(config: &Config, context: &Context) -> Format {
    let format = settings::read_classic_format(config, context, None).unwrap();
    Format(Arc::new(FormatKind::Classic(format.unwrap())))
}

const SECOND: Duration = Duration::from_secs(1);

/// A store in memory that records its requests, and injects faults.
#[derive(Clone, Debug)]
struct Recorded {
    store: MemoryBackend,
    clock: ManualClock,
    /// All requests other than inspections, with their deadlines.
    requests: Arc<Mutex<Vec<(&'static str, Moment)>>>,
    /// The fault of the next request.
    fault: Arc<Mutex<Fault>>,
}

#[derive(Clone, Copy, Default, Debug)]
enum Fault {
    #[default]
    None,
    Lost,
    NotSent,
    Panic,
    Late(Duration),
}

impl Recorded {
    fn new() -> Self {
        let clock = ManualClock::new();
        let store = MemoryBackend::new(Arc::new(clock.clone()));
        Self {
            store,
            clock,
            requests: Arc::default(),
            fault: Arc::default(),
        }
    }

    fn backend(&self) -> Ruled {
        self.backend_of("redis://h?format=plain")
    }

    fn backend_of(&self, url: &str) -> Ruled {
        let context = Context::new(Arc::new(self.clock.clone()), ClientId::random());
        let config = Config::from_url(url).unwrap();
        let format = classic(&config, &context);
        Ruled {
            store: self.clone(),
            rules: ClassicRules::new(format.clone(), context.clock),
            format,
        }
    }

    fn client(&self) -> Client {
        let builder = lock_core::builder().backend(Arc::new(self.backend()));
        builder
            .clock(Arc::new(self.clock.clone()))
            .connect()
            .unwrap()
    }

    fn fail_next(&self, fault: Fault) {
        *self.fault.lock() = fault;
    }

    fn count(&self, kind: &str) -> usize {
        self.requests
            .lock()
            .iter()
            .filter(|(it, _)| *it == kind)
            .count()
    }

    fn asked<T>(
        &self,
        kind: &'static str,
        by: Moment,
        apply: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.requests.lock().push((kind, by));
        match std::mem::take(&mut *self.fault.lock()) {
            Fault::None => apply(),
            Fault::NotSent => Err(Failure::NotSent(Error::unavailable("on purpose"))),
            Fault::Panic => panic!("on purpose"),
            Fault::Lost => {
                apply()?;
                Err(Failure::Unknown(Error::unavailable("on purpose")))
            }
            Fault::Late(time) => {
                let answer = apply();
                self.clock.jump(time);
                answer
            }
        }
    }
}

/// The recorded store under the rules, which are applied as in a store of Redis servers.
#[derive(Debug)]
struct Ruled {
    store: Recorded,
    rules: ClassicRules,
    format: Format,
}

impl Backend for Ruled {
    fn acquire(&self, attempt: &Attempt<'_>, by: Moment) -> Result<Answer, Failure> {
        let send = || self.store.acquire(attempt, by);
        self.rules.acquire(attempt, send, || Duration::ZERO)
    }

    fn renew(
        &self,
        _: NodeId,
        batch: &[RenewalRequest],
        _: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        batch
            .iter()
            .map(|_| Err(ClassicRules::no_renewal()))
            .collect()
    }

    fn release(
        &self,
        acquisition: &AcquisitionId,
        _: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure> {
        self.rules
            .release(acquisition, by, |acquisition, options, by| {
                self.store.release(acquisition, options, by)
            })
    }

    fn verify(
        &self,
        _: &AcquisitionId,
        _: Moment,
    ) -> Result<Option<lock_core::backend::HolderInfo>, Failure> {
        Err(ClassicRules::no_verification())
    }

    fn inspect(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure> {
        self.store.inspect(name, by)
    }

    fn watch(&self, name: &LockName, wake: Arc<dyn Wake>, by: Moment) -> Result<Watch, Failure> {
        self.store.watch(name, wake, by)
    }

    fn renewal_node(&self, name: &LockName) -> NodeId {
        self.store.renewal_node(name)
    }

    fn abilities(&self) -> Abilities {
        self.store.abilities()
    }

    fn admin(&self) -> Option<&dyn Admin> {
        self.store.admin()
    }
}

impl Backend for Recorded {
    fn acquire(&self, attempt: &Attempt<'_>, by: Moment) -> Result<Answer, Failure> {
        self.asked("acquire", by, || self.store.acquire(attempt, by))
    }

    fn renew(
        &self,
        node: NodeId,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        self.requests.lock().push(("renew", by));
        self.store.renew(node, batch, by)
    }

    fn release(
        &self,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure> {
        self.asked("release", by, || {
            self.store.release(acquisition, options, by)
        })
    }

    fn inspect(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure> {
        self.store.inspect(name, by)
    }

    fn watch(&self, name: &LockName, wake: Arc<dyn Wake>, by: Moment) -> Result<Watch, Failure> {
        self.store.watch(name, wake, by)
    }

    fn renewal_node(&self, name: &LockName) -> NodeId {
        self.store.renewal_node(name)
    }

    fn abilities(&self) -> Abilities {
        Abilities::full().renewable(false).tokens(false)
    }

    fn admin(&self) -> Option<&dyn Admin> {
        self.store.admin()
    }
}

fn fixed(lease: Duration) -> LockOptions {
    LockOptions::new().lease(lease)
}

#[test]
fn lease_is_fixed_and_holding_is_neither_extended_nor_verified() {
    let store = Recorded::new();
    let lock = store.client().mutex("x").unwrap();
    assert!(
        lock.lock().unwrap_err().is_unsupported(),
        "the watchdog cannot keep it"
    );
    let guard = lock.lock_with(&fixed(10 * SECOND)).unwrap();
    assert!(guard.extend(20 * SECOND).unwrap_err().is_unsupported());
    assert!(guard.verify().unwrap_err().is_unsupported());
    assert!(guard.is_valid());
    guard.unlock().unwrap();
    assert_eq!((store.count("renew"), store.count("release")), (0, 1));
}

#[test]
fn attempt_without_an_answer_is_not_repeated_nor_taken_back() {
    let store = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    store.fail_next(Fault::Lost);
    let error = lock.lock_with(&fixed(10 * SECOND)).unwrap_err();
    assert!(
        error.is_unavailable() && error.to_string().contains("may have taken"),
        "{error}"
    );
    client.wait_for_cleanup(SECOND).unwrap();
    assert_eq!((store.count("acquire"), store.count("release")), (1, 0));
    store.clock.jump(11 * SECOND);
    lock.lock_with(&fixed(10 * SECOND))
        .unwrap()
        .unlock()
        .unwrap();
}

#[test]
fn attempt_that_never_left_is_repeated() {
    let store = Recorded::new();
    let lock = store.client().mutex("x").unwrap();
    store.fail_next(Fault::NotSent);
    lock.lock_with(&fixed(10 * SECOND))
        .unwrap()
        .unlock()
        .unwrap();
    assert_eq!((store.count("acquire"), store.count("release")), (2, 1));
}

#[test]
fn grant_that_comes_too_late_is_left_to_its_lease() {
    let store = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    store.fail_next(Fault::Late(11 * SECOND));
    let error = lock.lock_with(&fixed(10 * SECOND)).unwrap_err();
    assert!(
        error.is_unavailable() && error.to_string().contains("left to its lease"),
        "{error}"
    );
    client.wait_for_cleanup(SECOND).unwrap();
    assert_eq!(store.count("release"), 0);
}

#[test]
fn release_without_an_answer_is_not_repeated() {
    for drops in [false, true] {
        let store = Recorded::new();
        let client = store.client();
        let guard = client
            .mutex("x")
            .unwrap()
            .lock_with(&fixed(10 * SECOND))
            .unwrap();
        store.fail_next(Fault::Lost);
        if drops {
            drop(guard);
        } else {
            let error = guard.unlock().unwrap_err();
            assert!(error.is_unavailable(), "{error:?}");
            assert!(
                error.to_string().contains("it is not sent again"),
                "{error}"
            );
        }
        client.wait_for_cleanup(SECOND).unwrap();
        assert_eq!(
            store.count("release"),
            1,
            "a second release could free the next holder's lock"
        );
    }
}

#[test]
fn release_must_be_answered_before_the_lease_is_over() {
    let store = Recorded::new();
    let guard = store
        .client()
        .mutex("x")
        .unwrap()
        .lock_with(&fixed(SECOND))
        .unwrap();
    let end = store.clock.now() + guard.remaining();
    guard.unlock().unwrap();
    let by = store.requests.lock().last().map(|(_, by)| *by);
    assert!(by.is_some_and(|by| by <= end));
}

#[test]
fn release_after_the_lease_or_of_no_grant_is_not_sent() {
    let (store, name) = (Recorded::new(), LockName::new("x").unwrap());
    let (backend, lease) = (store.backend(), LeaseTime::new(SECOND).unwrap());
    let owner = OwnerId::new(ClientId::random(), 1);
    let attempt = Attempt::new(&name, owner, lease);
    let release = |receipt| {
        let id = AcquisitionId::new(name.clone(), owner, lease, receipt);
        backend.release(&id, ReleaseOptions::WITH_TOMBSTONE, Moment::NEVER)
    };
    let Ok(Answer::Granted(grant)) = backend.acquire(&attempt, Moment::NEVER) else {
        panic!("it is free");
    };
    assert!(matches!(release(Receipt::default()), Ok(Release::Gone)));
    store.clock.jump(SECOND);
    assert!(matches!(release(grant.receipt), Ok(Release::Gone)));
    assert_eq!(store.count("release"), 0);
}

#[test]
fn release_that_never_left_is_no_loss_after_the_lease() {
    let (store, name) = (Recorded::new(), LockName::new("x").unwrap());
    let (backend, lease) = (store.backend(), LeaseTime::new(SECOND).unwrap());
    let owner = OwnerId::new(ClientId::random(), 1);
    let attempt = Attempt::new(&name, owner, lease);
    let Ok(Answer::Granted(grant)) = backend.acquire(&attempt, Moment::NEVER) else {
        panic!("it is free");
    };
    let id = AcquisitionId::new(name.clone(), owner, lease, grant.receipt);
    let release = || backend.release(&id, ReleaseOptions::WITHOUT_TOMBSTONE, Moment::NEVER);
    store.fail_next(Fault::NotSent);
    assert!(matches!(release(), Err(Failure::NotSent(_))));
    store.clock.jump(SECOND);
    let Err(Failure::Final(error)) = release() else {
        panic!("no store said that it is lost")
    };
    assert!(error.is_unavailable(), "{error:?}");
    assert_eq!(store.count("release"), 1);
}

#[test]
fn attempt_goes_on_at_the_next_node_of_a_cluster_only() {
    let context = Context::new(Arc::new(ManualClock::new()), ClientId::random());
    let goes_on = |url: &str| {
        let config = Config::from_url(url).unwrap();
        let format = classic(&config, &context);
        format.as_classic().unwrap().attempts_under_way().is_some()
    };
    assert!(goes_on("redis+cluster://h?format=plain,commands"));
    assert!(!goes_on(
        "redis+sentinel://h/mymaster?format=plain,commands"
    ));
    assert!(!goes_on("redis://h?format=plain,commands"));
}

#[test]
fn panic_of_the_store_is_not_repeated_and_leaves_no_attempt() {
    let (store, name) = (Recorded::new(), LockName::new("x").unwrap());
    let backend = store.backend_of("redis+cluster://h?format=plain");
    let format = backend.format.clone();
    let builder = lock_core::builder().backend(Arc::new(backend));
    let client = builder
        .clock(Arc::new(store.clock.clone()))
        .connect()
        .unwrap();
    let lock = client.mutex(name.as_str()).unwrap();
    store.fail_next(Fault::Panic);
    assert!(
        lock.lock_with(&fixed(10 * SECOND))
            .unwrap_err()
            .is_unavailable()
    );
    assert_eq!(store.count("acquire"), 1, "it may have been carried out");
    let under_way = format.as_classic().unwrap().attempts_under_way();
    assert_eq!(under_way, Some(0));
    let guard = lock.lock_with(&fixed(10 * SECOND)).unwrap();
    store.fail_next(Fault::Panic);
    let error = guard.unlock().unwrap_err();
    assert!(
        error.is_unavailable() && error.to_string().contains("not sent again"),
        "{error}"
    );
    assert_eq!(store.count("release"), 1);
}
