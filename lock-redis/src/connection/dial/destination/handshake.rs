//! The handshake of a connection: credentials, database, client name, the server's identity, and
//! the scripts that check that all keys are in one store.
//!
//! Credentials and database are essential, and so is the identity if a certain server is expected.
//! A proxy may know neither `CLIENT` nor `INFO`, and answer them with any error, or close the
//! connection: then the connection has no name, or the identity of its server is unknown.

use super::super::credentials::{CredentialsSource, ResolvedCredentials};
use super::{Destination, NotDialed, Route, not_connected};
use crate::connection::error_mapping::{self, Asked};
use crate::connection::history::Shown;
use crate::connection::identity::Refusal;
use crate::connection::one_store::{OneStore, Probe};
use crate::connection::{
    CallError, Connection, ConnectionLike, Identity, IdentityKind, Introduction, Reply, Request,
    ServerError, Text, info_field, with_server_kind,
};
use lock_core::backend::Failure;
use lock_core::{Error, Moment, Secret, WarningKind};
use std::error::Error as _;
use std::io::{self, ErrorKind};

/// The data that the handshake sends.
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
    /// Only in a brief handshake, which may have no other request.
    Ping,
    Name,
    Node,
    Info,
}

/// The condition for the server of a new connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Requirement {
    /// If an identity is expected, the server has it and, unless it is a cluster node, may grant
    /// locks.
    Usable,
    /// No condition: the connection is only used to query the server's properties.
    Nothing,
}

/// The extent of a handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Greeting {
    Full,
    /// Only the essential steps, because the server closed the connection instead of answering a
    /// full handshake.
    Brief,
}

