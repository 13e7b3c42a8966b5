//! [`SentinelInstance`]: one sentinel, and its reports about a master.

use super::answers::Answers;
use super::report::{MasterReport, SentinelReply};
use super::watcher_signal::WatcherSignal;
use crate::connection::{
    Address, AddressMap, BorrowedConnection, Connection, ConnectionLike, Dialer, PoolSlot, Reply,
    Request, ServerError,
};
use crate::node::Account;
use crate::wakeups::{ChannelKind, Subscriber, Tracking};
use lock_core::backend::{Failure, Watch};
use lock_core::{Error, Moment};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// One sentinel.
pub(super) struct SentinelInstance {
    pub(super) address: Address,
    /// True if the URL contains the sentinel.
    pub(super) is_given: bool,
    dialer: Arc<Dialer>,
    addresses: Arc<AddressMap>,
    /// The connection for queries; locked while a query is under way.
    slot: Mutex<PoolSlot>,
    /// The sentinel's ID, because one sentinel may be known by several addresses.
    id: Mutex<Option<String>>,
    pub(super) answers: Arc<Answers>,
    subscriber: Subscriber,
    /// The watches on the sentinel's channels. Empty before `listen` is called.
    watches: Mutex<Vec<Watch>>,
}

/// The channel on which a sentinel announces a new master.
const SWITCH: &str = "+switch-master";

/// The channels of a sentinel that a client subscribes to: messages about a new master, new
/// replicas and sentinels, and servers that went down, came back or were restarted.
const CHANNELS: [&str; 7] = [
    SWITCH,
    "+sdown",
    "-sdown",
    "+slave",
    "+sentinel",
    "-odown",
    "+reboot",
];

impl SentinelInstance {
    pub(super) fn new(
        address: Address,
        is_given: bool,
        dialer: Dialer,
        addresses: Arc<AddressMap>,
    ) -> Self {
        let dialer = Arc::new(dialer);
        Self {
            address,
            is_given,
            addresses,
            slot: Mutex::default(),
            id: Mutex::new(None),
            answers: Arc::default(),
            subscriber: Subscriber::new(Arc::clone(&dialer), Tracking::Off),
            watches: Mutex::default(),
            dialer,
        }
    }

    /// Subscribes to the sentinel's messages. The watcher is also woken after each new connection,
    /// because messages may have been missed.
    pub(super) fn listen(&self, master: &str, signal_to_watcher: &Arc<WatcherSignal>) {
        let mut watches = self.watches.lock();
        if watches.is_empty() {
            let (answers, signal) = (Arc::clone(&self.answers), Arc::clone(signal_to_watcher));
            let (master, clock) = (master.to_owned(), Arc::clone(self.dialer.clock()));
            self.subscriber.on_message(Arc::new(move |channel, text| {
                if let Some(new) = switched_to(channel, text, &master) {
                    answers.announce(new, clock.now());
                    signal.note_announcement();
                }
            }));
            // If the thread cannot be started, no messages arrive. Then a failover is noticed by
            // failed requests.
            let follow = |channel| {
                self.subscriber
                    .follow(
                        ChannelKind::Plain,
                        channel,
                        Arc::clone(signal_to_watcher) as _,
                    )
                    .ok()
            };
            watches.extend(CHANNELS.into_iter().filter_map(follow));
        }
    }

    /// Ends the connections to the sentinel, and prevents new ones.
    pub(super) fn close(&self) {
        self.dialer.retire();
    }

    pub(super) fn id(&self) -> Option<String> {
        self.id.lock().clone()
    }

    /// Queries the sentinel about the master of this name, for at most `bound` each time, until no
    /// further query is pending. Calls `answered` after each query. Must be called only after
    /// [`Answers::begin`] has returned true.
    pub(super) fn ask(&self, master: &str, bound: Duration, answered: impl Fn()) {
        loop {
            let asked = self.dialer.clock().now();
            let reply = self.ask_once(master, asked, asked + bound);
            let goes_on = self.answers.note(reply, self.dialer.clock().now());
            answered();
            if !goes_on {
                return;
            }
        }
    }

    fn ask_once(&self, master: &str, asked: Moment, by: Moment) -> SentinelReply {
        let link = BorrowedConnection::new(Box::new(self.slot.lock()), &self.dialer, by);
        let said = link.and_then(|mut link| self.question(&mut link, master, asked, by));
        said.unwrap_or_else(|failure| SentinelReply::Failed(self.explain(failure)))
    }

