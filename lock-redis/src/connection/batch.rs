//! [`Batch`]: the requests of one write, encoded once.
//!
//! Each request has a [`Mark`]: its script or command, the places of the request and of its keys in
//! the bytes, and two flags that decide which commands a connection adds to it. So a connection
//! need not search the bytes for these.

use super::{Request, Text, encoded_words, with_text, write_count, write_word};
use crate::connection::error_mapping::Asked;
use crate::lua::Script;
use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::mem;
use std::ops::Range;

thread_local! {
    /// The buffer of this thread's last batch, which the next batch uses again. Empty while a batch
    /// uses the buffer.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// The requests of one write. See the [module's text](self).
pub(crate) struct Batch {
    bytes: Vec<u8>,
    /// The first request. Most batches have only one request, and then need no allocation for
    /// `others`.
    first: Option<Mark>,
    others: Vec<Mark>,
    first_decides: bool,
}

/// A request of a batch.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    bytes: Range<usize>,
    content: RequestContent,
    /// The range of the encoded keys, each with its length and line ends.
    keys: Range<usize>,
    key_count: usize,
    reads_keys: bool,
    in_transaction: bool,
}

#[derive(Clone, Copy, Debug)]
enum RequestContent {
    /// A script, sent by its hash or by its text.
    Script(&'static Script),
    /// A command with one key.
    Command(&'static str),
    /// A request that is not about a lock, or that a connection has added.
    Words,
}

impl Mark {
    /// Returns the script that this request runs.
    pub(crate) fn script(&self) -> Option<&'static Script> {
        match self.content {
            RequestContent::Script(script) => Some(script),
            RequestContent::Command(_) | RequestContent::Words => None,
        }
    }

    /// Returns `true` if a connection on which the server tracks keys (`CLIENT TRACKING`) adds a
    /// read of the keys after this request.
    pub(super) fn reads_keys(&self) -> bool {
        self.reads_keys
    }

    /// Returns `true` if the request belongs to a transaction that an earlier request began.
    pub(super) fn in_transaction(&self) -> bool {
        self.in_transaction
    }

    pub(super) fn key_count(&self) -> usize {
        self.key_count
    }
}

impl Batch {
    /// Returns a batch without requests.
    pub(crate) fn new() -> Self {
        let mut bytes = SCRATCH.try_with(Cell::take).unwrap_or_default();
        bytes.clear();
        Self {
            bytes,
            first: None,
            others: Vec::new(),
            first_decides: false,
        }
    }

    /// Returns a batch of one script.
    pub(crate) fn script(script: &'static Script, keys: &[&[u8]], arguments: &[&[u8]]) -> Self {
        let mut batch = Self::new();
        batch.add_script(script, keys, arguments);
        batch.first_decides()
    }

    /// Returns a batch of one command about the lock under `key`.
    pub(crate) fn command(command: &'static str, key: &[u8], arguments: &[&[u8]]) -> Self {
        let mut batch = Self::new();
        batch.add_command(command, key, arguments);
        batch.first_decides()
    }

