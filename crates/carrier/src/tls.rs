//! TLS 1.3 of both ends: which certificate a gateway shows, and which a client accepts.

use std::{fs, io, path::Path, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, OtherError, RootCertStore,
    ServerConfig, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
    server::ParsedCertificate,
};

use crate::{
    error::CarrierError,
    proof::{certificate_mark, fingerprint},
};

/// Which certificate a client takes for the gateway's.
#[derive(Clone, Debug)]
pub enum Trust {
    /// Any that an authority of these issued for the server name.
    Authorities(Arc<RootCertStore>),
    /// The gateway's own: the gateway must show that it has the key of the tunnel.
    GatewayKey,
    /// The one with this SHA-256, in hexadecimal digits.
    Pinned(String),
}

impl Trust {
    /// The authorities of a file in PEM.
    ///
    /// # Errors
    /// It cannot be read, or holds no certificate.
    pub fn authorities(file: &Path) -> io::Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates(file)?);
        Ok(Self::Authorities(Arc::new(roots)))
    }

    /// Whether TLS must end at the gateway itself.
    pub(crate) fn is_bound(&self) -> bool {
        matches!(self, Self::GatewayKey)
    }
}

/// The certificate that a gateway shows.
#[derive(Debug)]
pub enum Certificate {
    /// Of these files, in PEM: a chain and its key.
    Files {
        /// The chain.
        chain: Vec<CertificateDer<'static>>,
        /// The private key.
        key: PrivateKeyDer<'static>,
    },
    /// A new one at each start, which clients recognise by the gateway's public key.
    SelfSigned,
}

impl Certificate {
    /// Reads chain and key.
    ///
    /// # Errors
    /// A file cannot be read, or does not hold what it should.
    pub fn read(chain: &Path, key: &Path) -> io::Result<Self> {
        let invalid = |error: rustls::pki_types::pem::Error| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{}: {error}", key.display()),
            )
        };
        Ok(Self::Files {
            chain: certificates(chain)?,
            key: PrivateKeyDer::from_pem_slice(&fs::read(key)?).map_err(invalid)?,
        })
    }
}

fn certificates(file: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let invalid = |what: String| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{}: {what}", file.display()),
        )
    };
    let read = CertificateDer::pem_slice_iter(&fs::read(file)?).collect::<Result<Vec<_>, _>>();
    let read = read.map_err(|error| invalid(error.to_string()))?;
    if read.is_empty() {
        return Err(invalid("holds no certificate in PEM".to_owned()));
    }
    Ok(read)
}

/// The client's side; `gateway_key`: the tunnel's public key of the gateway.
pub(crate) fn client(trust: &Trust, gateway_key: &[u8; 32]) -> Result<ClientConfig, String> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier: Arc<dyn ServerCertVerifier> = match trust {
        Trust::Authorities(roots) => {
            let builder = WebPkiServerVerifier::builder_with_provider(
                Arc::clone(roots),
                Arc::clone(&provider),
            );
            builder.build().map_err(|error| error.to_string())?
        }
        Trust::GatewayKey => Arc::new(Recognised {
            wanted: Wanted::Mark(*gateway_key),
            algorithms: provider.signature_verification_algorithms,
        }),
        Trust::Pinned(pin) => Arc::new(Recognised {
            wanted: Wanted::Fingerprint(pin.clone()),
            algorithms: provider.signature_verification_algorithms,
        }),
    };
    let mut config = versions(ClientConfig::builder_with_provider(provider))?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// The gateway's side.
pub(crate) fn server(
    certificate: Certificate,
    gateway_key: &[u8; 32],
) -> Result<ServerConfig, String> {
    let (chain, key) = match certificate {
        Certificate::Files { chain, key } => (chain, key),
        Certificate::SelfSigned => self_signed(gateway_key).map_err(|error| error.to_string())?,
    };
    let provider: Arc<CryptoProvider> = Arc::new(aws_lc_rs::default_provider());
    let mut config = versions(ServerConfig::builder_with_provider(provider))?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| error.to_string())?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// TLS 1.3 only.
