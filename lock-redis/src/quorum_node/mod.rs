//! A server as a node of a quorum: its marker, and the scripts that vote on it.

mod marker;
mod proposal;

pub use marker::{Admission, Agreement, MarkerRequest, Member, Members, NodeView, ServerState};
pub use proposal::{ProposalReply, ServerInfo, VoteTerms};

pub(crate) use proposal::server_info;
