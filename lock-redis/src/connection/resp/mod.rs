//! The wire format: the encoding of requests and the parsing of replies.

mod reply;
mod reply_reader;
mod request;
mod text;

pub(crate) use reply::{Reply, ServerError, info_field};
#[cfg(test)]
pub(crate) use reply_reader::LARGEST_REPLY;
pub(crate) use reply_reader::ReplyReader;
pub(crate) use request::{Request, encoded_words, with_text, write_count, write_word};
pub(crate) use text::Text;