    /// Returns a batch of requests that are not about a lock.
    pub(crate) fn from_requests(requests: &[Request<'_>]) -> Self {
        let mut batch = Self::new();
        for request in requests {
            batch.add(request);
        }
        batch
    }

    /// Makes the batch fail if the reply to the first request is an error or is missing, regardless
    /// of the other replies.
    pub(crate) fn first_decides(mut self) -> Self {
        self.first_decides = true;
        self
    }

    /// Returns the first request if its reply decides the outcome.
    pub(crate) fn decisive(&self) -> Option<&Mark> {
        self.first.as_ref().filter(|_| self.first_decides)
    }

    /// Adds a script with its keys and arguments.
    pub(crate) fn add_script(
        &mut self,
        script: &'static Script,
        keys: &[&[u8]],
        arguments: &[&[u8]],
    ) {
        let start = self.bytes.len();
        let into = &mut self.bytes;
        write_count(b'*', 3 + keys.len() + arguments.len(), into);
        write_word(b"EVALSHA", into);
        write_word(script.hash().as_bytes(), into);
        match u8::try_from(keys.len()) {
            Ok(count @ 0..10) => write_word(&[b'0' + count], into),
            _ => write_word(Text::number(keys.len() as u64).as_bytes(), into),
        }
        let keys_start = into.len();
        keys.iter().for_each(|key| write_word(key, into));
        let keys_end = into.len();
        arguments.iter().for_each(|word| write_word(word, into));
        self.mark_request(
            start,
            RequestContent::Script(script),
            keys_start..keys_end,
            keys.len(),
        );
    }

    /// Adds a command about the lock under `key`.
    pub(crate) fn add_command(&mut self, command: &'static str, key: &[u8], arguments: &[&[u8]]) {
        let start = self.bytes.len();
        write_count(b'*', 2 + arguments.len(), &mut self.bytes);
        write_word(command.as_bytes(), &mut self.bytes);
        let keys_start = self.bytes.len();
        write_word(key, &mut self.bytes);
        let keys_end = self.bytes.len();
        for word in arguments {
            write_word(word, &mut self.bytes);
        }
        self.mark_request(
            start,
            RequestContent::Command(command),
            keys_start..keys_end,
            1,
        );
    }

    /// Adds a request that is not about a lock.
    pub(crate) fn add(&mut self, request: &Request<'_>) {
        let start = self.bytes.len();
        request.encode(&mut self.bytes);
        self.mark_request(start, RequestContent::Words, start..start, 0);
    }

    /// Adds this command with the keys of a request of another batch.
    pub(super) fn add_with_keys_of(&mut self, command: &str, batch: &Self, mark: &Mark) {
        let start = self.bytes.len();
        write_count(b'*', 1 + mark.key_count, &mut self.bytes);
        write_word(command.as_bytes(), &mut self.bytes);
        self.bytes
            .extend_from_slice(&batch.bytes[mark.keys.clone()]);
        self.mark_request(start, RequestContent::Words, start..start, 0);
    }

    /// Adds a request of another batch.
    pub(super) fn add_from(&mut self, batch: &Self, mark: &Mark) {
        let start = self.bytes.len();
        self.bytes
            .extend_from_slice(&batch.bytes[mark.bytes.clone()]);
        self.mark(mark.moved(start, mark.bytes.len()));
    }

    /// Adds a script of another batch, with its text in place of its hash.
    fn add_by_text(&mut self, batch: &Self, mark: &Mark, script: &Script) {
        let start = self.bytes.len();
        let by_text = with_text(&batch.bytes[mark.bytes.clone()], script.source);
        self.bytes.extend_from_slice(&by_text);
        self.mark(mark.moved(start, by_text.len()));
    }

    fn mark_request(
        &mut self,
        start: usize,
        content: RequestContent,
        keys: Range<usize>,
        key_count: usize,
    ) {
        self.mark(Mark {
            bytes: start..self.bytes.len(),
            content,
            keys,
            key_count,
            reads_keys: false,
            in_transaction: false,
        });
    }

    fn mark(&mut self, mark: Mark) {
        match &self.first {
            None => self.first = Some(mark),
            Some(_) => self.others.push(mark),
        }
    }

    fn last(&mut self) -> Option<&mut Mark> {
        self.others.last_mut().or(self.first.as_mut())
    }

    /// Marks the last added request as followed by a read of its keys.
    pub(crate) fn with_read_of_keys(&mut self) {
        if let Some(last) = self.last() {
            last.reads_keys = true;
        }
    }

    /// Marks the last added request as part of a transaction that an earlier request began.
    pub(crate) fn inside_transaction(&mut self) {
        if let Some(last) = self.last() {
            last.in_transaction = true;
        }
    }

    /// Returns a copy of the batch in which the scripts that `is_by_text` selects are sent by their
    /// text.
    pub(crate) fn with_texts(&self, mut is_by_text: impl FnMut(&'static Script) -> bool) -> Self {
        let mut batch = Self::new();
        for mark in self.marks() {
            match mark.script().filter(|script| is_by_text(script)) {
                Some(script) => batch.add_by_text(self, mark, script),
                None => batch.add_from(self, mark),
            }
        }
        batch
    }

    /// Returns a batch of only the scripts at the selected places, to be sent by their texts.
    pub(crate) fn repeated(&self, is_repeated: impl Fn(usize) -> bool) -> Self {
        let mut batch = Self::new();
        for (place, mark) in self.marks().enumerate() {
            if let Some(script) = mark.script().filter(|_| is_repeated(place)) {
                batch.add_by_text(self, mark, script);
            }
        }
        batch
    }

    /// Returns the marks of all requests.
    pub(crate) fn marks(&self) -> impl Iterator<Item = &Mark> {
        self.first.iter().chain(&self.others)
    }

    /// Returns the request of a batch that has only one.
    pub(crate) fn only(&self) -> Option<&Mark> {
        self.first.as_ref().filter(|_| self.others.is_empty())
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.others.len()
    }

    /// Returns all requests, encoded.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns one request, encoded.
    pub(super) fn bytes_of(&self, mark: &Mark) -> &[u8] {
        &self.bytes[mark.bytes.clone()]
    }

    /// Returns the first key of a request.
    pub(crate) fn key_of(&self, mark: &Mark) -> Cow<'_, str> {
        let word = encoded_words(&self.bytes[mark.keys.clone()]).next();
        let word = word.and_then(|word| {
            let start = word.iter().position(|byte| *byte == b'\n')? + 1;
            word.get(start..word.len() - 2)
        });
        String::from_utf8_lossy(word.unwrap_or_default())
    }

    /// Returns the subject of the error message if the server answers this request with an error;
    /// `key` is its first key.
    pub(crate) fn asked<'k>(mark: &Mark, key: &'k str) -> Asked<'k> {
        match mark.content {
            RequestContent::Script(script) => Asked::Script(script, key),
            RequestContent::Command(command) => Asked::Command(command, key),
            RequestContent::Words => Asked::Introduction,
        }
    }
}

