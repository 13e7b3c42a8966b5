//! The subcommands `quorum init` and `quorum status`.

use crate::arguments::{FileArguments, QuorumInitArguments, QuorumStatusArguments, StoreArguments};
use crate::exit::{self, CONFIGURATION, Failure};
use crate::output;
use crate::store::{rounded, usable};
use distlock::Config;
use distlock::admin::{QuorumNodeStatus, QuorumVote};
use serde_json::{Value as Json, json};
use std::time::Duration;

/// Sets up a quorum, or completes one.
pub(crate) fn init(arguments: &QuorumInitArguments) -> Result<u8, Failure> {
    let config = config(arguments.store.as_deref(), &arguments.file)?;
    let before = distlock::admin::quorum_status(&config)?;
    let is_new = before.iter().all(|node| !node.vote.counts());
    let question = if is_new {
        "Set up the quorum? Its servers vote at once: no lock may have been held there within the \
         last max_lease."
    } else {
        "Complete the quorum? Servers that do not vote yet join it, and vote after max_lease."
    };
    if !arguments.yes && !output::is_confirmed(question)? {
        output::report("nothing was changed");
        return Ok(exit::CONFLICT);
    }
    distlock::admin::set_up_quorum(&config)?;
    let after = distlock::admin::quorum_status(&config)?;
    let is_same = |(before, after): (&QuorumNodeStatus, &QuorumNodeStatus)| {
        before.vote.counts() && after.vote.counts() && before.epoch == after.epoch
    };
    let votes = after.iter().filter(|node| node.vote.counts()).count();
    let named = after
        .iter()
        .filter(|node| !matches!(node.vote, QuorumVote::Unlisted))
        .count();
    let (all, pausing) = (named, named - votes);
    output::line(&if before.iter().zip(&after).all(is_same) {
        format!("nothing to do: all {all} servers vote already")
    } else if pausing == 0 {
        format!("the quorum of {all} servers is set up, and all of them vote")
    } else {
        format!("the quorum of {all} servers is complete: {votes} vote, {pausing} after a pause")
    })?;
    output::line(&table(&after))
}

/// Shows the state of each server in the quorum.
pub(crate) fn status(arguments: &QuorumStatusArguments) -> Result<u8, Failure> {
    let nodes =
        distlock::admin::quorum_status(&config(arguments.store.as_deref(), &arguments.file)?)?;
    if arguments.json {
        output::line(&json!({ "nodes": nodes.iter().map(json).collect::<Vec<_>>() }).to_string())?;
    } else {
        output::line(&table(&nodes))?;
        for (node, why) in nodes.iter().filter_map(|node| Some((node, reason(node)?))) {
            output::line(&format!("{}: {why}", node.address))?;
        }
    }
    let votes = nodes.iter().filter(|node| node.vote.counts()).count();
    let named = nodes
        .iter()
        .filter(|node| !matches!(node.vote, QuorumVote::Unlisted))
        .count();
    Ok(if votes * 2 > named { 0 } else { exit::CONFLICT })
}

/// Returns the settings of a quorum, named by its URL or backend.
fn config(store: Option<&str>, file: &FileArguments) -> Result<Config, Failure> {
    let (url, name) = match store {
        Some(url) if url.contains("://") => (store, None),
        name => (None, name),
    };
    let store = StoreArguments {
        url: url.map(str::to_owned),
        file: file.clone(),
    };
    let config = usable(store.settings()?.backend_config(name)?)?;
    if !["redlock", "redlocks"].contains(&config.scheme()) {
        let what = format!(
            "`{}://` is no quorum: only the servers of a redlock:// or redlocks:// URL vote, other \
             stores need no set-up",
            config.scheme()
        );
        return Err(Failure::new(CONFIGURATION, what));
    }
    Ok(config)
}