    fn question(
        &self,
        link: &mut Connection,
        master: &str,
        asked: Moment,
        by: Moment,
    ) -> Result<SentinelReply, Failure> {
        const SENTINEL: &[u8] = b"SENTINEL";
        let name = master.as_bytes();
        // The epoch is queried before the address. So if a failover happens in between, the report
        // has the new master's address with the old epoch. It counts as an older report, and the
        // next query corrects it.
        let questions: [&[&[u8]]; 5] = [
            &[SENTINEL, b"MASTER", name],
            &[SENTINEL, b"GET-MASTER-ADDR-BY-NAME", name],
            &[SENTINEL, b"REPLICAS", name],
            &[SENTINEL, b"SENTINELS", name],
            &[SENTINEL, b"MYID"],
        ];
        let questions = questions.each_ref().map(std::slice::from_ref);
        let (replies, outcome) = link.call_many(&questions.map(Request), by);
        if let Some(Reply::Error(error)) = replies.first() {
            return self.refused(link, error, by);
        }
        outcome?;
        let [about, address, replicas, others, id] = &replies[..] else {
            return Err(self.nonsense(link));
        };
        *self.id.lock() = text(id).map(str::to_owned);
        let about = fields(about);
        let epoch = about
            .get("config-epoch")
            .and_then(|epoch| epoch.parse().ok());
        let account = Account {
            asked_at: self.address.clone(),
            // A sentinel that may not be queried for its ID is identified by its address.
            id: self.id().unwrap_or_else(|| self.address.to_string()),
            listed: each(others)
                .filter_map(|fields| other(&fields))
                .map(|(id, announced)| (id, self.addresses.real(&announced)))
                .collect(),
        };
        match (epoch, master_address(address)) {
            (Some(epoch), Some(master)) => {
                Ok(SentinelReply::MasterReport(Box::new(MasterReport {
                    quorum: about.get("quorum").and_then(|quorum| quorum.parse().ok()),
                    down_after: about
                        .get("down-after-milliseconds")
                        .and_then(|millis| millis.parse().ok().map(Duration::from_millis)),
                    replicas_down: each(replicas)
                        .filter_map(|fields| down_replica(&fields))
                        .collect(),
                    run_id: run_id(&about, &master),
                    master,
                    epoch,
                    asked,
                    replicas: each(replicas)
                        .filter_map(|fields| replica(&fields))
                        .collect(),
                    replica_ids: replicas
                        .as_array()
                        .map(|it| it.iter().filter_map(|it| replica_id(&fields(it))).collect()),
                    has_unheard: each(replicas).any(|fields| is_unheard(&fields)),
                    account,
                })))
            }
            _ => Err(self.nonsense(link)),
        }
    }

    fn refused(
        &self,
        link: &mut Connection,
        error: &ServerError,
        by: Moment,
    ) -> Result<SentinelReply, Failure> {
        if !error.detail.starts_with("No such master") {
            let message = format!("{} refused", self.dialer.server());
            return Err(Failure::Refused(
                Error::unavailable(message).with_source(error.clone()),
            ));
        }
        let masters = link.call(&Request(&[&[b"SENTINEL", b"MASTERS"]]), by);
        let names = masters.map(|masters| {
            each(&masters)
                .filter_map(|mut fields| fields.remove("name"))
                .collect::<Vec<_>>()
        });
        // The user may lack the right to list the masters.
        Ok(SentinelReply::Unknown(names.unwrap_or_default()))
    }

    fn nonsense(&self, link: &mut Connection) -> Failure {
        link.close();
        Failure::Unknown(self.dialer.server().garbage("not what a sentinel says"))
    }

    /// Replaces a failure with a known cause by one that names the cause and the remedy.
    fn explain(&self, failure: Failure) -> Failure {
        let (answer, server) = (ServerError::behind(failure.error()), self.dialer.server());
        let Some(answer) = answer else { return failure };
        let message = match answer.code.as_str() {
            "NOAUTH" => format!(
                "{server}, a sentinel, asks for a password: give it as `sentinel_password=..`, it \
                 has nothing to do with the servers' in the URL"
            ),
            "WRONGPASS" => format!(
                "{server}, a sentinel, does not accept the password of the user `{}`: check \
                 `sentinel_user` and `sentinel_password`",
                server.user()
            ),
            "NOPERM" => format!(
                "the user `{0}` may not ask {server}, a sentinel: allow it with `ACL SETUSER {0} \
                 +sentinel +subscribe &*` there",
                server.user()
            ),
            "ERR" if answer.detail.contains("without any password configured") => format!(
                "{server}, a sentinel, has no password, and `sentinel_password` gives one: leave \
                 that out"
            ),
            "ERR" if answer.detail.starts_with("unknown command") => format!(
                "{server} is no Sentinel: if it is a Redis server on its own, the URL is `{}`; \
                 Sentinels listen on 26379 where nothing else is said",
                server.url("redis")
            ),
            _ => return failure,
        };
        Failure::Refused(Error::configuration(message).with_source(answer.clone()))
    }
}

