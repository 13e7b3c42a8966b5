//! Connections to one server: dialled, used by one thread at a time or by all, and pooled.
//!
//! - [`Batch`]: the requests of one write
//! - [`Connection`]: for one thread at a time, every wait bounded by a deadline
//! - [`SharedConnection`]: for all threads at once, on a [`multiplexed`] connection
//! - [`ConnectionPool`]: connections to borrow
//! - [`dial`]: how connections are made
//! - [`server`], [`identity`]: a server's name and the warnings about it, and which server it is
//! - [`history`]: whether a server continues the data of the one that was known before
//! - [`resp`]: requests to bytes, bytes to replies
//! - [`error_mapping`]: what the errors mean that a server replies with
//! - [`framed`]: a connection with commands of its own before and behind each request
//! - [`replica_ack`]: what replicas confirm
//! - [`one_store`]: whether all keys that a connection reaches are on one server
//! - [`server_kind`]: what a server is that does not know a command
//!
//! A connection that failed once is closed. A late reply to an older request would be taken for the
//! reply to the next one, and that is how a lock gets granted twice.

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

/// Why a request has no reply. An error that the server replies with is a reply: [`Reply::Error`].
#[derive(Clone, Debug)]
pub(crate) enum CallError {
    /// Not one byte of the request left.
    NotSent(Error),
    /// The request left, and may be carried out.
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

/// A connection that requests can be sent on: an exclusive or a multiplexed one.
pub(crate) trait ConnectionLike {
    /// Sends requests, on an exclusive connection in one write, and returns the replies in order,
    /// and why some are missing. A request without a reply may have been carried out.
    fn exchange(&mut self, batch: &Batch, by: Moment) -> (Vec<Reply>, Result<(), CallError>);

    /// Sends the only request of a batch and returns the reply.
    fn exchange_one(&mut self, batch: &Batch, by: Moment) -> Result<Reply, CallError> {
        let (mut replies, outcome) = self.exchange(batch, by);
        outcome.map(|()| replies.pop().expect("as many replies as requests"))
    }

    /// Sends a request that is about no lock, and returns the reply.
    fn call(&mut self, request: &Request<'_>, by: Moment) -> Result<Reply, CallError> {
        self.exchange_one(&Batch::from_requests(&[*request]), by)
    }

    /// Sends requests that are about no lock. See [`exchange`](Self::exchange).
    fn call_many(
        &mut self,
        requests: &[Request<'_>],
        by: Moment,
    ) -> (Vec<Reply>, Result<(), CallError>) {
        self.exchange(&Batch::from_requests(requests), by)
    }

    /// Whether this script was never sent on this exclusive connection. Marks it as sent.
    fn is_first_use(&mut self, _script: &Script) -> bool {
        false
    }

    /// Whether the script is sent by its text at once, because a reply that its hash is not known
    /// would cost more than a round trip.
    fn needs_script_text(&mut self, _script: &Script) -> bool {
        false
    }

    /// Whether all keys are on one server: otherwise each lock needs a script of its own.
    fn is_one_store(&self) -> bool {
        false
    }

    /// To which of the endpoint's servers it leads, if that shows its data's history and may be
    /// asked for it behind any request.
    fn history(&self) -> Option<&ServerGeneration> {
        None
    }

    /// The server at the other end.
    fn server(&self) -> &Arc<Server>;

    /// Closes the connection: the last reply was none to the request.
    fn close(&mut self) {
        let why = self
            .server()
            .garbage("requests and replies may be out of step");
        self.close_with(&why);
    }

    /// Closes the connection for another reason, which other threads that wait on it are told.
    fn close_with(&mut self, why: &Error);

    /// Whether [`mark_verified`](Self::mark_verified) was called on this connection.
    fn is_verified(&self) -> bool {
        false
    }

    /// Notes that it was verified which server this is: that stays so until the connection breaks.
    fn mark_verified(&mut self) {}
}
