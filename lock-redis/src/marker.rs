//! The marker of a quorum's node: which quorum it belongs to, who the members are, and the choice of the next ones. What it is
//! for stands in `docs/DESIGN.md`, under "Who is a member of a quorum?".

use crate::connection::ConnectionLike;
use crate::format::{OwnedFormat, run, unexpected};
use crate::reply::Reply;
use crate::script::MARK;
use crate::text::Text;
use lock_core::Moment;
use lock_core::backend::Failure;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A node of a quorum, as it is known to a client: the server, and the view under which it votes.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(clippy::exhaustive_structs, reason = "made by the crate of the same house")]
pub struct Standing {
    /// The quorum's id, made when it began.
    pub quorum: Arc<str>,
    /// Which of its memberships, counted from 1.
    pub epoch: u64,
    /// That membership.
    pub members: Members,
    /// The id by which the server is recorded there: the `run_id` that it had then.
    pub node: Arc<str>,
    /// The `run_id` that it has now.
    pub run_id: Arc<str>,
}

/// The members of a quorum.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Members(Arc<[Member]>);

/// One of them.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(clippy::exhaustive_structs, reason = "made by the crate of the same house")]
pub struct Member {
    /// Which server; `None` while there is none.
    pub id: Option<Arc<str>>,
    /// Where it was when it was recorded.
    pub address: Arc<str>,
}

impl Members {
    /// How many they are, with those that are not there yet.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &Member> {
        self.0.iter()
    }

    /// Whether this is one of them.
    #[must_use]
    pub fn contain(&self, id: &str) -> bool {
        self.0.iter().any(|member| member.id.as_deref() == Some(id))
    }

    /// The same with another in this place.
    #[must_use]
    pub fn with(&self, place: usize, member: Member) -> Self {
        let mut members = self.0.to_vec();
        members[place] = member;
        Self(members.into())
    }

    fn parse(text: &str) -> Option<Self> {
        let member = |text: &str| {
            let (id, address) = text.split_once('@')?;
            let id = Some(id).filter(|id| !id.is_empty()).map(Arc::from);
            Some(Member { id, address: address.into() })
        };
        text.split(' ').map(member).collect::<Option<_>>().map(Self)
    }
}

impl FromIterator<Member> for Members {
    fn from_iter<I: IntoIterator<Item = Member>>(members: I) -> Self {
        Self(members.into_iter().collect())
    }
}

impl fmt::Display for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Member { id, address }) in self.iter().enumerate() {
            let space = if at == 0 { "" } else { " " };
            write!(f, "{space}{}@{address}", id.as_deref().unwrap_or_default())?;
        }
        Ok(())
    }
}

/// What the members of a quorum agree on.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(clippy::exhaustive_structs, reason = "made by the crate of the same house")]
pub struct Agreed {
    /// The quorum's id.
    pub quorum: Arc<str>,
    /// Who they are.
    pub members: Members,
    /// The longest lease.
    pub max_lease: Duration,
    /// For how long a counter of tokens is kept.
    pub keep: Duration,
}

impl Agreed {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, ' ');
        let quorum = parts.next()?.into();
        let (max_lease, keep) = (millis(parts.next()?)?, millis(parts.next()?)?);
        Some(Self { quorum, max_lease, keep, members: Members::parse(parts.next()?)? })
    }

    fn text(&self) -> String {
        let Self { quorum, members, max_lease, keep } = self;
        format!("{quorum} {} {} {members}", max_lease.as_millis(), keep.as_millis())
    }
}

fn millis(text: &str) -> Option<Duration> {
    text.parse().ok().map(Duration::from_millis)
}

/// What a server says of itself as a node.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(clippy::exhaustive_structs, reason = "made by the crate of the same house")]
pub struct Sight {
    /// Which server it is.
    pub run_id: Arc<str>,
    /// Its clock, in microseconds.
    pub time: u64,
    /// What it is a node of; `None` if of nothing.
    pub marker: Option<(Agreed, Standing)>,
    /// It is a node of the first members, and has never voted yet.
    pub is_new: bool,
    /// It has the marker of another server, with a copy of that one's data. It is a node of nothing.
    pub is_copy: bool,
    /// What its marker was at that time, to replace that one and no other; "" where it has none.
    pub version: Arc<str>,
    /// The epoch in which members chose it, and it became a node: it takes no part in what follows
    /// upon that one, because it may have forgotten a promise. 0 for one of the first members.
    pub admitted: u64,
    /// Whether it did by this call what it was asked.
    pub did: bool,
    /// The largest ballot that it has promised or accepted.
    pub ballot: u64,
    /// The last choice of the next members that it has accepted, and by which ballot.
    pub accepted: Option<(u64, Agreed)>,
}

