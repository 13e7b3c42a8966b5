//! A server as a node of a quorum: what `lock-cluster` asks it, and what it answers. The requests
//! are methods of [`Node`](crate::servers::Node).
//!
//! - [`VoteTerms`]: the terms of a vote, and the node that is expected to give it
//! - [`ProposalReply`]: the vote, or why there is none
//! - [`Response`]: another answer, and the node that gave it
//! - [`NodeView`]: a node, and the membership under which it votes
//! - [`Members`]: the members of a quorum
//! - [`Member`]: one of them, by its ID and its address
//! - [`MissingMember`]: a member that clients miss, as a marker notes it
//! - [`Agreement`]: the members and the terms that all nodes of a quorum agree on
//! - [`Admission`]: the terms on which a server becomes a node
//! - [`MarkerRequest`]: a question to the marker, or a change of it
//! - [`ServerState`]: the server's identity and its marker
//!
//! For the crates of this workspace: it changes with any release.

pub use crate::node::quorum::{
    Admission, Agreement, MarkerRequest, Member, Members, MissingMember, NodeView, ProposalReply,
    Response, ServerState, VoteTerms,
};
