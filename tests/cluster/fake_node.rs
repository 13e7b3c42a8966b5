//! [`FakeNode`]: a node whose answers about its cluster are set by the test.

use crate::scene::client_with;
use distlock::Client;
use distlock_tests::process::RedisServer;
use distlock_tests::resp::{Request, read_reply};
use distlock_tests::rights::LOGIN;
use parking_lot::{Mutex, RwLock, RwLockWriteGuard};
use std::io::{self, BufReader, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

/// A node as a slot map lists it.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) id: &'static str,
    pub(crate) port: u16,
    pub(crate) role: &'static str,
    pub(crate) health: &'static str,
}

/// Returns a master that is online.
pub(crate) fn master(id: &'static str, port: u16) -> Member {
    Member {
        id,
        port,
        role: "master",
        health: "online",
    }
}

/// Returns a replica that is online.
pub(crate) fn replica(id: &'static str, port: u16) -> Member {
    Member {
        id,
        port,
        role: "replica",
        health: "online",
    }
}

/// Ranges of slots (each the first and the last one), and their nodes, the master first.
pub(crate) type Shard = (Vec<[u16; 2]>, Vec<Member>);

/// Returns the shards of three masters with a third of the slots each, and these replicas of the
/// first master.
pub(crate) fn thirds(masters: [Member; 3], replicas: Vec<Member>) -> Vec<Shard> {
    let [first, second, third] = masters;
    let thirds = [[0, 5_460], [5_461, 10_922], [10_923, 16_383]].map(|slots| vec![slots]);
    let nodes = [[vec![first], replicas].concat(), vec![second], vec![third]];
    thirds.into_iter().zip(nodes).collect()
}

/// What a node answers about its cluster.
#[derive(Clone, Debug)]
pub(crate) struct Word {
    pub(crate) id: &'static str,
    pub(crate) epoch: u64,
    pub(crate) is_up: bool,
    /// The answer to `CLUSTER SHARDS`.
    pub(crate) shards: Vec<Shard>,
    /// The answer to `CLUSTER SLOTS`.
    pub(crate) slots: Vec<Shard>,
}

impl Word {
    pub(crate) fn new(id: &'static str, epoch: u64, shards: &[Shard]) -> Self {
        let slots = shards
            .iter()
            .filter(|(slots, _)| !slots.is_empty())
            .cloned()
            .collect();
        Self {
            id,
            epoch,
            is_up: true,
            shards: shards.to_vec(),
            slots,
        }
    }
}

/// A node that answers `CLUSTER` commands itself, and passes all other commands to one server. It
/// serves until the test process ends.
pub(crate) struct FakeNode {
    port: u16,
    inner: Arc<Inner>,
}

struct Inner {
    server: u16,
    word: Mutex<Option<Word>>,
    /// While the test holds the write lock, no request is answered.
    answers: RwLock<()>,
    open: Mutex<Vec<TcpStream>>,
    /// The number of `CLUSTER SHARDS` requests so far.
    questions: AtomicU32,
}

impl FakeNode {
    /// Starts a node in front of this server. Until the first [`Self::say`] it passes `CLUSTER`
    /// commands to the server, too.
    pub(crate) fn before(server: &RedisServer) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let inner = Arc::new(Inner {
            server: server.port(),
            word: Mutex::default(),
            answers: RwLock::default(),
            open: Mutex::default(),
            questions: AtomicU32::new(0),
        });
        let serving = Arc::clone(&inner);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let serving = Arc::clone(&serving);
                thread::spawn(move || serving.serve(&stream));
            }
        });
        Self { port, inner }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Gives these answers from now on. Open connections are cut, so that clients connect again.
    pub(crate) fn say(&self, word: Word) {
        *self.inner.word.lock() = Some(word);
        for stream in self.inner.open.lock().drain(..) {
            let _closed = stream.shutdown(Shutdown::Both);
        }
    }

    /// Answers no request until the returned guard is dropped.
    pub(crate) fn hang(&self) -> RwLockWriteGuard<'_, ()> {
        self.inner.answers.write()
    }

    /// The number of `CLUSTER SHARDS` requests so far.
    pub(crate) fn questions(&self) -> u32 {
        self.inner.questions.load(Ordering::SeqCst)
    }
}