impl Destination {
    /// Sends the handshake in one write, and checks the replies.
    pub(super) fn handshake(
        &self,
        connection: &mut Connection,
        credentials: &ResolvedCredentials,
        (requirement, greeting): (Requirement, Greeting),
        by: Moment,
    ) -> Result<(), NotDialed> {
        let login = &self.login;
        let password = credentials
            .password
            .as_ref()
            .map_or("", Secret::reveal)
            .as_bytes();
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
        let identity = self
            .identity
            .as_deref()
            .filter(|_| requirement == Requirement::Usable);
        let is_node = identity.is_some_and(|identity| identity.kind() == IdentityKind::Node);
        let is_full = greeting == Greeting::Full;
        // The application has logged in, and its connections keep their names.
        let is_own = self.lender().is_none();
        let steps = [
            (
                credentials.user.is_some() || credentials.password.is_some(),
                Step::Login,
                [auth],
            ),
            (is_own && login.database != 0, Step::Database, [select]),
            (!is_full || !is_own, Step::Ping, [&[b"PING"]]),
            (is_own && is_full, Step::Name, [name]),
            (is_node, Step::Node, [&[b"CLUSTER", b"MYID"]]),
            // `INFO` without an argument: several sections are needed, and Redis 6.2 accepts the
            // name of only one.
            (identity.is_some() && is_full, Step::Info, [&[b"INFO"]]),
        ];
        let taken: Vec<_> = steps.iter().filter(|(taken, ..)| *taken).collect();
        let one_store = match requirement {
            Requirement::Usable if is_full => self.one_store,
            Requirement::Usable | Requirement::Nothing => OneStore::Off,
        };
        let probes = one_store.probes();
        let probes: Vec<_> = probes.iter().map(Probe::words).collect();
        let probes: Vec<[&[&[u8]]; 1]> = probes.iter().map(|words| [words.as_slice()]).collect();
        let steps = taken.iter().map(|(_, _, words)| words).chain(&probes);
        let requests: Vec<_> = steps.map(|words| Request(words)).collect();
        let asked = self.clock.now();
        let (replies, outcome) = connection.call_many(&requests, by);
        let (mut node, mut info) = (None, None);
        // The replies are checked before `outcome`: a server with too many clients reports this in
        // its first reply, and then closes the connection.
        for ((_, step, _), reply) in taken.iter().zip(&replies) {
            let checked = match step {
                Step::Login if credentials.password.is_none() => self.check_user_alone(reply),
                _ => self.check(*step, reply),
            };
            checked.map_err(|failure| with_server_kind(connection, failure, by))?;
            let text = || reply.as_bytes().map(String::from_utf8_lossy);
            match step {
                Step::Node => node = text(),
                Step::Info => info = text(),
                Step::Login | Step::Database | Step::Ping | Step::Name => {}
            }
        }
        if let Err(CallError::NotSent(error) | CallError::Unknown(error)) = outcome {
            // No request of the caller has been sent yet, so the outcome is a failure to connect. A
            // brief handshake is no remedy if all steps were answered, and the server closed the
            // connection at a probe: locks need scripts.
            let is_at_greeting = is_full && replies.len() < taken.len();
            let may_be_brief = is_at_greeting && identity.is_none_or(Identity::is_never_reported);
            let has_hung_up = has_hung_up(&error);
            let failure = not_connected(match replies.is_empty() {
                true => self.hung_up_on(error),
                false => error,
            });
            return Err(match has_hung_up && may_be_brief {
                true => NotDialed::HungUp(failure),
                false => failure.into(),
            });
        }
        if !is_full && let Some(identity) = identity {
            if !identity.is_never_reported() {
                // The server has meanwhile reported its identity on another connection. So it knows
                // `INFO`, and has closed the earlier connections of this dial for another reason.
                let message = format!("{} closes connections", self.server);
                return Err(Failure::NotSent(Error::unavailable(message)).into());
            }
            self.warn_of_unknown_server("closes connections that send `CLIENT` or `INFO`");
        }
        let probed = replies.get(taken.len()..).unwrap_or_default();
        let Some(identity) = identity else {
            connection.known.is_one_store = one_store.is_proven(probed, None);
            return Ok(());
        };
        let info = info.unwrap_or_default();
        let introduction = Introduction {
            shown: Shown::read(&info),
            asked,
            answered: self.clock.now(),
        };
        let found = if is_node {
            node.as_deref()
        } else {
            introduction.shown.run_id.as_deref()
        };
        let found = found.map(str::trim).filter(|id| !id.is_empty());
        self.confirm(identity, found, by)?;
        self.identify(connection, identity, found, &introduction)?;
        connection.known.is_one_store = one_store.is_proven(probed, found);
        // `server_mode` is the name in Valkey. Envoy, which answers for the servers behind it,
        // reports a cluster.
        let mode = ["redis_mode", "server_mode"]
            .iter()
            .find_map(|name| info_field(&info, name));
        connection.known.is_standalone =
            found.is_some() && mode.map(str::trim) == Some("standalone");
        Ok(())
    }

    /// Adds a hint to the error of a closed connection without TLS: the port may be for TLS.
    fn hung_up_on(&self, error: Error) -> Error {
        if !has_hung_up(&error) || !matches!(self.route, Route::Tcp(_, None)) {
            return error;
        }
        let message = format!("{error} (if this port is for TLS, the URL begins with `rediss://`)");
        Error::unavailable(message).with_source(error)
    }

    /// Refuses a lent connection to another server than the address leads to now. Such a connection
    /// may be hours old, so it proves no change. A new connection of our own, which is judged
    /// itself, shows the server of now.
    fn confirm(
        &self,
        identity: &Identity,
        found: Option<&str>,
        by: Moment,
    ) -> Result<(), NotDialed> {
        let is_known = || identity.known().as_deref() == found;
        let Some(confirming) = self.confirming.as_ref().filter(|_| !is_known()) else {
            return Ok(());
        };
        drop(confirming.dial(by)?);
        if is_known() {
            return Ok(());
        }
        let message = format!(
            "a connection of the application's pool leads to another server than {} now",
            self.server
        );
        Err(Failure::NotSent(Error::unavailable(message)).into())
    }