fn versions<S: rustls::ConfigSide>(
    builder: rustls::ConfigBuilder<S, rustls::WantsVersions>,
) -> Result<rustls::ConfigBuilder<S, rustls::WantsVerifier>, String> {
    let versions = [&rustls::version::TLS13];
    let built = builder.with_protocol_versions(&versions);
    built.map_err(|error| error.to_string())
}

fn self_signed(
    gateway_key: &[u8; 32],
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), rcgen::Error> {
    let key = rcgen::KeyPair::generate()?;
    let mark = certificate_mark(
        gateway_key,
        &rcgen::PublicKeyData::subject_public_key_info(&key),
    );
    let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()])?;
    // A positive number (RFC 5280 section 4.1.2.2).
    let serial = [&[1][..], &mark].concat();
    params.serial_number = Some(rcgen::SerialNumber::from(serial));
    let certificate = params.self_signed(&key)?;
    let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    Ok((vec![certificate.into()], key))
}

/// A certificate that is not the gateway's, by its SHA-256.
#[derive(Debug, thiserror::Error)]
#[error("the certificate is not the gateway's (its SHA-256: {0})")]
struct Foreign(String);

/// What failed in a TLS handshake.
pub(crate) fn explain(error: &io::Error) -> CarrierError {
    let tls = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<Error>());
    if let Some(Error::InvalidCertificate(CertificateError::Other(OtherError(other)))) = tls
        && let Some(Foreign(fingerprint)) = other.downcast_ref::<Foreign>()
    {
        return CarrierError::Intercepted(fingerprint.clone());
    }
    CarrierError::Tls(tls.map_or_else(|| error.to_string(), Error::to_string))
}

/// Accepts one certificate, whoever issued it.
#[derive(Debug)]
struct Recognised {
    wanted: Wanted,
    algorithms: WebPkiSupportedAlgorithms,
}

#[derive(Debug)]
enum Wanted {
    Fingerprint(String),
    /// With a serial number made from its key and this one.
    Mark([u8; 32]),
}

impl Recognised {
    fn fits(&self, certificate: &CertificateDer<'_>) -> bool {
        match &self.wanted {
            Wanted::Fingerprint(pin) => fingerprint(certificate).eq_ignore_ascii_case(pin),
            Wanted::Mark(gateway_key) => {
                ParsedCertificate::try_from(certificate).is_ok_and(|read| {
                    let mark = certificate_mark(gateway_key, &read.subject_public_key_info());
                    certificate.windows(mark.len()).any(|part| part == mark)
                })
            }
        }
    }
}

impl ServerCertVerifier for Recognised {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.fits(end_entity) {
            return Ok(ServerCertVerified::assertion());
        }
        let foreign = Arc::new(Foreign(fingerprint(end_entity)));
        Err(Error::InvalidCertificate(CertificateError::Other(
            OtherError(foreign),
        )))
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("only TLS 1.3".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recognised(wanted: Wanted) -> Recognised {
        Recognised {
            wanted,
            algorithms: aws_lc_rs::default_provider().signature_verification_algorithms,
        }
    }

    #[test]
    fn a_gateways_certificate_is_told_from_an_interceptors() {
        let (own, _) = self_signed(&[4; 32]).expect("made");
        let (foreign, _) = self_signed(&[5; 32]).expect("made");
        let mark = recognised(Wanted::Mark([4; 32]));
        assert!(mark.fits(&own[0]) && !mark.fits(&foreign[0]));
        let pin = recognised(Wanted::Fingerprint(fingerprint(&own[0]).to_uppercase()));
        assert!(pin.fits(&own[0]) && !pin.fits(&foreign[0]));
        assert!(!mark.fits(&CertificateDer::from(vec![1, 2, 3])));
    }
}
