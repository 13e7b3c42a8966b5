//! Stores with replicas of their own: some must confirm what is granted, and a case may hold them back.

use super::formats::{BARE_TOKEN, Format, TOKEN};
use super::subjects::{lose, seen};
use crate::harness::cluster::Cluster;
use crate::harness::probe::Probe;
use crate::harness::process::RedisServer;
use crate::harness::replicas::Replicated;
use crate::harness::sentinel::Group;
use distlock::{Backend, ClientBuilder, Config, Context, LockName, builder, schemes};
use lock_core::conformance::{
    NEEDS_A_LIST_OF_REPLICAS, NEEDS_REPLICAS, ReplicaSet, Seen, Subject, run_case,
};
use std::sync::Arc;
use std::thread;

/// A master and two replicas, under a policy.
pub(crate) struct ReplicatedSubject {
    servers: Replicated,
    url: String,
    /// How its locks are read.
    seen: fn(Probe, &str) -> Seen,
    cannot: Vec<(&'static str, &'static str)>,
}

impl ReplicatedSubject {
    /// So many of the two replicas must confirm every lock.
    pub(crate) fn under(replicas: u32) -> Self {
        let servers = Replicated::start(2);
        let url = servers.url(&format!("replicas={replicas}"));
        Self { servers, url, seen, cannot: NEEDS_A_LIST_OF_REPLICAS.to_vec() }
    }

    /// One of them must, and locks are of this format.
    fn of(format: Format) -> Self {
        let servers = Replicated::start(2);
        let url = servers.url(&format!("replicas=1&{}", format.options));
        let mut cannot = NEEDS_A_LIST_OF_REPLICAS.to_vec();
        cannot.extend((format.cannot)().into_iter().filter(|case| !NEEDS_REPLICAS.contains(case)));
        Self { servers, url, seen: format.seen, cannot }
    }
}

impl Subject for ReplicatedSubject {
    fn name(&self) -> String {
        "redis with two replicas".to_owned()
    }

    fn backend(&self, context: &Context) -> Arc<dyn Backend> {
        open(&self.url, context)
    }

    fn client(&self, context: &Context) -> ClientBuilder {
        builder().clock(Arc::clone(&context.clock)).url(&self.url).unwrap()
    }

    fn probe(&self, lock: &LockName) -> Seen {
        (self.seen)(self.servers.master.probe(), lock.as_str())
    }

    fn lose(&self, lock: &LockName) {
        lose(self.servers.master.probe(), lock.as_str());
    }

    fn replicas(&self) -> Option<&dyn ReplicaSet> {
        Some(self)
    }

    fn cannot(&self) -> &[(&str, &str)] {
        &self.cannot
    }
}

impl ReplicaSet for ReplicatedSubject {
    fn count(&self) -> u32 {
        u32::try_from(self.servers.replicas.len()).unwrap()
    }

    fn hold_back(&self, replicas: u32) {
        pause_first(&self.servers.replicas, replicas);
    }

    fn probe(&self, replica: u32, lock: &LockName) -> Seen {
        (self.seen)(self.servers.replicas[replica as usize].probe(), lock.as_str())
    }
}

/// The same with sentinels, which list the replicas. Its cases are sat one after the other.
struct ListedSubject(Arc<Group>);

impl Subject for ListedSubject {
    fn name(&self) -> String {
        "sentinel".to_owned()
    }

    fn backend(&self, context: &Context) -> Arc<dyn Backend> {
        open(&self.0.url(), context)
    }

    fn client(&self, context: &Context) -> ClientBuilder {
        builder().clock(Arc::clone(&context.clock)).url(&self.0.url()).unwrap()
    }

    fn probe(&self, lock: &LockName) -> Seen {
        seen(self.0.servers[0].probe(), lock.as_str())
    }

    fn lose(&self, lock: &LockName) {
        lose(self.0.servers[0].probe(), lock.as_str());
    }

    fn replicas(&self) -> Option<&dyn ReplicaSet> {
        Some(self)
    }
}

