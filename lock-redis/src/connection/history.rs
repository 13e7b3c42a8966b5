//! [`judge`]: decides if a server continues the data of the server that was known before.
//!
//! A `run_id` changes with every restart and says nothing about the data. The replication ID and
//! the offset do: see `Judgement of a server` in `docs/DESIGN.md`.

use crate::connection::{Request, info_field};
use std::time::Duration;

/// The query for a server's replication IDs and offsets.
pub(crate) const HISTORY: Request<'static> = Request(&[&[b"INFO", b"replication"]]);

/// A server's position in the history of its data, as the server has reported it at the start of a
/// connection or after a write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Noted {
    /// The ID of the server's process.
    pub(crate) run_id: String,
    /// The server's replication ID, from the same reply as the offset.
    pub(crate) id: String,
    pub(crate) offset: i64,
}

/// A server's report about itself in reply to `INFO`. A missing field is `None`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Shown {
    pub(crate) run_id: Option<String>,
    pub(crate) is_master: Option<bool>,
    /// The address of the server's master, if it is a replica.
    pub(crate) master: Option<String>,
    /// True if the link to that master is up.
    pub(crate) has_master_link: Option<bool>,
    pub(crate) is_loading: Option<bool>,
    pub(crate) id: Option<String>,
    pub(crate) offset: Option<i64>,
    /// The replication ID before the present one, and the first offset under that ID that the
    /// server did not apply.
    pub(crate) former_id: Option<String>,
    pub(crate) former_end: Option<i64>,
    pub(crate) has_backlog: Option<bool>,
    /// In seconds, by the server's time of day. Negative if the time of day was set back.
    pub(crate) uptime: Option<i64>,
}

/// The relation of a server to the server that was known before. See [`judge`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Judgement {
    /// The server does not report enough, or no earlier report was noted.
    NotShown,
    /// The server is loading its data: its IDs are not final.
    Loading,
    /// The server is a replica.
    Replica,
    /// The same process, which has been master since the noted report: it has the noted data.
    Same,
    /// Another process with the noted data, or the same process after it was a replica for a while.
    Continued,
    /// The server has only a part of the noted history, up to an earlier offset than the noted one.
    Cut,
    Unknown(Doubt),
}

/// The reasons why it is unknown if a server has the noted data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Doubt {
    /// The server continued the history, but a failed resynchronisation may have emptied its data.
    NoBacklog,
    /// The same process with a new replication ID and no former one: its first replica was
    /// attached.
    Renewed,
    /// The same process, which was meanwhile a replica of another server.
    Demoted,
    /// Another process with the same replication ID.
    SameId,
    /// The process was started after the noted report: the known server was restarted, or this is a
    /// new server.
    StartedSince,
    /// Another server, or a server that has the known data after two failovers.
    Stranger,
}

impl Judgement {
    /// Returns `true` if the server has at least a part of the same history: it was a replica of
    /// the known server, or is that server. A master that runs on while it is replaced continues
    /// its own history, so the common part with its successor mostly ends before the noted offset.
    pub(crate) fn is_of_same_history(self) -> bool {
        matches!(self, Self::Same | Self::Continued | Self::Cut)
    }
}

impl Shown {
    /// Reads a reply to `INFO`, whichever sections it has.
    pub(crate) fn read(info: &str) -> Self {
        let text = |name| {
            info_field(info, name)
                .map(str::trim)
                .filter(|text| !text.is_empty())
        };
        let owned = |name| text(name).map(str::to_owned);
        let number = |name| text(name).and_then(|text| text.parse::<i64>().ok());
        let flag = |name| number(name).map(|number| number != 0);
        let master = text("master_host").zip(text("master_port"));
        Self {
            run_id: owned("run_id"),
            is_master: text("role").map(|role| role == "master"),
            master: master.map(|(host, port)| format!("{host}:{port}")),
            has_master_link: text("master_link_status").map(|status| status == "up"),
            is_loading: flag("loading"),
            id: owned("master_replid"),
            offset: number("master_repl_offset"),
            former_id: owned("master_replid2"),
            former_end: number("second_repl_offset"),
            has_backlog: flag("repl_backlog_active"),
            uptime: number("uptime_in_seconds"),
        }
    }

