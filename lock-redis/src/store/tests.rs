//! The way of requests through a topology that is written down.

use super::*;
use crate::node::{Node, WatchRegistry};
use crate::topology::JudgeSubmitted;
use lock_core::{ClientId, SystemClock};
use parking_lot::Mutex;

/// A topology that gives these verdicts, one after the other, and counts the nodes.
#[derive(Debug)]
struct Scripted {
    node: Node,
    verdicts: Mutex<Vec<Verdict>>,
}

fn scripted(verdicts: Vec<Verdict>) -> Arc<Scripted> {
    let context = Context::new(Arc::new(SystemClock), ClientId::random());
    let config = Config::from_url("redis://127.0.0.1:1").unwrap();
    let format = Format::of(&config).unwrap();
    let store = RedisStore::standalone(&config, &context, format).unwrap();
    Arc::new(Scripted {
        node: Node::clone(store.topology()),
        verdicts: Mutex::new(verdicts),
    })
}

impl Scripted {
    fn hop(&self, number: u64) -> Hop<()> {
        Hop {
            node: self.node.clone(),
            number,
            state: (),
        }
    }
}

impl Topology for Scripted {
    type RouteState = ();

    const IS_SPREAD: bool = true;

    fn abilities(&self) -> Abilities {
        Abilities::full()
    }

    fn known(&self, _: &LockName) -> Option<Hop<()>> {
        None
    }

    fn renewal_node(&self, _: &LockName) -> NodeId {
        NodeId::new(0)
    }

    fn route(self: &Arc<Self>, _: &RoutedRequest<'_>, _: Moment) -> Result<Hop<()>, Failure> {
        Ok(self.hop(1))
    }

    fn judge(&self, _: &RoutedRequest<'_>, _: &Hop<()>, _: Result<Effect, &Failure>) -> Verdict {
        self.verdicts.lock().remove(0)
    }

    fn judge_submitted(self: &Arc<Self>, _: &Hop<()>, _: &AcquisitionId) -> Option<JudgeSubmitted> {
        None
    }

    fn reroute(
        self: &Arc<Self>,
        _: &RoutedRequest<'_>,
        hop: Hop<()>,
        failure: Option<Failure>,
        _: Moment,
    ) -> Result<Hop<()>, Failure> {
        match failure {
            Some(failure @ Failure::Final(_)) => Err(failure),
            _ => Ok(self.hop(hop.number + 1)),
        }
    }

    fn settle(failure: Failure) -> Failure {
        Failure::Refused(failure.into_error())
    }

    fn watches(&self) -> Option<&WatchRegistry> {
        None
    }

    fn diagnose(self: &Arc<Self>, _: Moment) -> Result<Vec<Finding>, Failure> {
        Ok(Vec::new())
    }
}

/// Sends a request that every node answers with its number, or with `failure`.
fn sent(verdicts: Vec<Verdict>, failure: Option<Failure>) -> Result<u64, Failure> {
    let (topology, name) = (scripted(verdicts), LockName::new("a").unwrap());
    let request = RoutedRequest::Change(&name);
    let first = topology.route(&request, Moment::NEVER);
    let attempt = |hop: &Hop<()>| failure.clone().map_or(Ok(hop.number), Err);
    let none = |_: &u64| Effect::None;
    send(&topology, &request, Moment::NEVER, first, attempt, none)
}

fn unknown() -> Failure {
    Failure::Unknown(Error::unavailable("no answer"))
}

#[test]
fn request_is_sent_on_until_an_outcome_is_believed() {
    let again = || Verdict::Reroute;
    assert_eq!(sent(vec![Verdict::Believe], None).unwrap(), 1);
    let outcome = sent(vec![again(), again(), Verdict::Believe], None);
    assert_eq!(outcome.unwrap(), 3);
}

#[test]
fn failure_is_settled_and_names_the_lock() {
    let final_failure = Failure::Final(Error::unavailable("no way"));
    for (verdict, failure) in [
        (Verdict::Believe, Some(unknown())),
        (Verdict::Instead(unknown()), None),
        (Verdict::Reroute, Some(final_failure)),
    ] {
        let failure = sent(vec![verdict], failure).unwrap_err();
        assert!(matches!(failure, Failure::Refused(_)), "{failure:?}");
        assert!(
            failure.error().to_string().contains("lock \"a\""),
            "{failure:?}"
        );
    }
}

/// Redirected from two nodes to one, the parts of a batch arrive in another order.
#[test]
fn group_in_another_order_is_not_the_whole_batch() {
    let topology = scripted(Vec::new());
    let group = |places: &[usize]| {
        let mut groups = Vec::new();
        for place in places {
            add(&mut groups, *place, topology.hop(1));
        }
        groups.pop().unwrap()
    };
    assert!(group(&[0, 1, 2]).is_whole(3));
    assert!(!group(&[0, 2, 1]).is_whole(3));
    assert!(!group(&[0, 1]).is_whole(3));
}