/// Returns the state of a server, and how long that state has lasted or will last.
fn shown(vote: &QuorumVote) -> (&'static str, String) {
    let none = || "-".to_owned();
    match vote {
        QuorumVote::Votes(since) => ("votes", format!("for {}", rounded(*since))),
        QuorumVote::Paused(left) => ("pauses", format!("votes in {}", rounded(*left))),
        QuorumVote::Restarted(pause) => ("restarted", format!("pauses for {}", rounded(*pause))),
        QuorumVote::Unmarked => ("no member", none()),
        QuorumVote::Excluded(_) => ("excluded", none()),
        QuorumVote::Refused(_) => ("refused", none()),
        QuorumVote::Unreachable(_) => ("unreachable", none()),
        QuorumVote::Unlisted => ("not in the URL", none()),
        _ => ("unknown", none()),
    }
}

/// Returns the reason why a server does not vote, unless its state says enough, and for how long
/// clients have missed the member of its address.
fn reason(node: &QuorumNodeStatus) -> Option<String> {
    let missing = node.missing_for.map(|time| {
        format!(
            "clients have missed the member of this address for {}",
            rounded(time)
        )
    });
    let why = match &node.vote {
        QuorumVote::Excluded(error) | QuorumVote::Refused(error) => Some(exit::with_sources(error)),
        QuorumVote::Unreachable(error) => Some(exit::with_sources(error)),
        QuorumVote::Unmarked => Some(
            "it has no marker that counts: `distlock quorum init` makes it a member".to_owned(),
        ),
        QuorumVote::Unlisted => {
            Some("it is a member of the quorum, and the URL does not name it".to_owned())
        }
        QuorumVote::Paused(_) => node.waits_for_clock_of.as_ref().map(|clock| {
            format!(
                "it waits for the clock of {clock}, which was ahead when it became a member: set \
                 that right, and `distlock quorum init` shortens the wait"
            )
        }),
        _ => None,
    };
    let said: Vec<_> = why.into_iter().chain(missing).collect();
    (!said.is_empty()).then(|| said.join("; "))
}

fn table(nodes: &[QuorumNodeStatus]) -> String {
    let head = ["SERVER", "STATE", "VOTE", "EPOCH", "CLOCK"].map(str::to_owned);
    let row = |node: &QuorumNodeStatus| {
        let (state, vote) = shown(&node.vote);
        let epoch = node
            .epoch
            .map_or_else(|| "-".to_owned(), |epoch| epoch.to_string());
        let clock = node.clock_ahead.map_or_else(
            || "-".to_owned(),
            |ahead| {
                format!(
                    "{:+.1} ms",
                    Duration::from_micros(ahead.unsigned_abs()).as_secs_f64()
                        * if ahead < 0 { -1_000.0 } else { 1_000.0 }
                )
            },
        );
        [node.address.clone(), state.to_owned(), vote, epoch, clock]
    };
    let rows: Vec<_> = [head].into_iter().chain(nodes.iter().map(row)).collect();
    output::aligned(&rows)
}

fn json(node: &QuorumNodeStatus) -> Json {
    let millis = |time: Duration| u64::try_from(time.as_millis()).ok();
    let (state, _) = shown(&node.vote);
    let (votes_since, votes_in) = match &node.vote {
        QuorumVote::Votes(since) => (millis(*since), None),
        QuorumVote::Paused(left) | QuorumVote::Restarted(left) => (None, millis(*left)),
        _ => (None, None),
    };
    json!({
        "address": node.address,
        "state": state,
        "member": node.quorum.is_some(),
        "votes": node.vote.counts(),
        "votes_for_ms": votes_since,
        "votes_in_ms": votes_in,
        "quorum": node.quorum,
        "epoch": node.epoch,
        "reachable": !matches!(node.vote, QuorumVote::Unreachable(_)),
        "clock_ahead_us": node.clock_ahead,
        "waits_for_clock_of": node.waits_for_clock_of,
        "missing_for_ms": node.missing_for.and_then(millis),
        "why": reason(node),
    })
}
