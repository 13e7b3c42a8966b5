//! Requests to a node of a quorum. Inspections, renewals and forced releases also read the marker
//! on the same connection: the answer is attributed to the node that the marker names.

use super::{MarkerRequest, NodeView, ProposalReply, ServerState, VoteTerms};
use crate::connection::ConnectionLike;
use crate::node::renewals::AnswerWeight;
use crate::node::{Node, QUORUM, RENEWED, on};
use crate::protocol::driver::drive;
use lock_core::backend::{
    Attempt, Failure, LockInfo, Proposal, ProposalAnswer, Renewal, RenewalRequest,
};
use lock_core::{Error, LockName, Moment};
use std::sync::Arc;

/// An answer, and the node that gave it.
#[derive(Clone, Debug)]
#[allow(
    clippy::exhaustive_structs,
    reason = "for the crate of the same workspace"
)]
pub struct Response<T> {
    /// The answer.
    pub what: T,
    /// The node; `None` if the server has no marker.
    pub from: Option<Arc<NodeView>>,
}

impl<T> Response<T> {
    /// Returns the answer of a store without a marker.
    pub fn of_store(what: T) -> Self {
        Self { what, from: None }
    }
}

impl Node {
    /// Requests a vote for a proposed token, or without a token.
    ///
    /// # Errors
    ///
    /// See [`Failure`]. This holds for all requests below, too.
    pub fn propose(
        &self,
        attempt: &Attempt<'_>,
        proposal: Option<Proposal>,
        terms: &VoteTerms<'_>,
        by: Moment,
    ) -> Result<ProposalReply, Failure> {
        let vote = self.inner.format.owned(QUORUM).and_then(|owned| {
            let link = &mut self.inner.link.connection(by)?;
            let (tracking, is_verified) = (self.tracking(), link.is_verified());
            let proposal = owned.propose(attempt, proposal, Some(terms), &tracking, is_verified)?;
            let reply = drive(proposal, link, by)?;
            if reply.is_of_expected_server() {
                link.mark_verified();
            }
            Ok(reply)
        });
        vote.map_err(on(attempt.name))
    }

    /// Proposes a token to a server without a marker, which is assumed to lose no data.
    pub(crate) fn propose_without_terms(
        &self,
        attempt: &Attempt<'_>,
        proposal: Proposal,
        by: Moment,
    ) -> Result<ProposalAnswer, Failure> {
        let answer = self.connection(by).and_then(|mut link| {
            if let Some(refusal) = self.refusal(&mut link, by)? {
                return Ok(ProposalAnswer::Answer(refusal));
            }
            let (owned, tracking) = (self.inner.format.owned(QUORUM)?, self.tracking());
            let exchange = owned.propose_without_terms(attempt, proposal, &tracking)?;
            drive(exchange, &mut link, by)
        });
        answer.map_err(on(attempt.name))
    }