    /// Compares the server's identity with the expected one, and records the server's generation in
    /// the connection.
    fn identify(
        &self,
        connection: &mut Connection,
        identity: &Identity,
        found: Option<&str>,
        introduction: &Introduction,
    ) -> Result<(), NotDialed> {
        if found.is_none() && !identity.is_optional() {
            let message = format!(
                "{} does not say which server it is, and {} belongs there",
                self.server,
                identity.known().unwrap_or_default()
            );
            return Err(Failure::NotSent(Error::unavailable(message)).into());
        }
        let admitted = identity.admit(&self.server, found, introduction);
        connection.known.generation = admitted.map_err(|refusal| match refusal {
            Refusal::Elsewhere(error) if introduction.shown.is_loading == Some(true) => {
                NotDialed::Loading(Failure::NotSent(error))
            }
            Refusal::Elsewhere(error) => NotDialed::Elsewhere(Failure::NotSent(error)),
            Refusal::Here(error) => Failure::NotSent(error).into(),
        })?;
        Ok(())
    }

    fn check(&self, step: Step, reply: &Reply) -> Result<(), Failure> {
        let Reply::Error(answer) = reply else {
            return Ok(());
        };
        if let (Step::Node | Step::Info, Some(identity)) = (step, &self.identity) {
            return self.unidentified(identity, step, answer);
        }
        if matches!(step, Step::Name | Step::Ping) && error_mapping::is_only_of_request(answer) {
            // The refusal has no consequence: the name only appears in the server's list of
            // clients, and any answer to `PING` shows that the server answers.
            return Ok(());
        }
        let error = error_mapping::explain(&self.server, answer, &Asked::Handshake);
        Err(not_connected(error))
    }

    /// Checks the reply to a login without a password. The error does not contain the user name,
    /// which may be a password that was put in the wrong place.
    fn check_user_alone(&self, reply: &Reply) -> Result<(), Failure> {
        let Reply::Error(answer) = reply else {
            return Ok(());
        };
        let is_of_login = answer.code == "WRONGPASS"
            || answer.detail.starts_with("wrong number of arguments")
            || answer.detail.contains("without any password configured");
        if !is_of_login {
            return self.check(Step::Login, reply);
        }
        let message = format!(
            "{} does not accept the user in the URL without a password; a password alone stands \
             behind a colon, as in `redis://:password@host`",
            self.server
        );
        let answer = ServerError {
            code: answer.code.clone(),
            detail: "the login was refused".to_owned(),
        };
        Err(not_connected(
            Error::configuration(message).with_source(answer),
        ))
    }

    fn warn_of_unknown_server(&self, answer: &str) {
        self.server.warn(WarningKind::UnknownServer, || {
            format!(
                "{} does not say which server it is ({answer}): whether it was restarted or \
                 replaced is noticed at the next renewal only",
                self.server
            )
        });
    }

    /// Returns the failure for an error in reply to a request for the server's identity. Ignores an
    /// error of `INFO` from a cluster node. Only warns if the server will never report its
    /// identity, and the identity is optional.
    fn unidentified(
        &self,
        identity: &Identity,
        step: Step,
        answer: &ServerError,
    ) -> Result<(), Failure> {
        let asked = match step {
            Step::Node => Asked::Cluster,
            _ => Asked::Introduction,
        };
        let may_not = answer.code == "NOPERM"
            || answer.detail.starts_with("unknown command")
            || identity.is_never_reported() && error_mapping::is_only_of_request(answer);
        // A cluster node is identified by its ID; `INFO` only adds information.
        let is_addition = matches!(step, Step::Info) && identity.kind() == IdentityKind::Node;
        let is_optional = identity.kind() == IdentityKind::Run && identity.is_optional();
        if is_addition {
            return Ok(());
        }
        if may_not && is_optional {
            self.warn_of_unknown_server(&format!("answers {answer}"));
            return Ok(());
        }
        let error = error_mapping::explain(&self.server, answer, &asked);
        // Not final, whatever the error: the address may lead to the expected server again later.
        if !may_not && !identity.is_optional() {
            return Err(Failure::NotSent(
                Error::unavailable(error.to_string()).with_source(error),
            ));
        }
        Err(not_connected(error))
    }
}

/// Returns whether the connection was closed or broke, in contrast to an answer that is late.
fn has_hung_up(error: &Error) -> bool {
    let cause = error.source().and_then(|it| it.downcast_ref::<io::Error>());
    cause.is_none_or(|cause| cause.kind() != ErrorKind::TimedOut)
}
