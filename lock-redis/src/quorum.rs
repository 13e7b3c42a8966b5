//! A server as a node of a quorum: the requests of `lock-cluster` to it, and their answers. The
//! requests are methods of [`Node`](crate::servers::Node).
//!
//! - [`VoteTerms`]: the terms of a vote, and the node that is expected to give it
//! - [`ProposalReply`]: the vote, or why there is none
//! - [`Response`]: the answer to any other request, and the node that gave it
//! - [`NodeView`]: a node, and the membership under which it votes
//! - [`Members`]: the members of a quorum
//! - [`Member`]: a member, by its ID and its address
//! - [`MissingMember`]: a member that clients cannot reach, as a marker records it
//! - [`Agreement`]: the members and the terms that all nodes of a quorum agree on
//! - [`Admission`]: the terms on which a server becomes a node
//! - [`MarkerRequest`]: a read or a change of the marker, the key that makes a server a node of a
//!   quorum
//! - [`ServerState`]: the server's identity and its marker
//!
//! Only for the crates of this workspace: any release may change this module.

pub use crate::node::quorum::{
    Admission, Agreement, MarkerRequest, Member, Members, MissingMember, NodeView, ProposalReply,
    Response, ServerState, VoteTerms,
};
