//! The rules of proposed tokens, tested on one node directly: one in memory, and the script. The
//! tests state the answers that both must give.

use distlock::backend::{
    AcquisitionId, Answer, Attempt, Backend, ClientId, Context, LeaseTime, MemoryBackend, OwnerId,
    Proposal, ProposalAnswer, ReleaseOptions,
};
use distlock::time::{Clock, Moment, SystemClock};
use distlock::{Config, FencingToken, LockName, schemes};
use distlock_tests::probe::{Probe, Value};
use distlock_tests::process::RedisServer;
use std::sync::Arc;
use std::time::Duration;

/// One node, with the client and the lock of the tests' requests.
struct Node {
    store: Arc<dyn Backend>,
    client: ClientId,
    name: LockName,
}

fn nodes(work: impl Fn(&Node)) {
    let context = Context::new(Arc::new(SystemClock), ClientId::random());
    let server = RedisServer::start();
    let memory = Arc::new(MemoryBackend::new(Arc::new(SystemClock))) as Arc<dyn Backend>;
    let redis = schemes()
        .open(&Config::from_url(&server.url()).unwrap(), &context)
        .unwrap();
    for store in [memory, redis] {
        println!("{store:?}");
        work(&Node {
            store,
            client: context.client,
            name: LockName::new("a").unwrap(),
        });
    }
}

impl Node {
    fn by() -> Moment {
        SystemClock.now() + Duration::from_secs(5)
    }

    fn lease() -> LeaseTime {
        LeaseTime::new(Duration::from_secs(60)).unwrap()
    }

    fn owner(&self, number: u64) -> OwnerId {
        OwnerId::new(self.client, number)
    }

    fn propose(&self, owner: u64, first: u64, reserve: u32) -> ProposalAnswer {
        let proposal = Proposal::new(FencingToken::new(first), reserve);
        let attempt = Attempt::new(&self.name, self.owner(owner), Self::lease());
        let voter = self.store.voter().expect("a store that votes");
        voter.propose(&attempt, proposal, Self::by()).unwrap()
    }

    fn is_busy(&self, owner: u64, first: u64) -> bool {
        let answer = self.propose(owner, first, 0);
        matches!(answer, ProposalAnswer::Answer(answer) if answer.is_busy())
    }

    fn granted(&self, owner: u64, first: u64, reserve: u32) {
        match self.propose(owner, first, reserve) {
            ProposalAnswer::Answer(Answer::Granted(grant)) => {
                let tokens = grant.tokens.unwrap();
                let range = (tokens.first().get(), tokens.last().get());
                assert_eq!(range, (first, first + u64::from(reserve)));
            }
            other => panic!("{other:?}"),
        }
    }

    fn stale(&self, owner: u64, first: u64) -> u64 {
        match self.propose(owner, first, 0) {
            ProposalAnswer::Stale(token) => token.get(),
            other => panic!("{other:?}"),
        }
    }

    fn release(&self, owner: u64, closing: ReleaseOptions) {
        let acquisition = AcquisitionId::new(
            self.name.clone(),
            self.owner(owner),
            Self::lease(),
            Default::default(),
        );
        self.store
            .release(&acquisition, closing, Self::by())
            .unwrap();
    }
}

/// A token larger than the value that an absent counter stands for.
const T: u64 = 3_000_000_000_000_000;

#[test]
fn free_lock_is_granted_to_a_larger_proposal_only() {
    nodes(|node| {
        node.granted(1, T, 0);
        assert!(node.is_busy(2, T + 100), "it is held");
        node.release(1, ReleaseOptions::WITHOUT_TOMBSTONE);
        for late in [T - 5, T] {
            assert_eq!(node.stale(3, late), T, "equal is not beyond");
        }
        node.granted(4, T + 1, 0);
    });
}

#[test]
fn end_of_a_token_range_must_be_outbid() {
    nodes(|node| {
        node.granted(1, T, 10);
        node.release(1, ReleaseOptions::WITHOUT_TOMBSTONE);
        assert_eq!(node.stale(2, T + 10), T + 10);
        node.granted(2, T + 11, 0);
    });
}

#[test]
fn older_proposal_of_the_holder_does_not_lower_the_token() {
    nodes(|node| {
        node.granted(1, T, 0);
        node.granted(1, T + 50, 0);
        node.granted(1, T, 0);
        node.release(1, ReleaseOptions::WITHOUT_TOMBSTONE);
        assert_eq!(node.stale(2, T + 50), T + 50);
    });
}

#[test]
fn proposal_of_a_closed_owner_is_refused() {
    nodes(|node| {
        node.granted(1, T, 0);
        node.release(1, ReleaseOptions::WITH_TOMBSTONE);
        assert!(node.is_busy(1, T + 1));
        node.granted(2, T + 1, 0);
        node.release(2, ReleaseOptions::WITHOUT_TOMBSTONE);
        // A late copy of a request whose owner has no tombstone is refused, too: its token was used
        // before.
        assert_eq!(node.stale(2, T + 1), T + 1);
    });
}

/// Runs `mark.lua` with these arguments. Returns whether the server did what they request, and the
/// choice that the server has accepted.
fn mark(probe: &mut Probe, run_id: &str, told: &[&str]) -> (bool, Option<String>) {
    let script = include_str!("../../lock-redis/src/lua/mark.lua");
    let words = [&["EVAL", script, "1", "distlock_quorum", run_id], told].concat();
    let Value::List(state) = probe.command(&words) else {
        panic!("it says what it is")
    };
    let [_, _, Value::List(fields), Value::Int(done)] = &state[..] else {
        panic!("{state:?}")
    };
    let next = match &fields[9] {
        Value::Text(text) if !text.is_empty() => Some(text.clone()),
        _ => None,
    };
    (*done == 1, next)
}

#[test]
fn ballot_is_promised_once_and_smaller_ones_are_refused() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let run_id = probe.info_field("server", "run_id").unwrap();
    let mut ask = |told: &[&str]| mark(&mut probe, &run_id, told);
    let promise = |ballot| ["promise", "", "0", ballot];
    let accept = |ballot, choice| ["accept", "", "0", ballot, choice];
    assert_eq!(ask(&promise("5")), (true, None));
    assert_eq!(ask(&promise("5")), (false, None), "to one client only");
    assert_eq!(
        ask(&accept("4", "x")),
        (false, None),
        "it has promised not to"
    );
    assert_eq!(ask(&accept("5", "y")), (true, Some("y".to_owned())));
    // A later proposer is told of the accepted choice.
    assert_eq!(ask(&promise("6")), (true, Some("y".to_owned())));
    assert_eq!(ask(&accept("5", "z")), (false, Some("y".to_owned())));
    // The server takes no part in a choice of another epoch or of another quorum.
    assert!(!ask(&["promise", "", "1", "9"]).0 && !ask(&["promise", "q", "0", "9"]).0);
    let record = ["record", "q", "1", "m", "1000", "2000", "", "", "", "0"];
    assert!(!ask(&record).0, "it is not to become a node");
    let admit = [
        "record", "q", "1", "m", "1000", "2000", "1000", "0", "", "0",
    ];
    assert_eq!(ask(&admit), (true, None));
    assert!(
        !ask(&admit).0 && !ask(&promise("7")).0,
        "the first choice is over"
    );
    assert!(
        ask(&["promise", "q", "1", "1"]).0,
        "the next one begins anew"
    );
    assert!(
        !mark(&mut probe, "another", &["promise", "q", "1", "2"]).0,
        "of another server"
    );
}
