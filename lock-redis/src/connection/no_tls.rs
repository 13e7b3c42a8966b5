//! What stands in for [`tls`](super) where the feature `tls` is off: types that have no values.

use super::{Server, Stream};
use lock_core::Error;
use std::io;
use std::net::TcpStream;
use std::os::fd::BorrowedFd;

#[derive(Clone, Copy, Debug, Default)]
#[allow(dead_code, reason = "whatever they say is refused")]
pub(crate) struct TlsOptions<'a> {
    pub(crate) ca: Option<&'a str>,
    pub(crate) identity: Option<(&'a str, &'a str)>,
    pub(crate) name: Option<&'a str>,
}

#[derive(Clone, Debug)]
pub(crate) enum TlsSettings {}

impl TlsSettings {
    pub(crate) fn read(_: &TlsOptions<'_>) -> Result<Self, Error> {
        Err(Error::configuration(
            "`rediss://` is Redis over TLS, which is not built in: switch the cargo feature `tls` on",
        ))
    }

    pub(crate) fn of(&self, _: &str) -> Result<Tls, Error> {
        match *self {}
    }
}

#[derive(Debug)]
pub(crate) enum Tls {}

impl Tls {
    pub(super) fn wrap(&self, _: TcpStream, _: &Server) -> io::Result<TlsStream> {
        match *self {}
    }

    pub(super) fn failed(&self, _: &io::Error) {
        match *self {}
    }
}

#[derive(Debug)]
pub(crate) enum TlsStream {}

impl TlsStream {
    pub(super) fn socket(&self) -> &TcpStream {
        match *self {}
    }

    pub(super) fn is_handshaking(&self) -> bool {
        match *self {}
    }

    pub(super) fn wants_write(&self) -> bool {
        match *self {}
    }

    pub(super) fn push(&mut self) -> io::Result<()> {
        match *self {}
    }

    pub(super) fn handshake_tls(&mut self) -> io::Result<()> {
        match *self {}
    }

    pub(super) fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }

    pub(super) fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        match *self {}
    }

    pub(super) fn is_quiet(&mut self) -> bool {
        match *self {}
    }

    pub(super) fn split(self) -> (Stream, Option<Session>) {
        match self {}
    }
}

#[derive(Debug)]
pub(crate) enum Session {}

impl Session {
    pub(crate) fn open(&mut self, _: &[u8], _: &mut Vec<u8>) -> io::Result<bool> {
        match *self {}
    }

    pub(crate) fn seal(&mut self, _: &[u8], _: &mut Vec<u8>) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn is_quiet(&mut self, _: BorrowedFd<'_>) -> bool {
        match *self {}
    }
}

pub(super) fn explain(_: &Server, _: &io::Error) -> Option<Error> {
    None
}

pub(super) fn unfinished(server: &Server, failure: io::Error) -> Error {
    server.io_error("finish a handshake", failure)
}
