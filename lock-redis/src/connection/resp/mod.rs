//! The wire format: requests to bytes, and bytes to replies.

mod reply_reader;
mod request;

#[cfg(test)]
pub(crate) use reply_reader::LARGEST_REPLY;
pub(crate) use reply_reader::ReplyReader;
pub(crate) use request::{Request, script_hash, with_text};