impl Sight {
    /// A server without a marker.
    #[must_use]
    pub fn of(run_id: &str) -> Self {
        Self {
            run_id: run_id.into(),
            time: 0,
            marker: None,
            is_new: false,
            is_copy: false,
            version: "".into(),
            admitted: 0,
            did: false,
            ballot: 0,
            accepted: None,
        }
    }

    /// The same with a marker.
    #[must_use]
    pub fn with_marker(self, agreed: Agreed, standing: Standing) -> Self {
        Self { marker: Some((agreed, standing)), ..self }
    }
}

/// What a server is asked to do with its marker.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_enums, reason = "made by the crate of the same house")]
pub enum Step<'a> {
    /// Nothing.
    Look,
    /// To accept no smaller ballot for what follows upon this epoch of this quorum; "" and 0 where it is of none.
    Promise(&'a str, u64, u64),
    /// To accept this choice by this ballot.
    Accept(&'a str, u64, u64, &'a Agreed),
    /// To know these members, with the number of their epoch; as one that is of no quorum, to become a node.
    Record(u64, &'a Agreed, Option<&'a Admission>),
}

/// How a server becomes a node.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(clippy::exhaustive_structs, reason = "made by the crate of the same house")]
pub struct Admission {
    /// For how long it does not vote yet.
    pub pause: Duration,
    /// From when that counts at the earliest, in microseconds of its clock.
    pub not_before: u64,
    /// The marker that it replaces: see [`Sight::version`].
    pub replaces: Arc<str>,
    /// It takes part in the choice of the next members. Otherwise from the next epoch on.
    pub chooses: bool,
}

impl OwnedFormat {
    /// Asks the server of this `run_id`, or any if that is empty. Where it is another one, nothing was changed.
    pub(crate) fn mark(
        &self,
        link: &mut dyn ConnectionLike,
        run_id: &str,
        step: &Step<'_>,
        by: Moment,
    ) -> Result<Sight, Failure> {
        let marker = self.keys.marker();
        let number = |number: u64| Text::number(number).as_str().to_owned();
        let millis = |time: Duration| time.as_millis().to_string();
        let told: Vec<String> = match *step {
            Step::Look => vec!["look".to_owned()],
            Step::Promise(quorum, epoch, ballot) => {
                vec!["promise".to_owned(), quorum.to_owned(), number(epoch), number(ballot)]
            }
            Step::Accept(quorum, epoch, ballot, choice) => {
                let (epoch, ballot) = (number(epoch), number(ballot));
                vec!["accept".to_owned(), quorum.to_owned(), epoch, ballot, choice.text()]
            }
            Step::Record(epoch, agreed, admission) => {
                let (pause, not_before) = admission.map_or_else(Default::default, |admission| {
                    (millis(admission.pause), number(admission.not_before))
                });
                let replaces = admission.map_or(String::new(), |it| it.replaces.to_string());
                let chooses = admission.is_none_or(|admission| admission.chooses);
                vec![
                    "record".to_owned(),
                    agreed.quorum.to_string(),
                    number(epoch),
                    agreed.members.to_string(),
                    millis(agreed.max_lease),
                    millis(agreed.keep),
                    pause,
                    not_before,
                    replaces,
                    u8::from(!chooses).to_string(),
                ]
            }
        };
        let words: Vec<_> = [run_id]
            .into_iter()
            .chain(told.iter().map(String::as_str))
            .map(str::as_bytes)
            .collect();
        let reply = run(&MARK, link, &marker, &[marker.as_bytes()], &words, by)?;
        sight(&reply).ok_or_else(|| unexpected(link, &MARK))
    }
}

