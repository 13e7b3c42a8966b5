//! [`Probe`]: a view of the store that does not depend on the library: a raw connection with a
//! minimal client, so that no defect of the library can hide itself.

use super::process::exchange_bound;
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

/// An answer of a server (RESP2).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    Nil,
    Int(i64),
    Text(String),
    List(Vec<Value>),
    Error(String),
}

impl Value {
    #[track_caller]
    pub fn int(self) -> i64 {
        match self {
            Self::Int(int) => int,
            other => panic!("the server answered {other:?}, not a number"),
        }
    }

    #[track_caller]
    pub fn text(self) -> String {
        match self {
            Self::Text(text) => text,
            other => panic!("the server answered {other:?}, not a text"),
        }
    }

    #[track_caller]
    pub fn texts(self) -> Vec<String> {
        match self {
            Self::List(values) => values.into_iter().map(Value::text).collect(),
            other => panic!("the server answered {other:?}, not a list"),
        }
    }
}

/// A raw connection to a server.
pub struct Probe(BufReader<TcpStream>);

impl Probe {
    pub fn connect(port: u16) -> Self {
        Self::try_connect(port).unwrap_or_else(|e| panic!("no server on port {port}: {e}"))
    }

    pub fn try_connect(port: u16) -> io::Result<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(exchange_bound()))?;
        stream.set_write_timeout(Some(exchange_bound()))?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends one command and returns its answer. An error answer is returned as a value, too.
    #[track_caller]
    pub fn command(&mut self, words: &[&str]) -> Value {
        self.try_command(words)
            .unwrap_or_else(|error| panic!("`{}`: {error}", words.join(" ")))
    }

    pub fn try_command(&mut self, words: &[&str]) -> io::Result<Value> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.0.get_mut().write_all(request.as_bytes())?;
        self.read_value()
    }

    /// Returns the next value that the server sends: an answer, or a message to a subscriber.
    pub fn read_value(&mut self) -> io::Result<Value> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (kind, rest) = line.trim_end().split_at(1);
        let number = || rest.parse::<i64>().map_err(io::Error::other);
        match kind {
            "+" => Ok(Value::Text(rest.to_owned())),
            "-" => Ok(Value::Error(rest.to_owned())),
            ":" => Ok(Value::Int(number()?)),
            "$" | "*" if number()? < 0 => Ok(Value::Nil),
            "$" => {
                let mut bytes = vec![0; usize::try_from(number()?).map_err(io::Error::other)? + 2];
                self.0.read_exact(&mut bytes)?;
                bytes.truncate(bytes.len() - 2);
                Ok(Value::Text(String::from_utf8_lossy(&bytes).into_owned()))
            }
            "*" => Ok(Value::List(
                (0..number()?)
                    .map(|_| self.read_value())
                    .collect::<Result<_, _>>()?,
            )),
            _ => Err(io::Error::other(format!("not RESP2: {line:?}"))),
        }
    }

    pub fn exists(&mut self, key: &str) -> bool {
        self.command(&["EXISTS", key]).int() == 1
    }

    /// Returns the text under a key, if there is one.
    #[track_caller]
    pub fn get(&mut self, key: &str) -> Option<String> {
        match self.command(&["GET", key]) {
            Value::Nil => None,
            value => Some(value.text()),
        }
    }

    /// Returns the fields of a hash and their values; empty if there is no hash.
    pub fn hgetall(&mut self, key: &str) -> BTreeMap<String, String> {
        let words = self.command(&["HGETALL", key]).texts();
        words
            .chunks(2)
            .map(|pair| (pair[0].clone(), pair[1].clone()))
            .collect()
    }

    /// Returns the remaining time to live of a key; `None` if there is no key, or if it does not
    /// expire.
    pub fn pttl(&mut self, key: &str) -> Option<Duration> {
        u64::try_from(self.command(&["PTTL", key]).int())
            .ok()
            .map(Duration::from_millis)
    }

    /// Returns the time at which a key expires, in milliseconds of the server's clock.
    #[track_caller]
    pub fn expires_at(&mut self, key: &str) -> i64 {
        // Redis before 7 lacks PEXPIRETIME. There a script adds PTTL to the time, and repeats that
        // until the time before and after PTTL is the same.
        const BY_TIME: &str = "local function now() \
             local time = redis.call('TIME') return time[1] * 1000 + math.floor(time[2] / 1000) \
             end \
             local before, left repeat before = now() left = redis.call('PTTL', KEYS[1]) until \
             before == now() \
             return before + left";
        match self.command(&["PEXPIRETIME", key]) {
            Value::Error(unknown) if unknown.contains("unknown command") => {
                self.command(&["EVAL", BY_TIME, "1", key]).int()
            }
            answer => answer.int(),
        }
    }

    /// Returns the matching keys in order. For the pattern `*` the labels of holders are left out:
    /// on a slow machine a short hold may have been renewed, and then has a label.
    pub fn keys(&mut self, pattern: &str) -> Vec<String> {
        let mut keys = self.command(&["KEYS", pattern]).texts();
        keys.retain(|key| pattern != "*" || !key.starts_with("distlock_owner:"));
        keys.sort_unstable();
        keys
    }

    /// Returns how often the server has run this command (lower case), including calls in scripts.
    pub fn command_calls(&mut self, command: &str) -> u64 {
        self.command_stats(command, "calls=")
    }

    /// Returns how often this command was refused before it was run.
    pub fn rejected_calls(&mut self, command: &str) -> u64 {
        self.command_stats(command, "rejected_calls=")
    }

    fn command_stats(&mut self, command: &str, what: &str) -> u64 {
        let Some(stats) = self.info_field("commandstats", &format!("cmdstat_{command}")) else {
            return 0;
        };
        let count = stats.split(',').find_map(|part| part.strip_prefix(what));
        count
            .and_then(|count| count.parse().ok())
            .expect("the stats of a command say its calls")
    }

    /// Returns how often each command was run, including the commands of this probe.
    pub fn all_command_calls(&mut self) -> BTreeMap<String, u64> {
        self.info("commandstats")
            .into_iter()
            .filter_map(|(field, stats)| {
                let calls = stats
                    .split(',')
                    .find_map(|part| part.strip_prefix("calls="))?;
                Some((
                    field.strip_prefix("cmdstat_")?.to_owned(),
                    calls.parse().ok()?,
                ))
            })
            .collect()
    }

    /// Sets the counters of commands and connections to zero.
    pub fn reset_stats(&mut self) {
        assert_eq!(
            self.command(&["CONFIG", "RESETSTAT"]),
            Value::Text("OK".to_owned())
        );
    }

    /// Returns the open connections except this one, each as `CLIENT LIST` describes it.
    pub fn clients(&mut self) -> Vec<String> {
        let own = format!("id={} ", self.command(&["CLIENT", "ID"]).int());
        let list = self.command(&["CLIENT", "LIST"]).text();
        list.lines()
            .filter(|line| !line.starts_with(&own))
            .map(str::to_owned)
            .collect()
    }

    /// Returns the number of connections that are subscribed to a channel.
    pub fn listeners(&mut self) -> usize {
        let list = self.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).text();
        list.lines().count()
    }

    /// Returns the number of open connections except this one.
    pub fn connections(&mut self) -> usize {
        self.clients().len()
    }

    /// Returns one field of a section of `INFO`.
    pub fn info_field(&mut self, section: &str, field: &str) -> Option<String> {
        self.info(section).remove(field)
    }

    /// Returns a numeric field of `INFO stats`, such as `total_connections_received`.
    pub fn stat(&mut self, field: &str) -> u64 {
        let value = self.info_field("stats", field);
        value
            .and_then(|v| v.parse().ok())
            .unwrap_or_else(|| panic!("INFO stats has no {field}"))
    }

    fn info(&mut self, section: &str) -> BTreeMap<String, String> {
        let info = self.command(&["INFO", section]).text();
        let pairs = info.lines().filter_map(|line| line.split_once(':'));
        pairs
            .map(|(field, value)| (field.to_owned(), value.to_owned()))
            .collect()
    }

    /// Returns the ID of the server's process, if the server already answers.
    pub(super) fn process_id(&mut self) -> Option<u32> {
        let Value::Text(pong) = self.try_command(&["PING"]).ok()? else {
            return None;
        };
        if pong != "PONG" {
            return None;
        }
        self.info_field("server", "process_id")?.parse().ok()
    }
}
