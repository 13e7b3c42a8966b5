//! The marker of a quorum node: its quorum, the members, and the choice of the next members.
//!
//! Its purpose is explained in `docs/DESIGN.md`, section Quorum.

use crate::connection::{Batch, Reply, Text};
use crate::lua::MARK;
use crate::protocol::{Exchange, OwnedFormat};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A node of a quorum and the membership under which it votes.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(
    clippy::exhaustive_structs,
    reason = "made by the crate of the same workspace"
)]
pub struct NodeView {
    /// The ID of the quorum.
    pub quorum: Arc<str>,
    /// The number of the membership, from 1.
    pub epoch: u64,
    /// The membership.
    pub members: Members,
    /// The ID of the server in the membership: its `run_id` when it was recorded.
    pub node: Arc<str>,
    /// The present `run_id` of the server.
    pub run_id: Arc<str>,
    /// The address of the server whose clock determined the earliest start of this server's pause,
    /// because that clock was ahead: see [`Admission::clock`].
    pub clock: Option<Arc<str>>,
    /// True if the server did not vote yet when the marker was read.
    pub is_paused: bool,
}

/// A member that clients cannot reach, as a server has recorded it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(
    clippy::exhaustive_structs,
    reason = "made by the crate of the same workspace"
)]
pub struct MissingMember {
    /// The ID of the member.
    pub id: Arc<str>,
    /// The time since which no client has reached the member, in microseconds of the clock of the
    /// server that recorded it.
    pub since: u64,
    /// The first clients that could not reach the member, two at most.
    pub clients: Vec<Arc<str>>,
}

/// The members of a quorum.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Members(Arc<[Member]>);

/// A member, or a vacant place.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(
    clippy::exhaustive_structs,
    reason = "made by the crate of the same workspace"
)]
pub struct Member {
    /// The ID of the server; `None` for a vacant place.
    pub id: Option<Arc<str>>,
    /// The address of the server when it was recorded.
    pub address: Arc<str>,
}

impl Members {
    /// Returns the number of members, vacant places included.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns all members, vacant places included.
    pub fn iter(&self) -> impl Iterator<Item = &Member> {
        self.0.iter()
    }

    /// Returns whether a member has this ID.
    #[must_use]
    pub fn contain(&self, id: &str) -> bool {
        self.0.iter().any(|member| member.id.as_deref() == Some(id))
    }

    /// Returns these members with another member in this place.
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
            Some(Member {
                id,
                address: address.into(),
            })
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

/// The quorum, its members and its settings, on which the members agree.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(
    clippy::exhaustive_structs,
    reason = "made by the crate of the same workspace"
)]
pub struct Agreement {
    /// The ID of the quorum.
    pub quorum: Arc<str>,
    /// The members.
    pub members: Members,
    /// The longest lease.
    pub max_lease: Duration,
    /// The time for which a token counter is stored.
    pub keep: Duration,
}

impl Agreement {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, ' ');
        let quorum = parts.next()?.into();
        let (max_lease, keep) = (millis(parts.next()?)?, millis(parts.next()?)?);
        Some(Self {
            quorum,
            max_lease,
            keep,
            members: Members::parse(parts.next()?)?,
        })
    }

    fn text(&self) -> String {
        let Self {
            quorum,
            members,
            max_lease,
            keep,
        } = self;
        format!(
            "{quorum} {} {} {members}",
            max_lease.as_millis(),
            keep.as_millis()
        )
    }
}

fn millis(text: &str) -> Option<Duration> {
    text.parse().ok().map(Duration::from_millis)
}

