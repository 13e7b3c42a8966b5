//! Tests with many callers at once, of which some are late, with large requests, callbacks, and
//! replies in pieces.

use super::*;
use std::collections::HashSet;
use std::sync::atomic::AtomicU32;

/// Returns the word of a request for [`answer_in_pieces`]: its number, padded to this length.
fn numbered(number: u32, length: usize) -> Vec<u8> {
    let mut bytes = vec![b'x'; length.max(4)];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// Reads the lines before a word, and returns the length of the word.
fn read_head(peer: &mut TcpStream) -> io::Result<u64> {
    let mut head = Vec::new();
    while head.iter().filter(|byte| **byte == b'\n').count() < 2 {
        let mut byte = [0];
        peer.read_exact(&mut byte)?;
        head.extend(byte);
    }
    let head = String::from_utf8(head).unwrap();
    Ok(head.trim_end().rsplit('$').next().unwrap().parse().unwrap())
}

/// Answers each request with its number, in pieces and with pauses. Returns the numbers.
fn answer_in_pieces(mut peer: TcpStream, mut random: Random) -> HashSet<u32> {
    let mut seen = HashSet::new();
    peer.set_nodelay(true).unwrap();
    while let Ok(length) = read_head(&mut peer) {
        let mut number = [0; 4];
        if peer.read_exact(&mut number).is_err() {
            break;
        }
        let number = u32::from_be_bytes(number);
        // The rest of the word, with its line end.
        let mut rest = (&mut peer).take(length - 4 + 2);
        if io::copy(&mut rest, &mut io::sink()).is_err() {
            break;
        }
        assert!(seen.insert(number), "{number} came twice");
        let answer = format!(":{number}\r\n");
        let (first, second) = answer.as_bytes().split_at(random.below(answer.len()));
        let _gone = peer.write_all(first);
        if random.below(40) == 0 {
            SystemClock.wait(&Arc::default(), within(random.below(20) as u64));
        }
        let _gone = peer.write_all(second);
    }
    seen
}

/// Pseudo-random numbers that are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        usize::try_from(self.0 >> 33).unwrap() % bound.max(1)
    }
}

#[test]
fn every_caller_gets_its_own_reply_in_time_or_none() {
    const THREADS: u32 = 24;
    const CALLS: u32 = 150;
    let (connection, peer) = pair_with(Duration::from_secs(60));
    let peer = thread::spawn(move || answer_in_pieces(peer, Random(7)));
    let (unsent, submitted) = (Mutex::new(Vec::new()), AtomicU32::new(0));
    let (answered, told) = (AtomicU32::new(0), Arc::new(AtomicU32::new(0)));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (connection, unsent, submitted, answered, told) =
                (&connection, &unsent, &submitted, &answered, &told);
            scope.spawn(move || {
                let mut random = Random(thread.into());
                for number in thread * CALLS..(thread + 1) * CALLS {
                    let large = random.below(30) == 0;
                    let request = numbered(number, random.below(if large { 3 << 20 } else { 50 }));
                    let is_patient = random.below(3) > 0;
                    let by = within(if is_patient { 10_000 } else { 3 });
                    if random.below(4) == 0 {
                        let told = Arc::clone(told);
                        let done = move |outcome: Result<Reply, _>| {
                            told.fetch_add(1, Ordering::SeqCst);
                            if let Ok(reply) = outcome {
                                assert_eq!(reply, Reply::Int(number.into()));
                            }
                            ReplyCheck::Expected
                        };
                        let callback = CallbackRequest {
                            by_hash: Vec::new(),
                            text: "",
                            done: Box::new(done),
                        };
                        assert!(connection.submit(&encoded(&request), by, callback).is_ok());
                        submitted.fetch_add(1, Ordering::SeqCst);
                        connection.poll();
                        continue;
                    }
                    match call(connection, &request, by) {
                        Ok(reply) => {
                            assert_eq!(reply, Reply::Int(number.into()));
                            answered.fetch_add(1, Ordering::SeqCst);
                        }
                        Err(CallError::NotSent(_)) => {
                            assert!(!is_patient, "{number} was never sent");
                            unsent.lock().push(number);
                        }
                        Err(CallError::Unknown(_)) => {
                            assert!(!is_patient, "{number} waited in vain");
                        }
                    }
                }
            });
        }
    });
    // A last reply that arrives at its caller shows that no reply was assigned wrongly.
    let last = call(&connection, &numbered(u32::MAX, 8), within(10_000)).unwrap();
    assert_eq!(last, Reply::Int(u32::MAX.into()));
    assert_eq!(
        told.load(Ordering::SeqCst),
        submitted.load(Ordering::SeqCst)
    );
    assert!(connection.pending.lock().is_empty());
    drop(connection);
    let seen = peer.join().unwrap();
    let unsent = unsent.into_inner();
    assert!(unsent.iter().all(|number| !seen.contains(number)));
    assert!(answered.load(Ordering::SeqCst) > THREADS * CALLS / 10);
}
