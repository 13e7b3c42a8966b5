//! [`Claim`] and [`judge`]: the times for which each holder held a lock, by its own record, and the
//! check that no two of them overlap.
//!
//! The judge is the same for all stores. The times are those of the machine's clock, which all
//! processes share.

use lock_conformance::violated;
use lock_core::Moment;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::str::FromStr;

/// The record of a thread that it held a lock, with a valid guard, from one time to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub lock: String,
    pub holder: String,
    pub token: u64,
    /// The time of the request.
    pub asked: Moment,
    pub from: Moment,
    /// The time just before the release, or the last time at which the guard was found valid.
    pub to: Moment,
}

/// Writes the claim as one line. Names must not contain spaces, or the line could not be parsed.
impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            lock,
            holder,
            token,
            ..
        } = self;
        let [asked, from, to] = [self.asked, self.from, self.to].map(Moment::as_nanos);
        write!(f, "{lock} {holder} {token} {asked} {from} {to}")
    }
}

impl FromStr for Claim {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let words: Vec<_> = line.split(' ').collect();
        let [lock, holder, numbers @ ..] = &words[..] else {
            return Err(line.to_owned());
        };
        let numbers: Result<Vec<u64>, _> = numbers.iter().map(|number| number.parse()).collect();
        let Ok([token, times @ ..]) = numbers.as_deref() else {
            return Err(line.to_owned());
        };
        let &[asked, from, to] = times else {
            return Err(line.to_owned());
        };
        let [asked, from, to] = [asked, from, to].map(Moment::from_nanos);
        Ok(Self {
            lock: (*lock).into(),
            holder: (*holder).into(),
            token: *token,
            asked,
            from,
            to,
        })
    }
}

/// A file of claims. Each claim is written at once, so that it remains when its process is killed.
pub struct Log(Mutex<File>);

impl Log {
    pub fn create(path: &Path) -> Self {
        Self(Mutex::new(
            File::create(path).expect("a directory of our own"),
        ))
    }

    pub fn write(&self, claim: &Claim) {
        let line = format!("{claim}\n");
        self.0
            .lock()
            .write_all(line.as_bytes())
            .expect("a file of our own");
    }

    /// Returns the claims in the file so far.
    pub fn read(path: &Path) -> Vec<Claim> {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        // The last line may not be complete yet.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole
            .lines()
            .map(|line| line.parse().expect("no other program writes there"))
            .collect()
    }
}

/// The result of [`judge`].
#[derive(Default)]
pub struct Verdict {
    /// The claims of each lock, in the order of their beginnings.
    pub by_lock: BTreeMap<String, Vec<Claim>>,
    /// Pairs of claims of one lock that overlap.
    pub together: Vec<[Claim; 2]>,
    /// Pairs of claims of one lock of which the later one has no larger token.
    pub backwards: Vec<[Claim; 2]>,
}

/// Compares the claims of all holders of each lock.
pub fn judge(claims: impl IntoIterator<Item = Claim>) -> Verdict {
    let mut verdict = Verdict::default();
    for claim in claims {
        verdict
            .by_lock
            .entry(claim.lock.clone())
            .or_default()
            .push(claim);
    }
    for claims in verdict.by_lock.values_mut() {
        claims.sort_by_key(|claim| (claim.from, claim.to));
        // Compare not only neighbours, because a long claim may cover several others.
        let (mut longest, mut largest) = (&claims[0], &claims[0]);
        for claim in &claims[1..] {
            if claim.from < longest.to {
                verdict.together.push([longest.clone(), claim.clone()]);
            }
            if claim.token <= largest.token {
                verdict.backwards.push([largest.clone(), claim.clone()]);
            }
            longest = if claim.to > longest.to {
                claim
            } else {
                longest
            };
            largest = if claim.token > largest.token {
                claim
            } else {
                largest
            };
        }
    }
    verdict
}

impl Verdict {
    /// Checks that the holder called "test" and another one held the lock at once, and that the
    /// other one has the larger token.
    #[track_caller]
    pub fn must_show_a_double_grant(&self) {
        let [one, other] = self
            .together
            .first()
            .expect("the judge sees the double grant");
        println!("two at once:\n{one}\n{other}");
        assert_eq!(
            (one.holder.as_str(), one.lock.as_str()),
            ("test", other.lock.as_str())
        );
        assert!(one.holder != other.holder && one.token < other.token);
        assert!(self.backwards.is_empty(), "{:?}", self.backwards);
    }

    /// Describes the violation, if any: two claims overlap, or a token did not grow.
    pub fn violation(&self) -> Option<String> {
        let of = |what: &str, pairs: &[[Claim; 2]]| {
            let [first, ..] = pairs else { return None };
            Some(format!("{what}, {} times, at first {first:?}", pairs.len()))
        };
        let together = of("two at once", &self.together);
        together.or_else(|| of("a token did not grow", &self.backwards))
    }

    /// Fails if there is a violation, after printing the numbers of grants and of violations of
    /// each kind.
    #[track_caller]
    pub fn must_be_exact_after_a_switch(&self) {
        let grants: usize = self.by_lock.values().map(Vec::len).sum();
        let (together, backwards) = (self.together.len(), self.backwards.len());
        println!(
            "{grants} grants, {together} with another inside, {backwards} without a larger token"
        );
        if let Some(what) = self.violation() {
            violated(what);
        }
    }

    /// Fails if there is a violation. Otherwise prints the number of claims of each lock.
    #[track_caller]
    pub fn must_be_exact(&self) {
        if let Some(what) = self.violation() {
            violated(what);
        }
        for (lock, claims) in &self.by_lock {
            println!(
                "lock {lock}: {} claims, one at a time, tokens grow",
                claims.len()
            );
        }
    }
}
