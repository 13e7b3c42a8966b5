//! A server as a node of a quorum: its marker, the scripts that vote on it, and the requests to it.

mod marker;
mod proposal;
mod requests;

pub use marker::{
    Admission, Agreement, MarkerRequest, Member, Members, MissingMember, NodeView, ServerState,
};
pub use proposal::{ProposalReply, VoteTerms};
pub use requests::Response;

pub(super) use proposal::server_info;
