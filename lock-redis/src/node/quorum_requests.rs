//! Requests to a node of a quorum. What changes nothing in the marker reads it along with its
//! answer, on the same connection: the answer counts as that of the node which the marker names.

use super::{Node, QUORUM, RENEWED, RequestMode, on};
use crate::format::Format;
use crate::quorum_node::{
    self, MarkerRequest, NodeView, ProposalReply, ServerInfo, ServerState, VoteTerms,
};
use lock_core::backend::{Attempt, Failure, LockInfo, Renewal, RenewalRequest};
use lock_core::{LockName, Moment};
use std::sync::Arc;

/// An answer and the node that gave it; `None` for a server without a marker.
pub type WithView<T> = (T, Option<Arc<NodeView>>);

impl Node {
    /// Asks for a vote at a proposed token.
    ///
    /// # Errors
    ///
    /// See [`Failure`]; so with all that follow.
    pub fn propose(
        &self,
        format: &Format,
        attempt: &Attempt<'_>,
        terms: &VoteTerms<'_>,
        by: Moment,
    ) -> Result<ProposalReply, Failure> {
        let vote = self
            .link
            .exchange(by, |link| format.owned(QUORUM)?.propose(link, attempt, Some(terms), by));
        vote.map_err(on(attempt.name))
    }

    /// What the server is: its `run_id`, role and settings.
    pub fn server_info(&self, by: Moment) -> Result<ServerInfo, Failure> {
        self.link.exchange(by, |link| quorum_node::server_info(link, by))
    }

    /// Reads or changes the marker of the server of this `run_id`.
    pub fn mark(
        &self,
        format: &Format,
        run_id: &str,
        request: &MarkerRequest<'_>,
        by: Moment,
    ) -> Result<ServerState, Failure> {
        self.link.exchange(by, |link| format.owned(QUORUM)?.mark(link, run_id, request, by))
    }

    /// The holder of a lock.
    pub fn inspect_with_view(
        &self,
        format: &Format,
        name: &LockName,
        by: Moment,
    ) -> Result<WithView<LockInfo>, Failure> {
        let info = self.link.exchange(by, |link| {
            let info = format.0.inspect(link, name, by)?;
            Ok((info, format.owned(QUORUM)?.mark(link, "", &MarkerRequest::Look, by)?.view()))
        });
        info.map_err(on(name))
    }

    /// Frees a lock of any owner if the server is a node of this quorum.
    pub fn force_release_with_view(
        &self,
        format: &Format,
        name: &LockName,
        quorum: Option<&str>,
        by: Moment,
    ) -> Result<WithView<bool>, Failure> {
        let freed = self.link.exchange(by, |link| {
            let view = format.owned(QUORUM)?.mark(link, "", &MarkerRequest::Look, by)?.view();
            let is_ours = view.as_ref().is_some_and(|view| quorum == Some(&*view.quorum));
            Ok((is_ours && format.0.force(link, name, by)?, view))
        });
        freed.map_err(on(name))
    }

    /// Renews these.
    pub fn renew_with_view(
        &self,
        format: &Format,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<WithView<Renewal>, Failure>> {
        let renewals = self.renew_in_chunks(batch, |chunk| {
            self.on_lane_or_shared(RequestMode::Direct, by, |link| {
                let renewals = format.owned(RENEWED)?.renew(link, chunk, by)?.into_iter();
                let view = format.owned(QUORUM)?.mark(link, "", &MarkerRequest::Look, by)?.view();
                let with_view = |it: Result<_, _>| it.map(|renewal| (renewal, view.clone()));
                Ok(renewals.map(with_view).collect())
            })
        });
        let renewals = renewals.into_iter().zip(batch);
        renewals.map(|(renewal, one)| renewal.map_err(on(&one.acquisition.name))).collect()
    }
}
