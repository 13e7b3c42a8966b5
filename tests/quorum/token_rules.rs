//! The rules of proposed tokens, asked of one node directly: the one in memory, and the script. What both must say is
//! written down here a third time, as plainly as it can be.

use distlock::backend::{Answer, Attempt, Closing, TenureId, Tokens};
use distlock::{
    Backend, ClientId, Clock, Config, Context, FencingToken, LeaseTime, LockName, MemoryBackend,
    Moment, OwnerId, SystemClock, schemes,
};
use distlock_tests::process::RedisServer;
use std::sync::Arc;
use std::time::Duration;

/// One node, and the owners that ask it.
struct Node {
    store: Arc<dyn Backend>,
    client: ClientId,
    name: LockName,
}

fn nodes(work: impl Fn(&Node)) {
    let context = Context::new(Arc::new(SystemClock), ClientId::random());
    let server = RedisServer::start();
    let memory = Arc::new(MemoryBackend::new(Arc::new(SystemClock))) as Arc<dyn Backend>;
    let redis = schemes().open(&Config::from_url(&server.url()).unwrap(), &context).unwrap();
    for store in [memory, redis] {
        println!("{store:?}");
        work(&Node { store, client: context.client, name: LockName::new("a").unwrap() });
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

    fn propose(&self, owner: u64, first: u64, reserve: u32) -> Answer {
        let first = FencingToken::new(first);
        let attempt = Attempt::new(&self.name, self.owner(owner), Self::lease())
            .tokens(Tokens::Propose { first, reserve });
        self.store.acquire(&attempt, Self::by()).unwrap()
    }

    fn granted(&self, owner: u64, first: u64, reserve: u32) {
        match self.propose(owner, first, reserve) {
            Answer::Granted(grant) => {
                let tokens = grant.tokens.unwrap();
                let range = (tokens.first().get(), tokens.last().get());
                assert_eq!(range, (first, first + u64::from(reserve)));
            }
            other => panic!("{other:?}"),
        }
    }

    fn stale(&self, owner: u64, first: u64) -> u64 {
        match self.propose(owner, first, 0) {
            Answer::Stale(token) => token.get(),
            other => panic!("{other:?}"),
        }
    }

    fn release(&self, owner: u64, closing: Closing) {
        let tenure =
            TenureId::new(self.name.clone(), self.owner(owner), Self::lease(), Default::default());
        self.store.release(&tenure, closing, Self::by()).unwrap();
    }
}

/// Beyond what an absent counter stands for.
const T: u64 = 3_000_000_000_000_000;

#[test]
fn a_free_lock_is_granted_to_a_proposal_beyond_all_before_and_to_no_other() {
    nodes(|node| {
        node.granted(1, T, 0);
        assert!(node.propose(2, T + 100, 0).is_busy(), "it is held");
        node.release(1, Closing::CLEAN);
        for late in [T - 5, T] {
            assert_eq!(node.stale(3, late), T, "equal is not beyond");
        }
        node.granted(4, T + 1, 0);
    });
}

#[test]
fn the_end_of_a_range_is_what_must_be_outbid() {
    nodes(|node| {
        node.granted(1, T, 10);
        node.release(1, Closing::CLEAN);
        assert_eq!(node.stale(2, T + 10), T + 10);
        node.granted(2, T + 11, 0);
    });
}

#[test]
fn whoever_has_it_already_raises_the_token_and_an_older_message_does_not_lower_it() {
    nodes(|node| {
        node.granted(1, T, 0);
        node.granted(1, T + 50, 0);
        node.granted(1, T, 0);
        node.release(1, Closing::CLEAN);
        assert_eq!(node.stale(2, T + 50), T + 50);
    });
}

#[test]
fn a_proposal_of_a_closed_owner_is_turned_down_and_a_late_one_is_stale_anyway() {
    nodes(|node| {
        node.granted(1, T, 0);
        node.release(1, Closing::IN_DOUBT);
        assert!(node.propose(1, T + 1, 0).is_busy());
        node.granted(2, T + 1, 0);
        node.release(2, Closing::CLEAN);
        // A copy that was not closed: the lock has been given back, and its token is used.
        assert_eq!(node.stale(2, T + 1), T + 1);
    });
}
