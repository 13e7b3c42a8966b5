//! A server as a node of a quorum: the requests of `lock-cluster` to it, and their answers. The
//! requests are methods of [`Node`](crate::servers::Node).
//!
//! - [`VoteTerms`]: the settings of the quorum under which a vote is requested, and the node that
//!   is expected to vote
//! - [`ProposalReply`]: the vote, or why there is none
//! - [`Response`]: the answer to a read, a forced release or a renewal, and the node that gave it
//! - [`NodeView`]: a node, and the membership under which it votes
//! - [`Members`]: the members of a quorum
//! - [`Member`]: a member, by its ID and its address, or a vacant place
//! - [`MissingMember`]: a member that clients cannot reach, as a server has recorded it
//! - [`Agreement`]: the quorum, its members and its settings, on which the members agree
//! - [`Admission`]: the conditions under which a server becomes a node, such as a time without
//!   votes
//! - [`MarkerRequest`]: a read or a change of the marker, the key that makes a server a node of a
//!   quorum
//! - [`ServerState`]: a server's identity, its marker, and its part in the choice of the next
//!   members
//!
//! Only for the crates of this workspace: any release may change this module.

pub use crate::node::quorum::{
    Admission, Agreement, MarkerRequest, Member, Members, MissingMember, NodeView, ProposalReply,
    Response, ServerState, VoteTerms,
};