    /// Requests votes for tokens that a majority has [granted](Proposal::is_granted), all in one
    /// write. Returns an answer for each attempt, in the same order.
    pub fn vote_again(
        &self,
        attempts: &[(Attempt<'_>, Option<Proposal>)],
        terms: &VoteTerms<'_>,
        by: Moment,
    ) -> Vec<Result<ProposalReply, Failure>> {
        // Votes use the connection of attempts and releases, so that no release overtakes a vote.
        let votes = self.inner.format.owned(QUORUM).and_then(|owned| {
            let link = &mut self.inner.link.connection(by)?;
            let proposals = owned.propose_all(attempts, terms, link.is_verified())?;
            let replies = drive(proposals, link, by)?;
            let is_it = |reply: &Result<ProposalReply, _>| {
                reply
                    .as_ref()
                    .is_ok_and(ProposalReply::is_of_expected_server)
            };
            if replies.iter().any(is_it) {
                link.mark_verified();
            }
            Ok(replies)
        });
        let votes = votes.unwrap_or_else(|failure| vec![Err(failure); attempts.len()]);
        votes
            .into_iter()
            .zip(attempts)
            .map(|(it, (one, _))| it.map_err(on(one.name)))
            .collect()
    }

    /// Returns the `run_id` of a server that can be a node of a quorum. The failure is
    /// [`Failure::Refused`] for a server that cannot be a node, and [`Failure::NotSent`] for a
    /// server that does not answer or refuses the query.
    pub fn voter_run_id(&self, by: Moment) -> Result<String, Failure> {
        let link = self.inner.link.connection(by);
        let info = link.and_then(|mut link| super::server_info(&mut link, by));
        // A server that refuses the credentials may accept them later, so it is not excluded.
        let info = info.map_err(|failure| Failure::NotSent(failure.into_error()))?;
        let Some(why) = info.why_no_voter() else {
            return Ok(info.run_id);
        };
        let refusal = format!("{} {why}", self.server());
        Err(Failure::Refused(Error::configuration(refusal)))
    }

    /// Reads or changes the marker of the server with this `run_id`.
    pub fn mark(
        &self,
        run_id: &str,
        request: &MarkerRequest<'_>,
        by: Moment,
    ) -> Result<ServerState, Failure> {
        let marked = self.inner.format.owned(QUORUM)?.mark(run_id, request);
        drive(marked, &mut self.inner.link.connection(by)?, by)
    }

    /// Returns the state of a lock, with the node that answered.
    pub fn inspect_with_view(
        &self,
        name: &LockName,
        by: Moment,
    ) -> Result<Response<LockInfo>, Failure> {
        let info = self.inner.link.connection(by).and_then(|mut link| {
            let what = drive(self.inner.format.inspect(name), &mut link, by)?;
            Ok(Response {
                what,
                from: self.view(&mut link, by)?,
            })
        });
        info.map_err(on(name))
    }

    /// Returns the state of each of these locks, with all details that the server has.
    pub fn inspect_all_with_view(
        &self,
        names: &[LockName],
        by: Moment,
    ) -> Result<Response<Vec<Result<LockInfo, Failure>>>, Failure> {
        let mut connection = self.borrow(by)?;
        let link = &mut connection;
        let owned = self.inner.format.owned(QUORUM)?;
        let what = drive(owned.inspect_all(names), link, by)?;
        Ok(Response {
            what,
            from: self.view(link, by)?,
        })
    }

    /// Releases a lock of any owner if the server is a node of this quorum.
    pub fn force_release_with_view(
        &self,
        name: &LockName,
        quorum: Option<&str>,
        by: Moment,
    ) -> Result<Response<bool>, Failure> {
        let freed = self.inner.link.connection(by).and_then(|mut link| {
            let view = self.view(&mut link, by)?;
            let is_ours = view
                .as_ref()
                .is_some_and(|view| quorum == Some(&*view.quorum));
            let what = is_ours && drive(self.inner.format.force(name)?, &mut link, by)?;
            Ok(Response { what, from: view })
        });
        freed.map_err(on(name))
    }

    /// Renews these acquisitions. Each answer comes with the node that gave it.
    pub fn renew_with_view(
        &self,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Response<Renewal>, Failure>> {
        self.renew_on_any_connection(batch, by, AnswerWeight::Vote, |link| {
            let owned = self.inner.format.owned(RENEWED)?;
            let renewals = drive(owned.renew(batch, link.is_one_store()), link, by)?.into_iter();
            let view = self.view(link, by)?;
            let response = |what| Response {
                what,
                from: view.clone(),
            };
            Ok(renewals.map(|renewal| renewal.map(response)).collect())
        })
    }

    /// Returns the node that the marker names, read behind another request on the same connection.
    fn view(
        &self,
        link: &mut dyn ConnectionLike,
        by: Moment,
    ) -> Result<Option<Arc<NodeView>>, Failure> {
        let owned = self.inner.format.owned(QUORUM)?;
        Ok(drive(owned.mark("", &MarkerRequest::Look), link, by)?.view())
    }
}
