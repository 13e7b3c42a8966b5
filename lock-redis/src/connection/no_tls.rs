//! Replaces [`tls`](super) if the feature `tls` is off: types without values.

use super::{DialTime, Server, TlsOptions};
use lock_core::Error;
use std::io;

#[derive(Clone, Debug)]
pub(crate) enum TlsSettings {}

impl TlsSettings {
    pub(crate) fn read(_: &TlsOptions<'_>, _: &DialTime<'_>) -> Result<Self, Error> {
        Err(Error::configuration(
            "`rediss://` is Redis over TLS, which is not built in: switch the cargo feature `tls` \
             on",
        ))
    }

    pub(crate) fn of(&self, _: &str) -> Result<Tls, Error> {
        match *self {}
    }
}

#[derive(Debug)]
pub(crate) enum Tls {}

impl Tls {
    pub(super) fn session(&self, _: &Server, _: &DialTime<'_>) -> io::Result<TlsSession> {
        match *self {}
    }

    pub(super) fn failed(&self, _: &io::Error) {
        match *self {}
    }
}

#[derive(Debug)]
pub(crate) enum TlsSession {}

impl TlsSession {
    pub(super) fn is_handshaking(&self) -> bool {
        match *self {}
    }

    pub(super) fn decrypt(&mut self, _: &[u8], _: &mut Vec<u8>) -> io::Result<bool> {
        match *self {}
    }

    pub(super) fn encrypt(&mut self, _: &[u8], _: &mut Vec<u8>) -> io::Result<()> {
        match *self {}
    }
}

pub(super) fn explain(_: &Server, _: &io::Error) -> Option<Error> {
    None
}

pub(super) fn unfinished(server: &Server, failure: io::Error) -> Error {
    server.io_error("finish a handshake", failure)
}
