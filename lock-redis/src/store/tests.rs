//! Requests through a topology whose verdicts are scripted.

use super::*;
use crate::node::{Node, WatchRegistry};
use crate::topology::JudgeSubmitted;
use lock_core::backend::Receipt;
use lock_core::{ClientId, Clock, OwnerId, SystemClock};
use parking_lot::Mutex;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

/// A topology that gives these verdicts in turn. Each node's number is one more than the last.
#[derive(Debug)]
struct Scripted {
    node: Node,
    verdicts: Mutex<Vec<Verdict>>,
}

fn scripted(verdicts: Vec<Verdict>) -> Arc<Scripted> {
    let (config, context) = configured("redis://127.0.0.1:1");
    let format = Format::of(&config).unwrap();
    scripted_in(format, &config, &context, verdicts)
}

fn configured(url: &str) -> (Config, Context) {
    let context = Context::new(Arc::new(SystemClock), ClientId::random());
    (Config::from_url(url).unwrap(), context)
}

fn scripted_in(
    format: Format,
    config: &Config,
    context: &Context,
    verdicts: Vec<Verdict>,
) -> Arc<Scripted> {
    let store = RedisStore::standalone(config, context, format).unwrap();
    Arc::new(Scripted {
        node: Node::clone(store.topology()),
        verdicts: Mutex::new(verdicts),
    })
}

/// A store in a format that does not say who holds a lock, on the server of this port.
fn classic(port: u16, verdicts: Vec<Verdict>) -> RedisStore<Scripted> {
    let (config, context) = configured(&format!("redis://127.0.0.1:{port}?format=plain"));
    let (format, rules) = ClassicRules::read(&config, &context, None)
        .unwrap()
        .unwrap();
    let topology = scripted_in(format, &config, &context, verdicts);
    RedisStore::with_topology(topology).with_rules(rules)
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
        Some(self.hop(1))
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
        let verdict = self.verdicts.lock().remove(0);
        Some(Box::new(|_| verdict))
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

/// Sends a request. Every node answers with its number, or with `failure`.
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

#[test]
fn failed_submitted_release_is_settled_and_names_the_lock() {
    let topology = scripted(vec![Verdict::Instead(unknown())]);
    let (sender, outcomes) = std::sync::mpsc::channel();
    RedisStore::with_topology(topology).submit_release(
        &acquisition(Receipt::default()),
        ReleaseOptions::WITHOUT_TOMBSTONE,
        SystemClock.now() + Duration::from_secs(10),
        Box::new(move |outcome| sender.send(outcome).unwrap()),
    );
    let outcome = outcomes.recv_timeout(Duration::from_secs(30)).unwrap();
    let failure = outcome.unwrap_err();
    assert!(matches!(failure, Failure::Refused(_)), "{failure:?}");
    assert!(
        failure.error().to_string().contains("lock \"a\""),
        "{failure:?}"
    );
}

/// Redirects from two nodes to one can put the parts of a batch into another order.
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

fn acquisition(receipt: Receipt) -> AcquisitionId {
    let owner = OwnerId::new(ClientId::random(), 1);
    AcquisitionId::new(LockName::new("a").unwrap(), owner, lease(), receipt)
}

fn lease() -> LeaseTime {
    LeaseTime::new(Duration::from_secs(10)).unwrap()
}

/// A request that was sent would fail the test, because there is no verdict and no server.
#[test]
fn format_without_holder_sends_no_renewal_nor_verification() {
    let store = classic(1, Vec::new());
    let held = acquisition(Receipt::default());
    let batch = [held.clone(), held.clone()].map(RenewalRequest::new);
    let renewals = store.renew(NodeId::new(0), &batch, Moment::NEVER);
    assert_eq!(renewals.len(), 2);
    for renewal in renewals {
        assert!(renewal.unwrap_err().error().is_unsupported());
    }
    let verified = store.verify(&held, Moment::NEVER);
    assert!(verified.unwrap_err().error().is_unsupported());
}

/// The rules answer `Gone` for a lock that they did not grant, without a request.
#[test]
fn submitted_release_of_such_a_format_is_answered_by_the_rules() {
    let (store, outcomes) = (classic(1, Vec::new()), Arc::new(Mutex::new(Vec::new())));
    let noted = Arc::clone(&outcomes);
    store.submit_release(
        &acquisition(Receipt::default()),
        ReleaseOptions::WITHOUT_TOMBSTONE,
        Moment::NEVER,
        Box::new(move |outcome| noted.lock().push(outcome)),
    );
    let outcomes = std::mem::take(&mut *outcomes.lock());
    assert!(matches!(outcomes[..], [Ok(Release::Gone)]), "{outcomes:?}");
}

#[test]
fn lease_of_such_a_format_is_shorter_by_the_lead_of_a_replica() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || grant(&stream.unwrap()));
        }
    });
    let store = classic(port, vec![Verdict::Believe, Verdict::Believe]);
    let (name, owner) = (
        LockName::new("a").unwrap(),
        OwnerId::new(ClientId::random(), 1),
    );
    let attempt = Attempt::new(&name, owner, lease());
    let acquire = || store.acquire(&attempt, SystemClock.now() + Duration::from_secs(10));
    let granted = acquire();
    assert!(matches!(granted, Ok(Answer::Granted(_))), "{granted:?}");
    store.topology().node.set_replica_lead(lease().duration());
    let granted = acquire();
    assert!(matches!(granted, Err(Failure::Final(_))), "{granted:?}");
}

/// Answers the requests of a connection as a server that grants every lock.
fn grant(stream: &TcpStream) -> Option<()> {
    let mut lines = BufReader::new(stream);
    let number = |lines: &mut BufReader<_>| {
        let mut line = String::new();
        lines.read_line(&mut line).ok()?;
        line.trim().get(1..)?.parse::<usize>().ok()
    };
    loop {
        let mut words = Vec::new();
        for _ in 0..number(&mut lines)? {
            let mut word = vec![0; number(&mut lines)? + 2];
            lines.read_exact(&mut word).ok()?;
            words.push(word);
        }
        let info = format!("role:master\r\nrun_id:{}\r\n", "a".repeat(40));
        let reply = match words[0].trim_ascii() {
            b"CLIENT" | b"SET" => "+OK\r\n".to_owned(),
            b"INFO" => format!("${}\r\n{info}\r\n", info.len()),
            _ => "-ERR unknown command\r\n".to_owned(),
        };
        (&*stream).write_all(reply.as_bytes()).ok()?;
    }
}
