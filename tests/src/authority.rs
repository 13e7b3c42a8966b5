//! [`Authority`]: certificates for one test, and servers that present them.

use super::process::{RedisServer, free_port};
use super::rights::LOGIN;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

/// A certificate authority, and the files of the certificates that it has issued.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    files: TempDir,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params
            .distinguished_name
            .push(DnType::CommonName, format!("ca {}", fastrand::u64(..)));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let files = tempfile::tempdir().unwrap();
        fs::write(files.path().join("ca.crt"), issuer.pem()).unwrap();
        Self { issuer, files }
    }

    /// Returns the folder of the certificates, for a caller that keeps using one of the servers.
    pub fn into_files(self) -> TempDir {
        self.files
    }

    fn path(&self, file: &str) -> PathBuf {
        self.files.path().join(file)
    }

    pub fn file(&self, file: &str) -> String {
        self.path(file).display().to_string()
    }

    /// Writes a certificate and its key for `host`, or for no host if that is empty, valid until
    /// the end of `last_year`.
    pub fn certify(&self, file: &str, host: &str, last_year: i32) {
        let hosts = Some(host).filter(|host| !host.is_empty());
        let hosts: Vec<_> = hosts.into_iter().map(str::to_owned).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.distinguished_name.push(DnType::CommonName, file);
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(last_year, 12, 31);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        fs::write(self.path(&format!("{file}.crt")), certificate.pem()).unwrap();
        fs::write(self.path(&format!("{file}.key")), key.serialize_pem()).unwrap();
    }

    /// Starts a server with a certificate for `host`, and returns its TLS port, too. `asks` says if
    /// the server requests a client certificate (`--tls-auth-clients`).
    pub fn server(
        &self,
        host: &str,
        last_year: i32,
        asks: &str,
        more: &[&str],
    ) -> (RedisServer, u16) {
        self.certify("server", host, last_year);
        let (port, mut arguments) = self.arguments();
        arguments.extend(["--tls-auth-clients", asks].map(str::to_owned));
        arguments.extend(more.iter().map(|&word| word.to_owned()));
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        (RedisServer::start_with(&arguments), port)
    }

    /// Starts a server whose certificate is that of the authority itself, and returns its TLS port,
    /// too.
    pub fn server_with_its_own(&self) -> (RedisServer, u16) {
        fs::write(self.path("server.crt"), self.issuer.pem()).unwrap();
        fs::write(self.path("server.key"), self.issuer.key().serialize_pem()).unwrap();
        let (port, mut arguments) = self.arguments();
        arguments.extend(["--tls-auth-clients", "no"].map(str::to_owned));
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        (RedisServer::start_with(&arguments), port)
    }

    /// Returns a free TLS port, and the command-line arguments of a server with the certificate
    /// `server`.
    pub fn arguments(&self) -> (u16, Vec<String>) {
        let port = free_port();
        let arguments = [
            ["--tls-port", &port.to_string()],
            ["--tls-ca-cert-file", &self.file("ca.crt")],
            ["--tls-cert-file", &self.file("server.crt")],
            ["--tls-key-file", &self.file("server.key")],
        ];
        (
            port,
            arguments.concat().into_iter().map(str::to_owned).collect(),
        )
    }

    /// Returns the TLS URL of a server on this port. The client trusts only this authority.
    pub fn url(&self, port: u16) -> String {
        format!(
            "rediss://{LOGIN}@127.0.0.1:{port}?tls_ca={}",
            self.file("ca.crt")
        )
    }
}
