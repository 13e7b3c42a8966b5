//! [`InMemory`]: the in-memory store, as a node of the replay.

use super::{LOCK, Real};
use distlock::backend::{
    AcquisitionId, Answer as Said, Attempt, Backend, ClientId, LeaseTime, LockInfo, MemoryBackend,
    OwnerId, Proposal, ProposalAnswer, Release, ReleaseOptions, Tombstone, Voter,
};
use distlock::time::{ManualClock, Moment};
use distlock::{FencingToken, LockName};
use distlock_model::node::{Answer, Request};
use std::sync::Arc;
use std::time::Duration;

/// One node in memory.
pub(super) struct InMemory {
    store: MemoryBackend,
    client: ClientId,
    name: LockName,
}

impl InMemory {
    pub(super) fn new() -> Self {
        let store = MemoryBackend::new(Arc::new(ManualClock::new()));
        Self {
            store,
            client: ClientId::random(),
            name: LockName::new(LOCK).unwrap(),
        }
    }

    fn lease() -> LeaseTime {
        LeaseTime::new(Duration::from_secs(60)).unwrap()
    }

    fn propose(&self, owner: u8, first: u8, last: u8) -> Answer {
        let owner = OwnerId::new(self.client, owner.into());
        let (first, reserve) = (FencingToken::new(first.into()), u32::from(last - first));
        let attempt = Attempt::new(&self.name, owner, Self::lease());
        let proposal = Proposal::new(first, reserve);
        match self
            .store
            .propose(&attempt, proposal, Moment::NEVER)
            .unwrap()
        {
            ProposalAnswer::Answer(Said::Granted(_)) => Answer::Granted,
            ProposalAnswer::Answer(Said::Busy(_)) => Answer::Busy,
            ProposalAnswer::Stale(token) => Answer::Stale(u8::try_from(token.get()).unwrap()),
            other => panic!("{other:?}"),
        }
    }

    fn close(&self, owner: u8, used: Option<u8>, doubt: Tombstone) -> Answer {
        let owner = OwnerId::new(self.client, owner.into());
        let acquisition =
            AcquisitionId::new(self.name.clone(), owner, Self::lease(), Default::default());
        let mut closing = if doubt == Tombstone::None {
            ReleaseOptions::WITHOUT_TOMBSTONE
        } else {
            ReleaseOptions::WITH_TOMBSTONE
        };
        if let Some(used) = used {
            closing = closing.last_used(FencingToken::new(used.into()));
        }
        match self
            .store
            .release(&acquisition, closing, Moment::NEVER)
            .unwrap()
        {
            Release::Gone => Answer::Gone,
            _ => Answer::Freed,
        }
    }
}

impl Real for InMemory {
    fn begin(&mut self, counter: u8, _: bool) {
        *self = Self::new();
        if counter > 0 {
            assert_eq!(self.propose(9, counter, counter), Answer::Granted);
            self.close(9, None, Tombstone::None);
        }
    }

    fn ask(&mut self, request: Request) -> Answer {
        match request {
            Request::Propose {
                owner, first, last, ..
            } => self.propose(owner, first, last),
            Request::Close {
                owner,
                tokens,
                tombstone,
            } => {
                let doubt = if tombstone {
                    Tombstone::Leave
                } else {
                    Tombstone::None
                };
                self.close(owner, tokens.map(|(used, _end)| used), doubt)
            }
            other => panic!("it is never asked {other:?}"),
        }
    }

    fn let_go(&mut self) {
        self.store.lose(&self.name);
    }

    fn tick(&mut self, _: u8) {
        panic!("its clock stands still");
    }

    fn restart(&mut self) {
        panic!("it is never started again");
    }

    fn save(&mut self) {
        panic!("it saves nothing");
    }

    fn holder(&mut self) -> Option<u8> {
        let LockInfo { holder, .. } = self.store.inspect(&self.name, Moment::NEVER).unwrap();
        holder.map(|it| {
            it.owner
                .as_str()
                .rsplit(':')
                .next()
                .unwrap()
                .parse()
                .unwrap()
        })
    }

    fn counter(&mut self) -> Option<Option<u8>> {
        // If the lock is free, the store refuses a proposal of token 0 with the stored token.
        match self.propose(8, 0, 0) {
            Answer::Stale(token) => Some((token > 0).then_some(token)),
            _ => None,
        }
    }
}