impl Mark {
    /// Returns the mark of a copy of the request at `start`, with this length. The copy may differ
    /// from this request in length only before the keys.
    fn moved(&self, start: usize, length: usize) -> Self {
        let place = |at: usize| start + (at - self.bytes.start + length) - self.bytes.len();
        Self {
            bytes: start..start + length,
            keys: place(self.keys.start)..place(self.keys.end),
            ..self.clone()
        }
    }
}

/// Omits the bytes, which may contain a password.
impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("requests", &self.len())
            .field("bytes", &self.bytes.len())
            .finish_non_exhaustive()
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        let bytes = mem::take(&mut self.bytes);
        let _ending = SCRATCH.try_with(|kept| kept.set(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static SHORT: Script = Script::new("short", "", None, "return 1");
    static LONG: Script = Script::new(
        "long",
        "",
        None,
        "-- A text that is longer than the digits of its hash.\nreturn 1",
    );

    fn words(batch: &Batch) -> String {
        String::from_utf8_lossy(batch.bytes()).replace("\r\n", " ")
    }

    fn keys(batch: &Batch) -> Vec<String> {
        let keys = batch.marks().map(|mark| batch.key_of(mark).into_owned());
        keys.collect()
    }

    #[test]
    fn script_by_its_text_keeps_its_keys_and_arguments() {
        let mut batch = Batch::new();
        batch.add_script(&SHORT, &[b"a\r\n", b"b"], &[b"x"]);
        batch.add_command("GET", b"c", &[]);
        batch.add_script(&LONG, &[b"d"], &[b""]);
        let expected = ["a\r\n", "c", "d"];
        assert_eq!(keys(&batch), expected);
        let all = batch.with_texts(|_| true);
        assert_eq!(keys(&all), expected);
        assert_eq!(
            words(&all),
            format!(
                "*6 $4 EVAL $8 return 1 $1 2 $3 a  $1 b $1 x *2 $3 GET $1 c \
                 *5 $4 EVAL ${} {} $1 1 $1 d $0  ",
                LONG.source.len(),
                LONG.source
            )
        );
        let one = batch.with_texts(|script| std::ptr::eq(script, &LONG));
        assert_eq!(keys(&one), expected);
        assert!(words(&one).starts_with(&words(&batch)[..60]));
    }

    #[test]
    fn scripts_go_again_without_the_commands_behind_them() {
        let mut batch = Batch::new();
        batch.add_script(&SHORT, &[b"a"], &[]);
        batch.with_read_of_keys();
        batch.add_script(&SHORT, &[b"b"], &[]);
        batch.add_command("GET", b"c", &[]);
        let again = batch.repeated(|place| place != 1);
        assert_eq!(keys(&again), ["a"]);
        assert!(again.marks().all(Mark::reads_keys));
        assert_eq!(words(&again), "*4 $4 EVAL $8 return 1 $1 1 $1 a ");
    }

    #[test]
    fn keys_of_a_request_are_those_of_the_read_behind_it() {
        let (batch, mut read) = (Batch::script(&SHORT, &[b"a", b"b"], &[b"x"]), Batch::new());
        read.add_with_keys_of("EXISTS", &batch, batch.only().unwrap());
        assert_eq!(words(&read), "*3 $6 EXISTS $1 a $1 b ");
    }
}
