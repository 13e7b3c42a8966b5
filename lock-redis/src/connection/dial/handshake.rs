//! The handshake of a connection: credentials, database, name, and whether it is the right server.

use super::credentials::{CredentialsSource, ResolvedCredentials};
use super::{Dialer, Route, not_connected};
use crate::connection::error_mapping::{self, Asked};
use crate::connection::{
    CallError, Connection, ConnectionLike, Identity, IdentityKind, Reply, Request, ServerError,
    Text, info_field, with_server_kind,
};
use lock_core::backend::Failure;
use lock_core::{Error, Moment, Secret};
use std::error::Error as _;
use std::io::{self, ErrorKind};

/// What the handshake sends.
#[derive(Clone, Debug)]
pub(crate) struct Login {
    pub(crate) secrets: CredentialsSource,
    pub(crate) database: u32,
    pub(crate) client_name: String,
}

/// A step of the handshake.
#[derive(Clone, Copy)]
enum Step {
    Login,
    Database,
    Name,
    Identity,
    Role,
}

impl Dialer {
    /// Sends the handshake in one write, and checks the replies.
    pub(super) fn handshake(
        &self,
        connection: &mut Connection,
        credentials: &ResolvedCredentials,
        by: Moment,
    ) -> Result<(), Failure> {
        let login = &self.login;
        let password = credentials.password.as_ref().map_or("", Secret::reveal).as_bytes();
        let database = Text::of(login.database);
        let with_user;
        let auth: &[&[u8]] = match &credentials.user {
            Some(user) => {
                with_user = [b"AUTH".as_slice(), user.as_bytes(), password];
                &with_user
            }
            None => &[b"AUTH", password],
        };
        let select: &[&[u8]] = &[b"SELECT", database.as_bytes()];
        let name: &[&[u8]] = &[b"CLIENT", b"SETNAME", login.client_name.as_bytes()];
        let who: &[&[u8]] = match self.identity.as_ref().map(Identity::kind) {
            Some(IdentityKind::Node) => &[b"CLUSTER", b"MYID"],
            _ => &[b"INFO", b"server"],
        };
        let steps = [
            (credentials.user.is_some() || credentials.password.is_some(), Step::Login, [auth]),
            (login.database != 0, Step::Database, [select]),
            (true, Step::Name, [name]),
            (self.identity.is_some(), Step::Identity, [who]),
            (self.must_be_master, Step::Role, [&[b"ROLE"]]),
        ];
        let taken: Vec<_> = steps.iter().filter(|(taken, ..)| *taken).collect();
        let requests: Vec<_> = taken.iter().map(|(_, _, words)| Request(words)).collect();
        let (replies, outcome) = connection.call_many(&requests, by);
        // First the replies: a server that is full says so to the first request, and closes.
        for ((_, step, _), reply) in taken.iter().zip(&replies) {
            let checked = self.check(connection, *step, reply);
            checked.map_err(|failure| with_server_kind(connection, failure, by))?;
        }
        outcome.map_err(|error| match error {
            // No request of the caller's has left yet.
            CallError::NotSent(error) | CallError::Unknown(error) if replies.is_empty() => {
                not_connected(self.hung_up_on(error))
            }
            CallError::NotSent(error) | CallError::Unknown(error) => not_connected(error),
        })
    }

    /// Checks the reply to `ROLE`: a replica refuses writes, and its reads are late.
    fn must_be_master(&self, reply: &Reply) -> Result<(), Failure> {
        let role = reply.as_array().and_then(|parts| parts.first()).and_then(Reply::as_bytes);
        if role == Some(b"master") {
            return Ok(());
        }
        let message = format!("{} was to be the master, and says that it is none", self.server);
        Err(Failure::NotSent(Error::unavailable(message)))
    }

    /// Adds the hint that a port for TLS closes connections without TLS.
    fn hung_up_on(&self, error: Error) -> Error {
        let cause = error.source().and_then(|source| source.downcast_ref::<io::Error>());
        let in_time = cause.is_none_or(|cause| cause.kind() != ErrorKind::TimedOut);
        if !in_time || !matches!(self.route, Route::Tcp(_, None)) {
            return error;
        }
        let message = format!("{error} (if this port is for TLS, the URL begins with `rediss://`)");
        Error::unavailable(message).with_source(error)
    }

    /// Compares the server's identity with the expected one.
    fn identify(&self, connection: &mut Connection, reply: &Reply) -> Result<(), Failure> {
        let Some(identity) = &self.identity else { return Ok(()) };
        let text = reply.as_bytes().map(String::from_utf8_lossy).unwrap_or_default();
        let found = match identity.kind() {
            IdentityKind::Run => info_field(&text, "run_id"),
            IdentityKind::Node => Some(&*text),
        };
        let found = found.map(str::trim).filter(|id| !id.is_empty());
        if found.is_none() && !identity.is_optional() {
            let message = format!(
                "{} does not say which server it is, and {} belongs there",
                self.server,
                identity.known().unwrap_or_default()
            );
            return Err(Failure::NotSent(Error::unavailable(message)));
        }
        // Valkey calls it `server_mode`. Envoy, which answers for the servers behind it, is a
        // cluster.
        let mode = ["redis_mode", "server_mode"].iter().find_map(|name| info_field(&text, name));
        connection.is_standalone = found.is_some() && mode.map(str::trim) == Some("standalone");
        let generation = identity.admit(&self.server, found, self.clock.now());
        connection.generation = generation.map_err(Failure::NotSent)?;
        Ok(())
    }

    fn check(&self, connection: &mut Connection, step: Step, reply: &Reply) -> Result<(), Failure> {
        let Reply::Error(answer) = reply else {
            return match step {
                Step::Role => self.must_be_master(reply),
                Step::Identity => self.identify(connection, reply),
                Step::Login | Step::Database | Step::Name => Ok(()),
            };
        };
        if let (Step::Identity, Some(identity)) = (step, &self.identity) {
            return self.unidentified(identity, answer);
        }
        let nicety = matches!(step, Step::Name)
            && (answer.code == "NOPERM" || answer.detail.starts_with("unknown command"));
        if nicety {
            // The name in the server's list of clients is optional.
            return Ok(());
        }
        let error = error_mapping::explain(&self.server, answer, &Asked::Handshake);
        Err(not_connected(error))
    }

    /// The server refused to say which server it is.
    fn unidentified(&self, identity: &Identity, answer: &ServerError) -> Result<(), Failure> {
        let asked = match identity.kind() {
            IdentityKind::Run => Asked::Introduction,
            IdentityKind::Node => Asked::Cluster,
        };
        let may_not = answer.code == "NOPERM" || answer.detail.starts_with("unknown command");
        if may_not && identity.kind() == IdentityKind::Run && identity.is_optional() {
            return Ok(());
        }
        let error = error_mapping::explain(&self.server, answer, &asked);
        // A server of another kind than the expected one may be replaced again.
        if !may_not && !identity.is_optional() {
            return Err(Failure::NotSent(Error::unavailable(error.to_string()).with_source(error)));
        }
        Err(not_connected(error))
    }
}
