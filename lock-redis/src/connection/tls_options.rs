//! [`TlsOptions`]: the TLS options of a URL.

/// The TLS options of a URL.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(
    not(feature = "tls"),
    allow(dead_code, reason = "refused, whatever they say")
)]
pub(crate) struct TlsOptions<'a> {
    /// The file of the only authorities to trust; `None`: the authorities that the system trusts.
    pub(crate) ca: Option<&'a str>,
    /// The files of the client's own certificate and its key.
    pub(crate) identity: Option<(&'a str, &'a str)>,
    /// The name in the server's certificate, if it is not the host.
    pub(crate) name: Option<&'a str>,
}
