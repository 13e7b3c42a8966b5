//! A server as a node of a quorum: its marker, its votes, and the requests to the server.

mod marker;
mod proposal;
mod requests;

pub use marker::{
    Admission, Agreement, MarkerRequest, Member, Members, MissingMember, NodeView, ServerState,
};
pub use proposal::{ProposalReply, VoteTerms};
pub use requests::Response;

pub(super) use proposal::server_info;