/// Returns a client of these nodes.
pub(crate) fn client_of(ports: &[u16], settings: &str) -> Client {
    let hosts: Vec<_> = ports
        .iter()
        .map(|port| format!("127.0.0.1:{port}"))
        .collect();
    let url = format!("redis+cluster://{LOGIN}@{}", hosts.join(","));
    client_with(&url, &format!("channels=plain&tracking=off&{settings}"))
}

impl Inner {
    fn serve(&self, client: &TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        self.open.lock().push(client.try_clone()?);
        let server = TcpStream::connect((Ipv4Addr::LOCALHOST, self.server))?;
        server.set_nodelay(true)?;
        let ended = self.relay(client, &server);
        for stream in [client, &server] {
            let _closed = stream.shutdown(Shutdown::Both);
        }
        ended
    }

    fn relay(&self, mut client: &TcpStream, mut server: &TcpStream) -> io::Result<()> {
        let mut requests = BufReader::new(client);
        let mut replies = Some(BufReader::new(server));
        while let Some(request) = Request::read(&mut requests)? {
            let ours = self.answer(&request);
            drop(self.answers.read());
            if let Some(answer) = ours {
                client.write_all(answer.as_bytes())?;
                continue;
            }
            server.write_all(&request.bytes())?;
            if replies.take_if(|_| request.is("SUBSCRIBE")).is_some() {
                // After a subscription the server also sends messages that answer no request.
                let (mut client, mut server) = (client.try_clone()?, server.try_clone()?);
                thread::spawn(move || io::copy(&mut server, &mut client));
            } else if let Some(replies) = &mut replies {
                let Some(reply) = read_reply(replies)? else {
                    return Ok(());
                };
                drop(self.answers.read());
                client.write_all(&reply)?;
            }
        }
        Ok(())
    }

    fn answer(&self, request: &Request) -> Option<String> {
        let word = self.word.lock().clone().filter(|_| request.is("CLUSTER"))?;
        Some(match request.word(1).as_str() {
            "MYID" => bulk(word.id),
            "INFO" => {
                let state = if word.is_up { "ok" } else { "fail" };
                let epoch = word.epoch;
                bulk(&format!(
                    "cluster_state:{state}\r\ncluster_current_epoch:{epoch}\r\n"
                ))
            }
            "SHARDS" => {
                self.questions.fetch_add(1, Ordering::SeqCst);
                list(word.shards.iter().map(shard))
            }
            _ => list(word.slots.iter().flat_map(ranges)),
        })
    }
}

fn shard((slots, nodes): &Shard) -> String {
    let slots = slots.iter().flatten().map(int);
    let node = |node: &Member| {
        let Member {
            id,
            port,
            role,
            health,
        } = node;
        let [ip, port] = [bulk("127.0.0.1"), int(port)];
        let pairs = [
            ("id", bulk(id)),
            ("port", port),
            ("ip", ip.clone()),
            ("endpoint", ip),
        ];
        let more = [("role", bulk(role)), ("health", bulk(health))];
        list(
            pairs
                .into_iter()
                .chain(more)
                .flat_map(|(name, value)| [bulk(name), value]),
        )
    };
    let pairs = [
        ("slots", list(slots)),
        ("nodes", list(nodes.iter().map(node))),
    ];
    list(
        pairs
            .into_iter()
            .flat_map(|(name, value)| [bulk(name), value]),
    )
}

fn ranges((slots, nodes): &Shard) -> impl Iterator<Item = String> {
    let nodes = nodes.iter().filter(|node| node.health == "online");
    let nodes = nodes.map(|node| {
        list(
            [
                bulk("127.0.0.1"),
                int(&node.port),
                bulk(node.id),
                list(std::iter::empty()),
            ]
            .into_iter(),
        )
    });
    let nodes: Vec<_> = nodes.collect();
    slots
        .iter()
        .map(move |range| list(range.iter().map(int).chain(nodes.iter().cloned())))
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn int(number: &u16) -> String {
    format!(":{number}\r\n")
}

fn list(items: impl Iterator<Item = String>) -> String {
    let items: Vec<_> = items.collect();
    format!("*{}\r\n{}", items.len(), items.concat())
}