/// The state of a server: its marker, and its promises.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(
    clippy::exhaustive_structs,
    reason = "made by the crate of the same workspace"
)]
pub struct ServerState {
    /// The `run_id` of the server.
    pub run_id: Arc<str>,
    /// The clock of the server, in microseconds.
    pub time: u64,
    /// The marker; `None` if the server is no node.
    pub marker: Option<(Agreement, NodeView)>,
    /// The time from which the server votes, in microseconds of its clock.
    pub votes_from: u64,
    /// True if the server was restarted since it became a node or voted last.
    pub is_restarted: bool,
    /// True for a node that has not voted yet, because it became a node less than one pause ago.
    pub is_new: bool,
    /// True if the marker is a copy of another member's, so that the server is no node.
    pub is_copy: bool,
    /// The version of the marker, for [`Admission::replaces`]; "" without one.
    pub version: Arc<str>,
    /// The epoch in which the server was admitted without [`Admission::chooses`]; otherwise 0, as
    /// for the first members. In that epoch the server does not take part in the choice of the next
    /// members, because it may have forgotten a promise.
    pub admitted: u64,
    /// True if the server made the change that was requested; false for a read.
    pub is_done: bool,
    /// The largest ballot that the server has promised or accepted.
    pub ballot: u64,
    /// The choice of the next members that the server accepted last, with its ballot.
    pub accepted: Option<(u64, Agreement)>,
    /// The members that clients cannot reach.
    pub missing: Vec<MissingMember>,
}

impl ServerState {
    /// Returns the state of a server without a marker.
    #[must_use]
    pub fn of(run_id: &str) -> Self {
        Self {
            run_id: run_id.into(),
            time: 0,
            marker: None,
            votes_from: 0,
            is_restarted: false,
            is_new: false,
            is_copy: false,
            version: "".into(),
            admitted: 0,
            is_done: false,
            ballot: 0,
            accepted: None,
            missing: Vec::new(),
        }
    }

    /// Returns the node that the marker names.
    #[must_use]
    pub fn view(&self) -> Option<Arc<NodeView>> {
        self.marker.as_ref().map(|(_, view)| Arc::new(view.clone()))
    }

    /// Returns this state with another marker.
    #[must_use]
    pub fn with_marker(self, agreed: Agreement, view: NodeView) -> Self {
        Self {
            marker: Some((agreed, view)),
            ..self
        }
    }
}

/// A request to read or change the marker.
#[derive(Clone, Copy, Debug)]
#[allow(
    clippy::exhaustive_enums,
    reason = "made by the crate of the same workspace"
)]
pub enum MarkerRequest<'a> {
    /// Reads the marker.
    Look,
    /// Promises to accept no smaller ballot in the choice of the next members. The fields are the
    /// present quorum and epoch, which are "" and 0 for a server without a marker, and the ballot.
    Promise(&'a str, u64, u64),
    /// Accepts a choice of the next members. The fields are the present quorum and epoch, the
    /// ballot, and the choice.
    Accept(&'a str, u64, u64, &'a Agreement),
    /// Records these members of this epoch. With an admission, the server becomes a node, if its
    /// marker is the one that the admission replaces. Otherwise it records the members only if it
    /// is a node of the same quorum with an earlier epoch.
    Record(u64, &'a Agreement, Option<&'a Admission>),
    /// Records which members a client cannot reach. The fields are the quorum, the epoch, the
    /// client, and the IDs of the members.
    Note(&'a str, u64, &'a str, &'a [Arc<str>]),
    /// Makes the server vote earlier than its marker says, on these terms.
    Shorten(&'a Admission),
}

/// The terms on which a server becomes a node.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(
    clippy::exhaustive_structs,
    reason = "made by the crate of the same workspace"
)]
pub struct Admission {
    /// The time for which the server does not vote.
    pub pause: Duration,
    /// The earliest start of the pause, in microseconds of the server's clock.
    pub not_before: u64,
    /// The address of the other server whose clock determined `not_before`, if that clock is ahead;
    /// else "".
    pub clock: Arc<str>,
    /// The version of the marker to replace: see [`ServerState::version`].
    pub replaces: Arc<str>,
    /// True if the server takes part in the choice of the next members now; false if only from the
    /// next epoch on.
    pub chooses: bool,
}

impl Admission {
    /// Returns the admission of a node that takes part in the choice of the next members at once,
    /// and votes after this pause.
    #[must_use]
    pub fn at_once(pause: Duration, replaces: &str) -> Self {
        let (clock, replaces) = ("".into(), replaces.into());
        Self {
            pause,
            not_before: 0,
            clock,
            replaces,
            chooses: true,
        }
    }
}