/// Parses the host and the port of a server.
fn named(host: Option<&str>, port: Option<&str>) -> Option<Address> {
    let host = host.filter(|host| !host.is_empty())?;
    let port = port?.parse().ok().filter(|port| *port != 0)?;
    Some(Address::new(host, port))
}

/// Returns the new master that a message on this channel names, if the message is about the master
/// of this name: `NAME OLD-IP OLD-PORT NEW-IP NEW-PORT`.
fn switched_to(channel: &str, text: &str, master: &str) -> Option<Address> {
    let mut words = text
        .strip_prefix(master)?
        .strip_prefix(' ')?
        .split(' ')
        .skip(2);
    let new = named(words.next(), words.next())?;
    (channel == SWITCH && words.next().is_none()).then_some(new)
}

fn text(reply: &Reply) -> Option<&str> {
    reply
        .as_bytes()
        .and_then(|bytes| std::str::from_utf8(bytes).ok())
}

/// Returns the names and values of the fields of one instance in a sentinel's reply.
fn fields(reply: &Reply) -> HashMap<&str, String> {
    let words = reply.as_array().unwrap_or_default();
    words
        .chunks_exact(2)
        .filter_map(|pair| Some((text(&pair[0])?, text(&pair[1])?.to_owned())))
        .collect()
}

/// Returns the fields of each instance in a sentinel's reply; see [`fields`].
fn each(reply: &Reply) -> impl Iterator<Item = HashMap<&str, String>> {
    reply.as_array().unwrap_or_default().iter().map(fields)
}

fn master_address(reply: &Reply) -> Option<Address> {
    let [host, port] = reply.as_array()? else {
        return None;
    };
    named(text(host), text(port))
}

/// Returns the address of a replica that the sentinel does not consider down. A replica that is
/// unreachable for a moment still counts, because it may return and be promoted. A replica whose
/// master the sentinel has not learned yet does not count: after a failover the sentinel lists the
/// old master as a replica, running or not.
fn replica(fields: &HashMap<&str, String>) -> Option<Address> {
    let field = |name| fields.get(name).map(String::as_str);
    let is_down = is_down(fields)?;
    let was_heard = field("master-host") != Some("?");
    named(field("ip"), field("port")).filter(|_| was_heard && !is_down)
}

/// Returns the address and the `run_id` of a listed replica, unless the server reports another
/// role: a master at a replica's address is another server, or was just promoted.
fn replica_id(fields: &HashMap<&str, String>) -> Option<(Address, String)> {
    let field = |name| fields.get(name).map(String::as_str);
    let id = field("runid").filter(|id| !id.is_empty())?;
    let is_replica = field("role-reported").is_none_or(|role| role == "slave");
    let address = named(field("ip"), field("port")).filter(|_| is_replica)?;
    Some((address, id.to_owned()))
}

fn is_unheard(fields: &HashMap<&str, String>) -> bool {
    fields.get("runid").is_some_and(String::is_empty) && is_down(fields) == Some(false)
}

/// Returns the address of a replica that the sentinel considers down.
fn down_replica(fields: &HashMap<&str, String>) -> Option<String> {
    let field = |name| fields.get(name).map(String::as_str);
    let address = named(field("ip"), field("port"))?;
    is_down(fields)?.then(|| address.to_string())
}

fn is_down(fields: &HashMap<&str, String>) -> Option<bool> {
    let mut flags = fields.get("flags")?.split(',');
    Some(flags.any(|flag| matches!(flag, "s_down" | "o_down")))
}

fn other(fields: &HashMap<&str, String>) -> Option<(String, Address)> {
    let field = |name| fields.get(name).map(String::as_str);
    Some((
        field("runid")?.to_owned(),
        named(field("ip"), field("port"))?,
    ))
}

/// Returns the `run_id` of the master at this address; `None` if the fields are about another
/// server, as during a failover, when they still describe the former master.
fn run_id(about: &HashMap<&str, String>, master: &Address) -> Option<String> {
    let field = |name| about.get(name).map(String::as_str);
    let is_of_it = named(field("ip"), field("port")).is_some_and(|address| address == *master);
    field("runid")
        .filter(|id| is_of_it && !id.is_empty())
        .map(str::to_owned)
}
