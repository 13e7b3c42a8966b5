//! Findings about the sentinels of a master: consequences of their state for locks.

use super::report::{MasterReport, SentinelReply};
use crate::connection::Address;
use lock_core::{Finding, FindingLevel};
use std::collections::BTreeSet;
use std::time::Duration;

/// The smallest number of sentinels that can still fail over after the loss of one.
const FEWEST: usize = 3;

/// The time that a failover takes once the master counts as down, as in measurements. The master
/// counts as down after `down-after-milliseconds`.
const FAILOVER: Duration = Duration::from_secs(2);

/// Returns the findings about these sentinels, all of which were queried. `lease` is the longest
/// lease of locks that are acquired without a lease of their own.
pub(super) fn diagnose(
    subject: &str,
    said: &[(Address, Option<SentinelReply>)],
    lease: Duration,
) -> Vec<Finding> {
    const ID: &str = "sentinel_reachable";
    let mut findings = Vec::new();
    for (address, reply) in said {
        let seen = match reply {
            Some(SentinelReply::MasterReport(_)) => continue,
            Some(SentinelReply::Failed(failure)) => {
                Finding::failed(FindingLevel::Warning, ID, address, failure.error())
            }
            Some(SentinelReply::Unknown(_)) => Finding::new(
                FindingLevel::Warning,
                ID,
                address,
                "it does not watch this master",
            ),
            None => Finding::new(FindingLevel::Warning, ID, address, "no answer in time"),
        };
        let finding = seen.why("fewer sentinels can agree on a failover");
        findings.push(finding.remedy("start it, or correct the URL"));
    }
    let mut add = |level, id, seen: String, why: &str, remedy: &str| {
        findings.push(
            Finding::new(level, id, subject, seen)
                .why(why)
                .remedy(remedy),
        );
    };
    let (ok, warning, danger) = (
        FindingLevel::Ok,
        FindingLevel::Warning,
        FindingLevel::Danger,
    );
    let reports: Vec<&MasterReport> = said
        .iter()
        .filter_map(|(_, said)| match said {
            Some(SentinelReply::MasterReport(report)) => Some(&**report),
            _ => None,
        })
        .collect();
    let known: BTreeSet<_> = reports
        .iter()
        .flat_map(|report| report.account.ids())
        .collect();
    let seen = format!("{} know each other", known.len());
    if known.len() < FEWEST {
        let why = "a failover needs most of them: the loss of one prevents it";
        add(
            warning,
            "sentinels",
            seen,
            why,
            "run three or five, on different machines",
        );
    } else {
        add(ok, "sentinels", seen, "", "");
    }
    let masters: BTreeSet<_> = reports
        .iter()
        .map(|report| report.master.to_string())
        .collect();
    let listed = masters
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(" and ");
    if masters.len() > 1 {
        let why = "clients may follow different masters, and both grant";
        let remedy = "wait for the end of a failover; else `SENTINEL RESET` on the sentinels that \
                      are wrong";
        add(
            danger,
            "sentinel_agreement",
            format!("they name {listed}"),
            why,
            remedy,
        );
    } else {
        add(
            ok,
            "sentinel_agreement",
            format!("all name {listed}"),
            "",
            "",
        );
    }
    if let Some(quorum) = reports.iter().filter_map(|report| report.quorum).max() {
        let seen = format!("quorum {quorum} of {} sentinels", known.len());
        if quorum as usize > known.len() {
            let remedy = "`SENTINEL SET <master> quorum 2` on each sentinel";
            add(
                warning,
                "sentinel_quorum",
                seen,
                "no master is ever replaced",
                remedy,
            );
        } else {
            add(ok, "sentinel_quorum", seen, "", "");
        }
    }
    if let Some(down_after) = reports.iter().filter_map(|report| report.down_after).max() {
        let needed = (down_after + FAILOVER) * 2;
        let seen = format!("down-after-milliseconds is {}", down_after.as_millis());
        if lease <= needed {
            let why = format!("a held lock with a lease of {lease:?} does not survive a failover");
            let remedy = format!(
                "`SENTINEL SET <master> down-after-milliseconds 5000` on each sentinel, or \
                 `watchdog={:?}` in the URL",
                needed + Duration::from_secs(1)
            );
            add(warning, "sentinel_down_after", seen, &why, &remedy);
        } else {
            add(ok, "sentinel_down_after", seen, "", "");
        }
    }
    let down: BTreeSet<_> = reports
        .iter()
        .flat_map(|report| &report.replicas_down)
        .collect();
    if !down.is_empty() {
        let seen = format!(
            "down, as sentinels see it: {}",
            down.into_iter().cloned().collect::<Vec<_>>().join(", ")
        );
        let why = "it cannot take the master's place, and nothing waits for its acknowledgement";
        let remedy = "start it, or `SENTINEL RESET <master>` if it is gone for good";
        add(warning, "sentinel_replicas", seen, why, remedy);
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Account;
    use lock_core::Moment;

    fn report(id: &str, master: &str, others: &[&str]) -> (Address, Option<SentinelReply>) {
        let address = Address::new(id, 1);
        let listed = others
            .iter()
            .map(|&id| (id.to_owned(), Address::new(id, 1)))
            .collect();
        let report = MasterReport {
            master: Address::new(master, 6379),
            epoch: 1,
            run_id: None,
            asked: Moment::from_nanos(0),
            replica_ids: None,
            has_unheard: false,
            replicas: Vec::new(),
            replicas_down: Vec::new(),
            quorum: Some(4),
            down_after: Some(Duration::from_secs(30)),
            account: Account {
                asked_at: address.clone(),
                id: id.to_owned(),
                listed,
            },
        };
        (address, Some(SentinelReply::MasterReport(Box::new(report))))
    }

    /// Real sentinels leave this state too soon for a test.
    #[test]
    fn sentinels_that_name_two_masters_are_a_danger() {
        let said = [
            report("a", "m1", &["b", "c"]),
            report("b", "m2", &["a", "c"]),
        ];
        let findings = diagnose("s", &said, Duration::from_secs(64));
        let level = |id| findings.iter().find(|it| it.id == id).map(|it| it.level);
        assert_eq!(level("sentinel_agreement"), Some(FindingLevel::Danger));
        assert_eq!(level("sentinels"), Some(FindingLevel::Ok));
        assert_eq!(level("sentinel_quorum"), Some(FindingLevel::Warning));
        assert_eq!(level("sentinel_down_after"), Some(FindingLevel::Warning));
        let longer = diagnose("s", &said, Duration::from_secs(65));
        assert!(
            longer
                .iter()
                .any(|it| it.id == "sentinel_down_after" && it.why.is_empty())
        );
    }
}
