//! The kernel's random number generator as the engine's source of secret bytes.
//!
//! Each request is a call of `getrandom(2)`: nothing is buffered in this process. If the machine is virtual and was
//! cloned or restored, the kernel reseeds its generator (vmgenid, Linux 5.18), so that two copies draw different bytes.

use std::io;

use pleach_core::session::entropy::Entropy;
use rustix::{
    io::Errno,
    rand::{GetRandomFlags, getrandom},
};

/// The kernel's generator; see [`KernelEntropy::open`].
#[derive(Debug)]
pub struct KernelEntropy(());

impl KernelEntropy {
    /// Waits until the generator is seeded, which is always the case on a running system.
    ///
    /// # Errors
    /// Returns the error of `getrandom(2)`, for example under a filter that forbids the call.
    pub fn open() -> io::Result<Self> {
        draw(&mut [0; 32])?;
        Ok(Self(()))
    }
}

impl Entropy for KernelEntropy {
    /// # Panics
    /// Panics if `getrandom(2)` fails although it worked before. Continuing would mean predictable keys.
    fn fill(&mut self, out: &mut [u8]) {
        draw(out).expect("getrandom worked when this source was opened");
    }
}

/// Fills `out` from the kernel's generator.
pub(crate) fn draw(out: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < out.len() {
        match getrandom(&mut out[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_never_gives_the_same_bytes_twice() {
        let mut source = KernelEntropy::open().expect("getrandom works");
        let mut draw = || {
            let mut bytes = [0; 300];
            source.fill(&mut bytes);
            bytes
        };
        assert_ne!(draw(), draw());
    }
}
