//! Empty types in place of the module `metrics`, for builds without the feature of that name.

use crate::backend::{Backend, Failure};
use crate::error::Error;
use crate::name::LockName;
use crate::observe::event::Event;
use std::sync::Arc;

#[derive(Clone, Default)]
pub(crate) struct Metrics(());

#[derive(Clone, Copy)]
pub(crate) struct RequestStart(());

#[derive(Default, Debug)]
pub(crate) struct Counted(());

impl Metrics {
    pub(crate) fn is_on(&self) -> bool {
        false
    }

    pub(crate) fn around(&self, backend: Arc<dyn Backend>) -> Arc<dyn Backend> {
        backend
    }

    pub(crate) fn event(&self, _event: &Event) {}

    pub(crate) fn acquire_ended<T>(&self, _lock: &LockName, _result: &Result<Option<T>, Error>) {}

    pub(crate) fn handed_off(&self, _lock: &LockName) {}

    pub(crate) fn renewal_failed(&self, _lock: &LockName) {}

    pub(crate) fn waiting(&self, _lock: &LockName) -> Counted {
        Counted(())
    }

    pub(crate) fn held(&self, _lock: &LockName) -> Counted {
        Counted(())
    }

    pub(crate) fn connected(&self) -> Counted {
        Counted(())
    }

    pub(crate) fn request_starts(&self) -> RequestStart {
        RequestStart(())
    }

    pub(crate) fn release_answered<T>(&self, _start: RequestStart, _answer: &Result<T, Failure>) {}
}

impl Counted {
    pub(crate) fn another(&self) -> Self {
        Self(())
    }

    pub(crate) fn end(&mut self) {}
}