impl ReplicaSet for ListedSubject {
    fn count(&self) -> u32 {
        u32::try_from(self.0.servers.len() - 1).unwrap()
    }

    fn hold_back(&self, replicas: u32) {
        pause_first(&self.0.servers[1..], replicas);
    }

    fn probe(&self, replica: u32, lock: &LockName) -> Seen {
        seen(self.0.servers[1 + replica as usize].probe(), lock.as_str())
    }
}

/// A cluster of its own, with one replica to each master. Its cases are sat one after the other.
struct ClusterReplicas(Arc<Cluster>);

impl ClusterReplicas {
    /// The master of this lock, and its replica: nobody takes anybody's place here.
    fn places(&self, lock: &LockName) -> (usize, usize) {
        let master = self.0.owner_of(lock.as_str());
        (master, master + self.0.len() / 2)
    }
}

impl Subject for ClusterReplicas {
    fn name(&self) -> String {
        "cluster".to_owned()
    }

    fn backend(&self, context: &Context) -> Arc<dyn Backend> {
        open(&self.0.url(), context)
    }

    fn client(&self, context: &Context) -> ClientBuilder {
        builder().clock(Arc::clone(&context.clock)).url(&self.0.url()).unwrap()
    }

    fn probe(&self, lock: &LockName) -> Seen {
        seen(self.0.node(self.places(lock).0).probe(), lock.as_str())
    }

    fn lose(&self, lock: &LockName) {
        lose(self.0.node(self.places(lock).0).probe(), lock.as_str());
    }

    fn replicas(&self) -> Option<&dyn ReplicaSet> {
        Some(self)
    }
}

impl ReplicaSet for ClusterReplicas {
    fn count(&self) -> u32 {
        1
    }

    /// Those of all masters: who asks does not say for which lock.
    fn hold_back(&self, replicas: u32) {
        for number in self.0.len() / 2..self.0.len() {
            let replica = self.0.node(number);
            if replicas > 0 { replica.pause() } else { replica.resume() }
        }
    }

    fn probe(&self, _: u32, lock: &LockName) -> Seen {
        let mut probe = self.0.node(self.places(lock).1).probe();
        assert_eq!(probe.command(&["READONLY"]).text(), "OK");
        seen(probe, lock.as_str())
    }
}

fn open(url: &str, context: &Context) -> Arc<dyn Backend> {
    schemes().open(&Config::from_url(url).unwrap(), context).unwrap()
}

/// A replica that is stopped stays connected, and the master counts it as one that is there.
fn pause_first(replicas: &[RedisServer], count: u32) {
    for (number, replica) in replicas.iter().enumerate() {
        if number < count as usize { replica.pause() } else { replica.resume() }
    }
}

/// What is asked of replicas, of what most others write: with our tokens beside it, and by one plain command.
#[test]
fn replicas_confirm_locks_of_the_format_token_as_the_exam_asks() {
    for format in [TOKEN, BARE_TOKEN] {
        thread::scope(|scope| {
            for (case, _) in NEEDS_REPLICAS {
                let sits = move || run_case(case, ReplicatedSubject::of(format));
                let named = thread::Builder::new().name((*case).to_owned());
                named.spawn_scoped(scope, sits).unwrap();
            }
        });
    }
}

/// What is left out where all cases share one group.
#[test]
fn replicas_that_sentinels_list_confirm_and_are_told_as_the_exam_asks() {
    let group = Arc::new(Group::steady());
    for (case, _) in NEEDS_REPLICAS {
        run_case(case, ListedSubject(Arc::clone(&group)));
    }
}

/// The same for a cluster: a replica that is silent for a while stays listed.
#[test]
fn replicas_that_a_cluster_lists_confirm_and_are_told_as_the_exam_asks() {
    let cluster = Arc::new(Cluster::start_with(&["--cluster-node-timeout", "60000"]));
    for (case, _) in NEEDS_REPLICAS {
        run_case(case, ClusterReplicas(Arc::clone(&cluster)));
    }
}
