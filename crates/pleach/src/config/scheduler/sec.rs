//! The key `parity` of `[tunnel]`.

use pleach_core::sec::Code;

use crate::config::{source::ConfigError, table::Value};

/// Reads the code with which parity is computed.
///
/// # Errors
/// If the value is not the name of a code.
pub(in crate::config) fn parity(value: &Value<'_>) -> Result<Code, ConfigError> {
    match value.as_text() {
        Some("hamming") => Ok(Code::Hamming),
        Some("bch") => Ok(Code::Bch),
        _ => Err(value.expected("\"hamming\" or \"bch\"", "write \"hamming\", or remove it")),
    }
}
