//! How connections to a store on another host are encrypted.

use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs, pki_types::CertificateDer};

/// Returns how connections to a server are encrypted, whose certificate one of `authorities` has signed; `None` without
/// authorities.
///
/// # Errors
/// If a certificate is not one of an authority.
pub(super) fn config(
    authorities: &[CertificateDer<'static>],
) -> Result<Option<ClientConfig>, rustls::Error> {
    if authorities.is_empty() {
        return Ok(None);
    }
    let mut roots = RootCertStore::empty();
    for certificate in authorities {
        roots.add(certificate.clone())?;
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Some(config))
}
