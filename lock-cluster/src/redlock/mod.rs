//! The quorum (Redlock): a lock is held on a majority of independent masters.
//!
//! - `scheme`: [`RedlockScheme`], the URLs; `setup`: [`set_up`], which begins a quorum
//! - `status`: the state of the nodes, for operators
//! - `backend`: [`QuorumBackend`], the operations on locks; `quorum`: requests to all nodes
//! - `attempt`: one attempt on all nodes; `attempt_state`: its state on each node
//! - `majority`: the decisions of a majority, without input and output
//! - `token`: the proposed tokens; `clocks`: the clocks of the servers
//! - `votes`: the votes of the nodes for an acquisition; `renewal`: renewals, which request lost
//!   votes again
//! - `watch`: watches, which wake a waiter once or twice per release
//! - `node`: one node; `node_worker`: its tasks and pending cleanups; `responses`: the nodes'
//!   responses
//! - `membership`: the responses that count together; `membership_update`: changes of the members;
//!   `survey`: the choice of the next change
//! - `states`: reads and writes the markers of all servers
//! - `missing`: members that clients cannot reach; `reports`: warnings about members and clocks

mod attempt;
mod attempt_state;
mod backend;
mod clocks;
mod majority;
mod membership;
mod membership_update;
mod missing;
mod node;
mod node_worker;
mod quorum;
mod renewal;
mod reports;
mod responses;
mod scheme;
mod setup;
mod states;
mod status;
mod survey;
mod token;
mod votes;
mod watch;

pub use backend::QuorumBackend;
pub use scheme::RedlockScheme;
pub use setup::set_up;
pub use status::{QuorumNodeStatus, QuorumVote, quorum_status};
