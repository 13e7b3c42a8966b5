//! Connections to one server: dialled, used by one thread at a time or by all, and pooled.
//!
//! - [`Batch`]: the requests of one write
//! - [`Connection`]: for one thread at a time, with a deadline for every wait
//! - [`SharedConnection`]: for all threads at once, on a [`multiplexed`] connection
//! - [`ConnectionPool`]: connections to borrow
//! - [`LentPool`]: the application's own pool
//! - [`dial`]: the making of connections
//! - [`server`], [`identity`]: the name of a server and warnings about it, and its identity
//! - [`history`]: decides if a server continues the data of the server that was known before
//! - [`resp`]: the encoding of requests and the parsing of replies
//! - [`error_mapping`]: the meaning of a server's error replies
//! - [`framed`]: a connection that adds commands of its own before and after requests
//! - [`replica_ack`]: the acknowledgements of replicas
//! - [`one_store`]: the check that all keys that a connection reaches are on one server
//! - [`server_kind`]: finds out if a server that does not know a command is a Sentinel
//!
//! An exclusive connection is closed after any failure, even a time-out. Otherwise a late reply to
//! an older request could be read as the reply to the next request, and so a lock could be granted
//! twice. A multiplexed connection survives time-outs, because it matches late replies to their
//! requests.

mod address;
mod address_map;
mod background_call;
mod batch;
mod dial;
mod dial_time;
mod endpoint;
pub(crate) mod error_mapping;
mod exclusive;
mod framed;
pub(crate) mod history;
mod identity;
mod io_error;
mod known;
#[cfg_attr(not(feature = "redis-rs"), path = "no_lent.rs")]
mod lent;
mod multiplexed;
mod one_store;
mod pool;
mod replica_ack;
mod resp;
mod server;
mod server_kind;
mod shared;
mod shutdown;
pub(crate) mod single_flight;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;
mod tls_options;
mod transport;

pub use address::Address;
pub use address_map::AddressMap;
pub(crate) use batch::{Batch, Mark};
pub(crate) use one_store::OPTION as JOINED;
pub(crate) use replica_ack::ReplicaCount;

pub(crate) use dial::{CredentialsSource, Destination, Dialer, Login, PasswordSource, Timeouts};
pub(crate) use dial_time::DialTime;
pub(crate) use endpoint::Endpoint;
pub(crate) use exclusive::Connection;
pub(crate) use framed::FramedConnection;
pub(crate) use history::HISTORY;
pub(crate) use identity::{Identity, IdentityKind, Introduction, ServerGeneration};
#[cfg(feature = "redis-rs")]
pub(crate) use lent::LentPool;
pub(crate) use multiplexed::{CallbackRequest, MultiplexedConnection, ReplyCheck};
pub(crate) use one_store::OneStore;
pub(crate) use pool::{BorrowedConnection, ConnectionPool, PoolSlot, PoolThread};
pub(crate) use replica_ack::NeededReplicas;
pub(crate) use resp::{
    Reply, ReplyReader, Request, ServerError, Text, encoded_words, info_field, with_text,
    write_count, write_word,
};
pub(crate) use server::{Cause, Server};
pub(crate) use server_kind::with_server_kind;
pub(crate) use shared::SharedConnection;
pub(crate) use tls::TlsSettings;
pub(crate) use tls_options::TlsOptions;
pub(crate) use transport::{Polled, ReadBuffer, Transport, WriteBuffer, poll};

use crate::lua::Script;
use lock_core::backend::Failure;
use lock_core::{Error, Moment};
use std::sync::Arc;

/// The reasons why a request has no reply. An error that the server replies with is a reply:
/// [`Reply::Error`].
#[derive(Clone, Debug)]
pub(crate) enum CallError {
    /// No byte of the request was sent.
    NotSent(Error),
    /// The request was sent, at least in part, and may be carried out.
    Unknown(Error),
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        match error {
            CallError::NotSent(error) => Self::NotSent(error),
            CallError::Unknown(error) => Self::Unknown(error),
        }
    }
}

/// A connection that requests can be sent on: an exclusive or a multiplexed one, or a
/// [`FramedConnection`].
pub(crate) trait ConnectionLike {
    /// Sends requests, on an exclusive connection in one write. Returns the replies in order, and
    /// the error if some are missing. A request without a reply may have been carried out.
    fn exchange(&mut self, batch: &Batch, by: Moment) -> (Vec<Reply>, Result<(), CallError>);

    /// Sends the only request of a batch and returns the reply.
    fn exchange_one(&mut self, batch: &Batch, by: Moment) -> Result<Reply, CallError> {
        let (mut replies, outcome) = self.exchange(batch, by);
        outcome.map(|()| replies.pop().expect("as many replies as requests"))
    }

    /// Sends a request that is not about a lock, and returns the reply.
    fn call(&mut self, request: &Request<'_>, by: Moment) -> Result<Reply, CallError> {
        self.exchange_one(&Batch::from_requests(&[*request]), by)
    }

    /// Sends requests that are not about a lock. See [`exchange`](Self::exchange).
    fn call_many(
        &mut self,
        requests: &[Request<'_>],
        by: Moment,
    ) -> (Vec<Reply>, Result<(), CallError>) {
        self.exchange(&Batch::from_requests(requests), by)
    }

    /// Returns `true` if this script was never sent on this exclusive connection, and marks it as
    /// sent.
    fn is_first_use(&mut self, _script: &Script) -> bool {
        false
    }

    /// Returns `true` if the script is to be sent by its text at once, because the reply to an
    /// unknown hash would cost more than a round trip.
    fn needs_script_text(&mut self, _script: &Script) -> bool {
        false
    }

    /// Returns `true` if it is proven that all keys are on one server; otherwise each lock needs a
    /// script of its own.
    fn is_one_store(&self) -> bool {
        false
    }

    /// Returns the generation of the endpoint's server, if the server reports the history of its
    /// data and may be queried for it after any request.
    fn history(&self) -> Option<&ServerGeneration> {
        None
    }

    /// Returns the server at the other end.
    fn server(&self) -> &Arc<Server>;

    /// Closes the connection because the last reply did not belong to the request.
    fn close(&mut self) {
        let why = self.server().out_of_step();
        self.close_with(&why);
    }

    /// Closes the connection with this error, which other threads that wait on it get, too.
    fn close_with(&mut self, why: &Error);

    /// Returns `true` if [`mark_verified`](Self::mark_verified) was called on this connection.
    fn is_verified(&self) -> bool {
        false
    }

    /// Records that the server's identity was verified, which holds until the connection breaks.
    fn mark_verified(&mut self) {}
}
