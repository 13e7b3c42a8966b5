//! The engine of distlock. The map:
//!
//! - vocabulary: [`LockName`], [`OwnerId`], [`FencingToken`], [`Lease`], [`Moment`], [`Error`], [`Loss`]
//! - what stores implement: [`backend`]
//! - settings: [`Config`], [`Scheme`], [`Schemes`]

pub mod backend;
mod clock;
mod config;
mod error;
mod interrupt;
mod lease;
mod loss;
mod name;
mod options;
mod owner;
mod scheme;
mod token;

pub use backend::Backend;
pub use clock::{Clock, ManualClock, Moment, Signal, SystemClock, Woken};
pub use config::{Config, Host, Secret, TokenPolicy};
pub use error::{Error, ErrorKind};
pub use interrupt::Interrupt;
pub use lease::{Lease, LeaseTime};
pub use loss::{Loss, LossCause};
pub use name::LockName;
pub use options::LockOptions;
pub use owner::{ClientId, OwnerId, OwnerText};
pub use scheme::{Context, Scheme, Schemes};
pub use token::{FencingToken, TokenRange};