    /// Returns the process, ID and offset to be noted, if the server reports them.
    pub(crate) fn noted(&self) -> Option<Noted> {
        let (run_id, id) = (self.run_id.clone()?, self.id.clone()?);
        Some(Noted {
            run_id,
            id,
            offset: self.offset?,
        })
    }
}

/// Judges a server by its report; `silence` is the time since `noted` was reported.
///
/// [`Same`](Judgement::Same) and [`Continued`](Judgement::Continued) prove that the server has the
/// noted data. [`Cut`](Judgement::Cut) proves that the server lacks the last write, if the noted
/// offset was read right after that write. The other judgements prove nothing: then the keys of the
/// held locks decide.
pub(crate) fn judge(noted: &Noted, shown: &Shown, silence: Duration) -> Judgement {
    let Shown {
        is_master: Some(is_master),
        is_loading,
        ..
    } = shown
    else {
        return Judgement::NotShown;
    };
    if *is_loading == Some(true) {
        return Judgement::Loading;
    }
    if !is_master {
        return Judgement::Replica;
    }
    let (Some(run_id), Some(id), Some(offset), Some(former_id), Some(former_end), Some(backlog)) = (
        &shown.run_id,
        &shown.id,
        shown.offset,
        &shown.former_id,
        shown.former_end,
        shown.has_backlog,
    ) else {
        return Judgement::NotShown;
    };
    let is_same_process = *run_id == noted.run_id;
    if is_same_process && *id == noted.id {
        return if offset >= noted.offset {
            Judgement::Same
        } else {
            Judgement::Cut
        };
    }
    if *former_id == noted.id {
        return match (former_end > noted.offset, backlog) {
            (true, true) => Judgement::Continued,
            (true, false) => Judgement::Unknown(Doubt::NoBacklog),
            (false, _) => Judgement::Cut,
        };
    }
    let has_former = former_id.bytes().any(|byte| byte != b'0');
    let started_since = || {
        let uptime = shown
            .uptime
            .map(|uptime| u64::try_from(uptime).unwrap_or(0));
        uptime.is_some_and(|uptime| Duration::from_secs(uptime) < silence)
    };
    Judgement::Unknown(match (is_same_process, has_former) {
        (true, false) => Doubt::Renewed,
        (true, true) => Doubt::Demoted,
        (false, _) if *id == noted.id => Doubt::SameId,
        (false, _) if started_since() => Doubt::StartedSince,
        (false, _) => Doubt::Stranger,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZEROS: &str = "0000000000000000000000000000000000000000";
    const SILENCE: Duration = Duration::from_secs(10);

    fn noted() -> Noted {
        Noted {
            run_id: "run".to_owned(),
            id: "X".to_owned(),
            offset: 100,
        }
    }

    /// Returns the report of a master with these IDs and offsets, which has run for an hour.
    fn shown(run_id: &str, id: &str, offset: i64, former: (&str, i64), backlog: i64) -> String {
        format!(
            "# Server\r\nrun_id:{run_id}\r\nuptime_in_seconds:3600\r\n# Persistence\r\n\
             loading:0\r\n# Replication\r\nrole:master\r\nmaster_replid:{id}\r\n\
             master_replid2:{}\r\nmaster_repl_offset:{offset}\r\nsecond_repl_offset:{}\r\n\
             repl_backlog_active:{backlog}\r\n",
            former.0, former.1
        )
    }

    fn judged(info: &str) -> Judgement {
        judge(&noted(), &Shown::read(info), SILENCE)
    }

    /// The rows are those of the table in `docs/DESIGN.md`; the first row that fits decides.
    #[test]
    fn each_row_of_the_table_has_its_judgement() {
        use Doubt::{Demoted, NoBacklog, Renewed, SameId, StartedSince, Stranger};
        use Judgement::{Continued, Cut, Loading, NotShown, Replica, Same, Unknown};
        let same = shown("run", "X", 100, (ZEROS, -1), 1);
        let other = shown("other", "Y", 500, (ZEROS, -1), 0);
        let with_uptime = |seconds: &str| other.replace("3600", seconds);
        for (row, info, expected) in [
            // The role decides before the IDs, and loading before the role, because the IDs are not
            // final while the server is loading.
            (2, same.replace("loading:0", "loading:1"), Loading),
            (
                2,
                same.replace("loading:0", "loading:1")
                    .replace("master\r\n", "slave\r\n"),
                Loading,
            ),
            (3, same.replace("role:master", "role:slave"), Replica),
            (
                3,
                shown("b", "Y", 9, ("X", 101), 1).replace("role:master", "role:slave"),
                Replica,
            ),
            (4, same.clone(), Same),
            (4, shown("run", "X", 101, (ZEROS, -1), 0), Same),
            (4, shown("run", "X", 100, ("W", 7), 1), Same),
            (5, shown("run", "X", 99, (ZEROS, -1), 1), Cut),
            (6, shown("other", "Y", 500, ("X", 101), 1), Continued),
            (6, shown("run", "Y", 500, ("X", 101), 1), Continued),
            (7, shown("other", "Y", 500, ("X", 100), 1), Cut),
            (7, shown("other", "Y", 500, ("X", 74), 0), Cut),
            (
                8,
                shown("other", "Y", 500, ("X", 101), 0),
                Unknown(NoBacklog),
            ),
            (9, shown("run", "Y", 500, (ZEROS, -1), 1), Unknown(Renewed)),
            (10, shown("run", "Y", 500, ("Z", 600), 1), Unknown(Demoted)),
            (
                11,
                shown("other", "X", 500, (ZEROS, -1), 1),
                Unknown(SameId),
            ),
            (12, with_uptime("9"), Unknown(StartedSince)),
            (12, with_uptime("-98"), Unknown(StartedSince)),
            (13, with_uptime("10"), Unknown(Stranger)),
            (13, other.clone(), Unknown(Stranger)),
            (
                13,
                shown("other", "Y", 500, ("Z", 600), 1),
                Unknown(Stranger),
            ),
            (
                13,
                other.replace("uptime_in_seconds", "uptime"),
                Unknown(Stranger),
            ),
            // A reply without the section, as of a proxy or of another implementation.
            (1, String::new(), NotShown),
            (1, "# Replication\r\n".to_owned(), NotShown),
        ] {
            assert_eq!(judged(&info), expected, "row {row}: {info}");
        }
    }

    #[test]
    fn server_that_leaves_a_field_out_is_not_judged() {
        let whole = shown("other", "Y", 500, ("X", 101), 1);
        for field in [
            "run_id:",
            "role:",
            "master_replid:",
            "master_replid2:",
            "master_repl_offset:",
            "second_repl_offset:",
            "repl_backlog_active:",
        ] {
            let rest: Vec<_> = whole
                .lines()
                .filter(|line| !line.starts_with(field))
                .collect();
            assert_eq!(
                judged(&rest.join("\r\n")),
                Judgement::NotShown,
                "without {field}"
            );
        }
        // A service that hides `loading` can still be judged.
        let without_loading = whole.replace("loading:0\r\n", "");
        assert_eq!(judged(&without_loading), Judgement::Continued);
        // A replica is not followed, even if other fields are missing.
        let replica = "role:slave\r\nmaster_host:10.0.0.7\r\nmaster_port:6380\r\n";
        assert_eq!(judged(replica), Judgement::Replica);
        assert_eq!(
            Shown::read(replica).master.as_deref(),
            Some("10.0.0.7:6380")
        );
    }

    #[test]
    fn what_is_noted_is_judged_as_the_same_server() {
        let info = shown("run", "X", 100, (ZEROS, -1), 1);
        assert_eq!(Shown::read(&info).noted(), Some(noted()));
        assert_eq!(
            Shown::read(&info.replace("master_repl_offset", "offset")).noted(),
            None
        );
    }
}
