//! Packets of the TUN device: a read is split into packets, packets are merged, and a merged packet that is split again gives
//! the same packets.

/// `data`: see the function that is called.
pub fn run(data: &[u8]) {
    pleach_linux::fuzzing::split_and_merge(data);
}
