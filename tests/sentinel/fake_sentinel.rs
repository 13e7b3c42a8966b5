//! [`Liar`]: a fake sentinel, whose answers and messages a test sets.

use distlock_tests::resp::Request;
use distlock_tests::sentinel;
use parking_lot::Mutex;
use std::io::{BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

/// A fake sentinel that names the master that the test sets. It serves until the test process ends.
pub(crate) struct Liar {
    port: u16,
    says: Arc<Says>,
}

/// The answers and the subscribers of a [`Liar`].
struct Says {
    /// The master's port, the epoch, and the master's `run_id`, which is empty while the sentinel
    /// does not know it.
    master: Mutex<(u16, u64, String)>,
    /// The listed replicas: their ports and `run_id`s.
    replicas: Mutex<Vec<(u16, String)>>,
    /// The sentinel's own ID.
    id: Mutex<String>,
    /// The IDs and ports of the other sentinels that it lists.
    others: Mutex<Vec<(String, u16)>>,
    listeners: Mutex<Vec<TcpStream>>,
    /// The number of queries for a master.
    questions: AtomicU32,
}

impl Liar {
    pub(crate) fn naming(master: u16, epoch: u64) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let says = Arc::new(Says {
            master: Mutex::new((master, epoch, String::new())),
            replicas: Mutex::default(),
            id: Mutex::new("liar".to_owned()),
            others: Mutex::default(),
            listeners: Mutex::default(),
            questions: AtomicU32::new(0),
        });
        let serving = Arc::clone(&says);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let says = Arc::clone(&serving);
                thread::spawn(move || says.serve(stream));
            }
        });
        Self { port, says }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Returns the URL with this sentinel alone. The sentinel accepts any name of a master.
    pub(crate) fn url(&self) -> String {
        sentinel::url("mymaster", &[self.port])
    }

    /// Names another master from now on, without a message: only a client that queries notices.
    pub(crate) fn name(&self, master: u16, epoch: u64) {
        let mut said = self.says.master.lock();
        (said.0, said.1) = (master, epoch);
    }

    /// Names another master and its `run_id` from now on, without a message.
    pub(crate) fn name_as(&self, master: u16, epoch: u64, run_id: &str) {
        *self.says.master.lock() = (master, epoch, run_id.to_owned());
    }

    /// Sets the `run_id` that is reported for the master.
    pub(crate) fn identify(&self, run_id: &str) {
        run_id.clone_into(&mut self.says.master.lock().2);
    }

    /// Lists these replicas from now on, by their ports and `run_id`s.
    pub(crate) fn list_replicas(&self, replicas: &[(u16, String)]) {
        replicas.clone_into(&mut self.says.replicas.lock());
    }

    /// Sets this sentinel's ID, and the other sentinels that it lists, by their IDs and ports.
    pub(crate) fn know(&self, id: &str, others: &[(String, u16)]) {
        id.clone_into(&mut self.says.id.lock());
        others.clone_into(&mut self.says.others.lock());
    }

    /// Publishes a message of `+switch-master` that names no servers, so that clients query this
    /// sentinel.
    pub(crate) fn tell(&self) {
        self.publish("it is another one");
    }

    /// Publishes, as a real sentinel does, that the server on port `to` has replaced the master on
    /// port `from`.
    pub(crate) fn announce(&self, from: u16, to: u16) {
        self.publish(&format!("mymaster 127.0.0.1 {from} 127.0.0.1 {to}"));
    }

    /// Publishes this text as a message of `+switch-master`.
    pub(crate) fn publish(&self, text: &str) {
        let news = list(&["message", "+switch-master", text]);
        for mut listener in self.says.listeners.lock().iter() {
            listener.write_all(news.as_bytes()).unwrap();
        }
    }

    /// Returns the number of subscribers to `+switch-master`.
    pub(crate) fn listeners(&self) -> usize {
        self.says.listeners.lock().len()
    }
}

impl Says {
    fn serve(&self, mut stream: TcpStream) -> Option<()> {
        let mut requests = BufReader::new(stream.try_clone().ok()?);
        while let Some(request) = Request::read(&mut requests).ok()? {
            let (port, epoch, run_id) = self.master.lock().clone();
            let (port, epoch_text) = (port.to_string(), epoch.to_string());
            let answer = match (request.word(0).as_str(), request.word(1).as_str()) {
                ("SENTINEL", "MASTER") => {
                    self.questions.fetch_add(1, Ordering::SeqCst);
                    let address = ["ip", "127.0.0.1", "port", &port];
                    let rest = ["runid", &run_id, "config-epoch", &epoch_text];
                    list(&[address, rest].concat())
                }
                ("SENTINEL", "GET-MASTER-ADDR-BY-NAME") => list(&["127.0.0.1", &port]),
                ("SENTINEL", "MYID") => bulk(&self.id.lock()),
                ("SENTINEL", "REPLICAS") => {
                    let replicas = self.replicas.lock();
                    let each = replicas.iter().map(|(at, id)| {
                        let (at, master) = (at.to_string(), port.clone());
                        list(&[
                            "ip",
                            "127.0.0.1",
                            "port",
                            &at,
                            "runid",
                            id,
                            "flags",
                            "slave",
                            "role-reported",
                            "slave",
                            "master-host",
                            "127.0.0.1",
                            "master-port",
                            &master,
                        ])
                    });
                    format!("*{}\r\n{}", replicas.len(), each.collect::<String>())
                }
                ("SENTINEL", "SENTINELS") => {
                    let others = self.others.lock();
                    let each = others.iter().map(|(id, at)| {
                        list(&["ip", "127.0.0.1", "port", &at.to_string(), "runid", id])
                    });
                    format!("*{}\r\n{}", others.len(), each.collect::<String>())
                }
                ("SENTINEL", _) => "*0\r\n".to_owned(),
                ("SUBSCRIBE", channel) => {
                    if channel == "+switch-master" {
                        self.listeners.lock().push(stream.try_clone().ok()?);
                    }
                    format!(
                        "*3\r\n$9\r\nsubscribe\r\n${}\r\n{channel}\r\n:1\r\n",
                        channel.len()
                    )
                }
                ("PING", _) => list(&["pong", ""]),
                _ => "+OK\r\n".to_owned(),
            };
            stream.write_all(answer.as_bytes()).ok()?;
        }
        Some(())
    }
}

fn bulk(word: &str) -> String {
    format!("${}\r\n{word}\r\n", word.len())
}

fn list(words: &[&str]) -> String {
    let words: Vec<_> = words.iter().map(|word| bulk(word)).collect();
    format!("*{}\r\n{}", words.len(), words.concat())
}