/// What the script says.
fn sight(reply: &Reply) -> Option<Sight> {
    let [run_id, Reply::Int(time), Reply::Array(fields), Reply::Int(done)] = reply.as_array()?
    else {
        return None;
    };
    let text = |reply: &Reply| Some(String::from_utf8_lossy(reply.as_bytes()?).into_owned());
    let run_id: Arc<str> = text(run_id)?.into();
    let time = u64::try_from(*time).ok()?;
    let field = |at: usize| fields.get(at).and_then(text).filter(|text| !text.is_empty());
    let number = |at| field(at).and_then(|text| text.parse::<u64>().ok());
    let mut sight = Sight {
        time,
        admitted: number(11).unwrap_or(0),
        did: *done == 1,
        ballot: number(7).unwrap_or(0),
        accepted: number(8).zip(field(9).and_then(|text| Agreed::parse(&text))),
        ..Sight::of(&run_id)
    };
    let Some(quorum) = field(0) else { return Some(sight) };
    let (quorum, epoch): (Arc<str>, _) = (quorum.into(), number(1)?);
    sight.version = format!("{epoch} {} {quorum}", field(10).unwrap_or_default()).into();
    let members = Members::parse(&field(2)?)?;
    let (max_lease, keep) = (millis(&field(3)?)?, millis(&field(4)?)?);
    let node: Arc<str> = field(5)?.into();
    if node != run_id && members.contain(&run_id) {
        // A server that was started again has a `run_id` that no member ever had.
        sight.is_copy = true;
        sight.accepted = None;
        return Some(sight);
    }
    sight.is_new = epoch == 1 && node == run_id && number(10).is_some_and(|since| since > time);
    let agreed = Agreed { quorum: Arc::clone(&quorum), members: members.clone(), max_lease, keep };
    sight.marker = Some((agreed, Standing { quorum, epoch, members, node, run_id }));
    Some(sight)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Reply {
        Reply::Bulk(text.as_bytes().to_vec())
    }

    fn seen(run_id: &str, fields: [&str; 12]) -> Option<Sight> {
        let field = |text: &&str| if text.is_empty() { Reply::Nil } else { bulk(text) };
        let fields = fields.iter().map(field).collect();
        sight(&Reply::Array(vec![bulk(run_id), Reply::Int(5), Reply::Array(fields), Reply::Int(0)]))
    }

    const MEMBERS: &str = "a1@h:1 @h:2 c3@[::1]:3";

    #[test]
    fn members_are_parsed_as_they_are_formatted() {
        let members = Members::parse(MEMBERS).unwrap();
        assert_eq!((members.to_string().as_str(), members.count()), (MEMBERS, 3));
        assert!(members.contain("a1") && !members.contain("") && !members.contain("b2"));
        let newcomer = Member { id: Some("b2".into()), address: "h:4".into() };
        assert_eq!(members.with(1, newcomer).to_string(), "a1@h:1 b2@h:4 c3@[::1]:3");
        let agreed = Agreed {
            quorum: "q".into(),
            members,
            max_lease: Duration::from_secs(1),
            keep: Duration::from_secs(2),
        };
        assert_eq!(Agreed::parse(&agreed.text()), Some(agreed));
    }

    #[test]
    fn server_with_a_copied_marker_is_told_from_a_restarted_one() {
        let fields = ["q", "2", MEMBERS, "1000", "2000", "a1", "a1", "", "", "", "5", "2"];
        let (agreed, standing) = seen("a1", fields).unwrap().marker.unwrap();
        assert_eq!(
            (&*standing.node, standing.epoch, agreed.keep),
            ("a1", 2, Duration::from_secs(2))
        );
        assert_eq!(&*seen("new", fields).unwrap().marker.unwrap().1.run_id, "new");
        let copy = seen("c3", fields).unwrap();
        assert!(copy.is_copy && copy.marker.is_none());
    }

    #[test]
    fn open_choice_is_no_marker() {
        let choice = "q 1000 2000 a1@h:1";
        let seen = seen("a1", ["", "", "", "", "", "", "", "7", "6", choice, "", ""]).unwrap();
        assert_eq!((seen.marker, seen.ballot), (None, 7));
        assert_eq!(
            seen.accepted.map(|(ballot, its)| (ballot, its.text())),
            Some((6, choice.into()))
        );
    }
}
