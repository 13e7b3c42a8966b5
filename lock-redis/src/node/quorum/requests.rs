//! Requests to a node of a quorum. What changes nothing in the marker reads it along with its
//! answer, on the same connection: the answer counts as that of the node which the marker names.

use super::{MarkerRequest, NodeView, ProposalReply, ServerInfo, ServerState, VoteTerms};
use crate::connection::ConnectionLike;
use crate::format::Format;
use crate::node::{Node, QUORUM, RENEWED, RequestMode, on};
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
        let vote = format.owned(QUORUM).and_then(|owned| {
            let link = &mut self.link.connection(by)?;
            owned.propose(link, attempt, Some(terms), &self.tracking(), by)
        });
        vote.map_err(on(attempt.name))
    }

    /// What the server is: its `run_id`, role and settings.
    pub fn server_info(&self, by: Moment) -> Result<ServerInfo, Failure> {
        super::server_info(&mut self.link.connection(by)?, by)
    }

    /// Reads or changes the marker of the server of this `run_id`.
    pub fn mark(
        &self,
        format: &Format,
        run_id: &str,
        request: &MarkerRequest<'_>,
        by: Moment,
    ) -> Result<ServerState, Failure> {
        format.owned(QUORUM)?.mark(&mut self.link.connection(by)?, run_id, request, by)
    }

    /// The holder of a lock.
    pub fn inspect_with_view(
        &self,
        format: &Format,
        name: &LockName,
        by: Moment,
    ) -> Result<WithView<LockInfo>, Failure> {
        let info = self.link.connection(by).and_then(|mut link| {
            Ok((format.0.inspect_with_label(&mut link, name, by)?, view(format, &mut link, by)?))
        });
        info.map_err(on(name))
    }

    /// The state of these locks, each with all that the server tells.
    pub fn inspect_all_with_view(
        &self,
        format: &Format,
        names: &[LockName],
        by: Moment,
    ) -> Result<WithView<Vec<Result<LockInfo, Failure>>>, Failure> {
        let mut connection = self.borrow(RequestMode::Direct, by)?;
        let link = connection.get();
        let infos = format.owned(QUORUM)?.inspect_all(link, names, by)?;
        Ok((infos, view(format, link, by)?))
    }

    /// Frees a lock of any owner if the server is a node of this quorum.
    pub fn force_release_with_view(
        &self,
        format: &Format,
        name: &LockName,
        quorum: Option<&str>,
        by: Moment,
    ) -> Result<WithView<bool>, Failure> {
        let freed = self.link.connection(by).and_then(|mut link| {
            let view = view(format, &mut link, by)?;
            let is_ours = view.as_ref().is_some_and(|view| quorum == Some(&*view.quorum));
            Ok((is_ours && format.0.force(&mut link, name, by)?, view))
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
        self.renew_on_any_connection(RequestMode::Direct, format, batch, by, |link| {
            let renewals = format.owned(RENEWED)?.renew(link, batch, by)?.into_iter();
            let view = view(format, link, by)?;
            Ok(renewals.map(|it| it.map(|renewal| (renewal, view.clone()))).collect())
        })
    }
}

/// The node that the marker names, read behind another request on the same connection.
fn view(
    format: &Format,
    link: &mut dyn ConnectionLike,
    by: Moment,
) -> Result<Option<Arc<NodeView>>, Failure> {
    Ok(format.owned(QUORUM)?.mark(link, "", &MarkerRequest::Look, by)?.view())
}