impl OwnedFormat {
    /// Returns the exchange of a request about the marker. Any server answers a read, but only the
    /// server with this `run_id` changes its marker.
    pub(crate) fn mark<'a>(
        &self,
        run_id: &str,
        request: &MarkerRequest<'_>,
    ) -> Exchange<'a, ServerState> {
        let marker = self.keys.marker();
        let number = |number: u64| Text::number(number).as_str().to_owned();
        let millis = |time: Duration| time.as_millis().to_string();
        let told: Vec<String> = match *request {
            MarkerRequest::Look => vec!["look".to_owned()],
            MarkerRequest::Promise(quorum, epoch, ballot) => {
                vec![
                    "promise".to_owned(),
                    quorum.to_owned(),
                    number(epoch),
                    number(ballot),
                ]
            }
            MarkerRequest::Accept(quorum, epoch, ballot, choice) => {
                let (epoch, ballot) = (number(epoch), number(ballot));
                vec![
                    "accept".to_owned(),
                    quorum.to_owned(),
                    epoch,
                    ballot,
                    choice.text(),
                ]
            }
            MarkerRequest::Record(epoch, agreed, admission) => {
                let (pause, not_before) = admission.map_or_else(Default::default, |admission| {
                    (millis(admission.pause), number(admission.not_before))
                });
                let replaces = admission.map_or(String::new(), |it| it.replaces.to_string());
                let clock = admission.map_or(String::new(), |it| it.clock.to_string());
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
                    clock,
                ]
            }
            MarkerRequest::Note(quorum, epoch, client, missing) => {
                let (epoch, client) = (number(epoch), client.to_owned());
                vec![
                    "note".to_owned(),
                    quorum.to_owned(),
                    epoch,
                    missing.join(" "),
                    client,
                ]
            }
            MarkerRequest::Shorten(Admission {
                pause,
                not_before,
                clock,
                replaces,
                ..
            }) => {
                let mut told = vec![String::new(); 11];
                told[0] = "shorten".to_owned();
                told[6] = millis(*pause);
                told[7] = number(*not_before);
                told[8] = replaces.to_string();
                told[10] = clock.to_string();
                told
            }
        };
        let words: Vec<_> = [run_id]
            .into_iter()
            .chain(told.iter().map(String::as_str))
            .map(str::as_bytes)
            .collect();
        let batch = Batch::script(&MARK, &[marker.as_bytes()], &words);
        Exchange::call(batch, |received| {
            state(received.reply()).ok_or_else(|| received.unexpected(&MARK))
        })
    }
}

/// Reads the reply of the script. `None` if it is invalid.
fn state(reply: &Reply) -> Option<ServerState> {
    let [
        run_id,
        Reply::Int(time),
        Reply::Array(fields),
        Reply::Int(done),
    ] = reply.as_array()?
    else {
        return None;
    };
    let text = |reply: &Reply| Some(String::from_utf8_lossy(reply.as_bytes()?).into_owned());
    let run_id: Arc<str> = text(run_id)?.into();
    let time = u64::try_from(*time).ok()?;
    let field = |at: usize| {
        fields
            .get(at)
            .and_then(text)
            .filter(|text| !text.is_empty())
    };
    let number = |at| field(at).and_then(|text| text.parse::<u64>().ok());
    let mut state = ServerState {
        time,
        votes_from: number(10).unwrap_or(0),
        is_restarted: field(6).is_some_and(|voted_as| *voted_as != *run_id),
        admitted: number(11).unwrap_or(0),
        is_done: *done == 1,
        ballot: number(7).unwrap_or(0),
        accepted: number(8).zip(field(9).and_then(|text| Agreement::parse(&text))),
        missing: field(13).map(|text| missing(&text)).unwrap_or_default(),
        ..ServerState::of(&run_id)
    };
    let Some(quorum) = field(0) else {
        return Some(state);
    };
    let (quorum, epoch): (Arc<str>, _) = (quorum.into(), number(1)?);
    state.version = format!("{epoch} {} {quorum}", field(10).unwrap_or_default()).into();
    let members = Members::parse(&field(2)?)?;
    let (max_lease, keep) = (millis(&field(3)?)?, millis(&field(4)?)?);
    let node: Arc<str> = field(5)?.into();
    if node != run_id && members.contain(&run_id) {
        // This member has the marker of another member, so its data were copied. A restarted server
        // would have a `run_id` that no member ever had.
        state.is_copy = true;
        state.accepted = None;
        return Some(state);
    }
    let is_paused = state.votes_from > time;
    state.is_new = node == run_id && is_paused;
    let agreed = Agreement {
        quorum: Arc::clone(&quorum),
        members: members.clone(),
        max_lease,
        keep,
    };
    let clock = field(12).map(Arc::from);
    let view = NodeView {
        quorum,
        epoch,
        members,
        node,
        run_id,
        clock,
        is_paused,
    };
    state.marker = Some((agreed, view));
    Some(state)
}

