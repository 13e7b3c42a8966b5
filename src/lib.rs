//! distlock
pub use lock_core::*;

/// Connects.
///
/// # Errors
///
/// x
pub fn connect(url: &str) -> Result<Client, Error> {
    builder().url(url)?.connect()
}

/// A builder that knows all schemes.
pub fn builder() -> ClientBuilder {
    Client::builder().schemes(schemes())
}

/// All schemes that are built in.
#[must_use]
pub fn schemes() -> Schemes {
    Schemes::none().with(MemoryScheme)
}
