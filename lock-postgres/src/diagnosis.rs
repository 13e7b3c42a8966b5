//! The findings about a server's settings and state.

use crate::numbers::duration;
use crate::store::PostgresStore;
use crate::watches::ECHO;
use lock_core::backend::Failure;
use lock_core::{Error, Finding, FindingLevel, Moment};
use postgres::types::Type;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The largest difference between the clocks that needs no mention, because leases are measured by
/// the server's clock alone.
const CLOCKS: Duration = Duration::from_secs(2);

pub(crate) fn diagnose(store: &PostgresStore, by: Moment) -> Result<Vec<Finding>, Failure> {
    let statement = "SELECT current_setting('server_version'), \
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, \
        current_setting('max_connections')::bigint, \
        (SELECT count(*) FROM pg_stat_activity), \
        current_setting('synchronous_commit'), \
        current_setting('synchronous_standby_names'), \
        (SELECT count(*) FROM pg_stat_replication), \
        current_setting('statement_timeout'), \
        current_setting('autovacuum'), \
        current_setting('fsync'), \
        current_setting('default_transaction_isolation')";
    let mut findings = Vec::new();
    let (rows, server) = store.pool.with(by, |connection| {
        let rows = connection.query(statement, &[], by)?;
        Ok((rows, connection.server().to_owned()))
    })?;
    let Some(row) = rows.first() else {
        return Ok(findings);
    };
    let text = |at: usize| -> String { row.get(at) };
    let number = |at: usize| -> i64 { row.get(at) };
    findings.push(Finding::ok("version", &server, text(0)));

    let here = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let there = duration(number(1));
    let difference = here.abs_diff(there);
    findings.push(match difference > CLOCKS {
        false => Finding::ok("clock", &server, "as here"),
        true => Finding::new(
            FindingLevel::Warning,
            "clock",
            &server,
            format!("differs by {difference:.1?}"),
        )
        .why("leases are measured by the server's clock, and new tokens begin with it")
        .remedy("synchronise the clocks by NTP"),
    });

    let (most, used) = (number(2), number(3));
    findings.push(match used * 10 > most * 9 {
        false => Finding::ok("connections", &server, format!("{used} of {most}")),
        true => Finding::new(
            FindingLevel::Warning,
            "connections",
            &server,
            format!("{used} of {most}"),
        )
        .why("without a free connection no lock is granted, and lost ones are not renewed")
        .remedy("raise max_connections, or lower `pool=` in the clients"),
    });

    let (commit, names, standbys) = (text(4), text(5), number(6));
    let seen = format!("synchronous_commit={commit}, {standbys} standbys, named: {names:?}");
    let waits = !names.is_empty() && !matches!(commit.as_str(), "off" | "local");
    findings.push(match (commit.as_str(), standbys > 0 && !waits) {
        ("off", _) => Finding::new(FindingLevel::Danger, "durability", &server, seen)
            .why("after a crash the last grants are missing, and are granted again")
            .remedy("add `synchronous_commit=on` to the URL"),
        (_, true) => Finding::new(FindingLevel::Warning, "durability", &server, seen)
            .why("a promoted standby may lack the last grants, and grant these locks again")
            .remedy("set synchronous_standby_names"),
        _ => Finding::ok("durability", &server, seen),
    });
    findings.push(switch(
        ("fsync", &text(9)),
        &server,
        FindingLevel::Danger,
        "after a crash of the machine the data may be broken, locks included",
    ));
    findings.push(switch(
        ("autovacuum", &text(8)),
        &server,
        FindingLevel::Warning,
        "the rows of locks are updated all the time, and their old versions stay",
    ));

    let rows = store.query(
        &format!(
            "SELECT n_live_tup, n_dead_tup FROM pg_stat_user_tables WHERE relid = \
            to_regclass('\"{}\".locks')",
            store.settings().schema
        ),
        &[],
        by,
    )?;
    if let Some(row) = rows.first() {
        let (live, dead): (i64, i64) = (row.get(0), row.get(1));
        let seen = format!("{live} rows, {dead} old versions");
        findings.push(match dead > 10_000 + 10 * live {
            false => Finding::ok("dead_rows", &server, seen),
            true => Finding::new(FindingLevel::Warning, "dead_rows", &server, seen)
                .why("each request reads over old versions")
                .remedy("end long transactions, and let autovacuum visit the table more often"),
        });
    }
    findings.push(match store.hears_itself(by)? {
        true => Finding::ok("notifications", &server, "arrive"),
        false => Finding::new(
            FindingLevel::Warning,
            "notifications",
            &server,
            "do not arrive",
        )
        .why("behind a pooler in transaction mode waiters ask again every 0.1 s")
        .remedy("connect to the server itself, or to a pool in session mode"),
    });

    let limit = text(7);
    findings.push(match limit.as_str() {
        "0" => Finding::ok("statement_timeout", &server, "none"),
        _ => Finding::new(FindingLevel::Warning, "statement_timeout", &server, &limit)
            .why("a request that waits for a row lock longer than this is cancelled")
            .remedy("add `options=-c statement_timeout=0` to the URL: requests have their own"),
    });
    let isolation = text(10);
    findings.push(match isolation.as_str() {
        "read committed" => Finding::ok("isolation", &server, isolation),
        _ => Finding::new(FindingLevel::Warning, "isolation", &server, isolation)
            .why("requests for one lock at the same time fail, and are repeated")
            .remedy(
                "ALTER ROLE .. SET default_transaction_isolation = 'read committed' for the role \
                 of the locks",
            ),
    });
    Ok(findings)
}

impl PostgresStore {
    /// Returns whether a notification that one connection sends arrives on another.
    fn hears_itself(&self, by: Moment) -> Result<bool, Failure> {
        const CHANNEL: &str = "distlock:doctor";
        let mut listening = self.pool.dialer().dial(by)?;
        listening.run(&format!("LISTEN \"{CHANNEL}\""), by)?;
        self.query("SELECT pg_notify($1, '')", &[(&CHANNEL, Type::TEXT)], by)?;
        let heard = listening.next_notification(ECHO, by).is_some();
        match heard || listening.is_open() {
            true => Ok(heard),
            false => Err(Failure::NotSent(Error::unavailable(format!(
                "the connection to {} has ended",
                listening.server()
            )))),
        }
    }
}

/// Returns the finding about a setting that should be on: how bad it is if not, and why.
fn switch(
    (setting, value): (&'static str, &str),
    server: &str,
    level: FindingLevel,
    why: &str,
) -> Finding {
    match value {
        "on" => Finding::ok(setting, server, "on"),
        _ => Finding::new(level, setting, server, value)
            .why(why)
            .remedy(format!("set {setting} = on")),
    }
}
