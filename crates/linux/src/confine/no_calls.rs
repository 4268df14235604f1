//! In place of `calls`, on architectures for which no filter can be made.

use std::io;

/// Refuses no calls.
///
/// # Errors
/// Always: this architecture is not supported.
pub(super) fn restrict(_may_bpf: bool) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
