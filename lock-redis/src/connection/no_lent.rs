//! Replaces [`lent`](super) if the feature `redis-rs` is off: types without values.

use super::known::Known;
use super::{Batch, CallError, Reply, Server};
use lock_core::{Clock, Error, Moment};
use std::convert::Infallible;

#[derive(Clone, Debug)]
pub(crate) enum LentPool {}

impl LentPool {
    pub(super) fn may_hang(&self) -> bool {
        match *self {}
    }

    pub(crate) fn size(&self) -> u32 {
        match *self {}
    }

    pub(super) fn late(&self, _: Option<Infallible>) -> Error {
        match *self {}
    }

    pub(super) fn close_idle(&self, _: u64) {
        match *self {}
    }

    pub(super) fn borrow(&self, _: &dyn Clock, _: Moment) -> Result<LentConnection, Error> {
        match *self {}
    }
}

pub(crate) enum LentConnection {}

impl LentConnection {
    pub(super) fn exchange(
        &mut self,
        _: &Server,
        _: &Batch,
        _: &dyn Clock,
        _: Moment,
    ) -> (Vec<Reply>, Result<(), CallError>) {
        match *self {}
    }

    pub(super) fn connection_is_open(&self) -> bool {
        match *self {}
    }

    pub(super) fn is_doubtful(&self, _: Moment) -> bool {
        match *self {}
    }

    pub(super) fn poison(&mut self) {
        match *self {}
    }

    pub(super) fn take_known(&mut self) -> Option<Known> {
        match *self {}
    }

    pub(super) fn keep(&mut self, _: Known) {
        match *self {}
    }
}
