//! How connections to a store on another host are encrypted.

use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs, pki_types::CertificateDer};

/// Returns how connections to a server are encrypted, whose certificate one of `authorities` has signed; `None` without
/// authorities.
///
/// # Errors
/// If none of the certificates can be used, in words for the user.
pub(super) fn config(
    authorities: &[CertificateDer<'static>],
) -> Result<Option<ClientConfig>, String> {
    if authorities.is_empty() {
        return Ok(None);
    }
    let mut roots = RootCertStore::empty();
    // A collection of all that a host trusts may have old certificates that cannot be used.
    let (usable, unusable) = roots.add_parsable_certificates(authorities.iter().cloned());
    if usable == 0 {
        return Err("no certificate in [clients] ca_file can be used".to_owned());
    }
    if unusable > 0 {
        tracing::warn!("[clients] ca_file: {unusable} certificates cannot be used");
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Some(config))
}