/// Reads the list of missing members.
fn missing(text: &str) -> Vec<MissingMember> {
    let member = |text: &str| {
        let mut parts = text.splitn(3, '@');
        let (id, since) = (parts.next()?.into(), parts.next()?.parse().ok()?);
        let clients = parts.next()?.split(',').map(Arc::from).collect();
        Some(MissingMember { id, since, clients })
    };
    text.split(' ').filter_map(member).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Reply {
        Reply::Bulk(text.as_bytes().to_vec())
    }

    fn seen<const FIELDS: usize>(run_id: &str, fields: [&str; FIELDS]) -> Option<ServerState> {
        let field = |text: &&str| {
            if text.is_empty() {
                Reply::Nil
            } else {
                bulk(text)
            }
        };
        let fields = fields.iter().map(field).collect();
        state(&Reply::Array(vec![
            bulk(run_id),
            Reply::Int(5),
            Reply::Array(fields),
            Reply::Int(0),
        ]))
    }

    const MEMBERS: &str = "a1@h:1 @h:2 c3@[::1]:3";

    #[test]
    fn members_are_parsed_as_they_are_formatted() {
        let members = Members::parse(MEMBERS).unwrap();
        assert_eq!(
            (members.to_string().as_str(), members.count()),
            (MEMBERS, 3)
        );
        assert!(members.contain("a1") && !members.contain("") && !members.contain("b2"));
        let newcomer = Member {
            id: Some("b2".into()),
            address: "h:4".into(),
        };
        assert_eq!(
            members.with(1, newcomer).to_string(),
            "a1@h:1 b2@h:4 c3@[::1]:3"
        );
        let agreed = Agreement {
            quorum: "q".into(),
            members,
            max_lease: Duration::from_secs(1),
            keep: Duration::from_secs(2),
        };
        assert_eq!(Agreement::parse(&agreed.text()), Some(agreed));
    }

    #[test]
    fn server_with_a_copied_marker_is_told_from_a_restarted_one() {
        let fields = [
            "q", "2", MEMBERS, "1000", "2000", "a1", "a1", "", "", "", "5", "2",
        ];
        let (agreed, view) = seen("a1", fields).unwrap().marker.unwrap();
        assert_eq!(
            (&*view.node, view.epoch, agreed.keep),
            ("a1", 2, Duration::from_secs(2))
        );
        assert_eq!(
            &*seen("new", fields).unwrap().marker.unwrap().1.run_id,
            "new"
        );
        let copy = seen("c3", fields).unwrap();
        assert!(copy.is_copy && copy.marker.is_none());
    }

    #[test]
    fn missing_members_and_whose_clock_decides_are_parsed() {
        let noted = "a1@5@one c3@7@one,two";
        let fields = [
            "q", "2", MEMBERS, "1", "2", "a1", "a1", "", "", "", "5", "2", "h:3", noted,
        ];
        let state = seen("a1", fields).unwrap();
        let missing: Vec<_> = state
            .missing
            .iter()
            .map(|it| (&*it.id, it.since, it.clients.len()))
            .collect();
        assert_eq!(missing, [("a1", 5, 1), ("c3", 7, 2)]);
        assert_eq!(state.view().unwrap().clock.as_deref(), Some("h:3"));
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
