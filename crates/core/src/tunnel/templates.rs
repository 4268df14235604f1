//! Header templates: their announcement and acknowledgement, and the compression and decompression of packets with
//! them ([`crate::compression`]).

use core::time::Duration;

use super::sealer::{MAX_BODY, Sealer};
use crate::{
    compression::{self, Compressor, ExpandError, Expander, Template},
    counters::DropReason,
    flows::FlowId,
    packet::{PacketBuf, Pool},
    time::Instant,
    wire::control::{Frame, FrameWriter},
};

/// The header templates of both ends.
#[derive(Debug)]
pub(super) struct Templates {
    /// Whether outgoing headers are compressed.
    is_compressing: bool,
    compressor: Compressor,
    expander: Expander,
    /// Numbers of the templates to acknowledge (`owed`), and of templates that the other end used but this end does not
    /// know (`unknown`).
    owed: Vec<u16>,
    unknown: Vec<u16>,
}

impl Default for Templates {
    fn default() -> Self {
        Self {
            is_compressing: true,
            compressor: Compressor::default(),
            expander: Expander::default(),
            owed: Vec::new(),
            unknown: Vec::new(),
        }
    }
}

impl Templates {
    /// Switches header compression of outgoing inner packets on or off.
    pub(super) fn set_compressing(&mut self, is_wanted: bool) {
        self.is_compressing = is_wanted;
    }

    /// Frees the memory of outgoing flows. The other end's templates are retained, because it may still use them.
    pub(super) fn release_memory(&mut self) {
        self.compressor.clear();
    }

    /// Removes from a packet the header fields that the other end knows.
    pub(super) fn compress(&mut self, now: Instant, flow: FlowId, packet: &mut PacketBuf) {
        if self.is_compressing {
            self.compressor.compress(now, flow, packet);
        }
    }

    /// Returns the time at which a definition is to be repeated.
    pub(super) fn due(&self) -> Option<Instant> {
        self.compressor.due()
    }

    /// Sends the templates that are due, and the acknowledgements of the other end's templates.
    pub(super) fn send(&mut self, sealer: &mut Sealer<'_>) {
        let now = sealer.now;
        let is_due = self.due().is_some_and(|due| due <= now);
        let is_owed = !(self.owed.is_empty() && self.unknown.is_empty());
        if !(is_due || is_owed) || sealer.out.is_full() {
            return;
        }
        let Some(best) = sealer.paths.best() else {
            return;
        };
        let rtt = sealer.paths.get(best);
        let rtt = rtt.and_then(|path| path.rtt().smoothed());
        let again = (rtt.unwrap_or_default() * 2).max(LEAST_PATIENCE);
        let mut body = [0; MAX_BODY];
        let mut writer = FrameWriter::new(&mut body);
        for number in self.owed.drain(..) {
            // The maximum number of acknowledgements fits into the datagram.
            let _ = writer.push(&Frame::TemplateAck { number });
        }
        for number in self.unknown.drain(..) {
            let _ = writer.push(&Frame::TemplateUnknown { number });
        }
        while writer.room() > LONGEST_FRAME
            && let Some(definition) = self.compressor.poll_definition(now, again)
        {
            let _ = writer.push(&Frame::Template {
                number: definition.number,
                travelling: definition.template.travelling(),
                headers: definition.template.bytes(),
            });
        }
        if !writer.is_empty() {
            let len = writer.len();
            sealer.control(best, &body[..len]);
        }
    }

    /// Records that the other end has acknowledged a template.
    pub(super) fn on_acknowledged(&mut self, number: u16) {
        self.compressor.on_acknowledged(number);
    }

    /// Records that the other end has received a packet with a template that it does not know.
    pub(super) fn on_unknown(&mut self, number: u16) {
        self.compressor.on_unknown(number);
    }

    /// Removes the templates of both ends.
    pub(super) fn clear(&mut self) {
        self.compressor.clear();
        self.expander.clear();
        self.owed.clear();
        self.unknown.clear();
    }

    /// Handles the definition of a template by the other end, which will omit the fields in `headers`.
    pub(super) fn on_definition(&mut self, number: u16, travelling: u128, headers: &[u8]) {
        let Some(template) = Template::from_wire(headers, travelling) else {
            return;
        };
        let may_be = number < compression::NUMBERS && self.owed.len() < MAX_OWED;
        if may_be && self.expander.define(number, template) {
            self.owed.push(number);
        }
    }

    /// Returns the decompressed packet in `body`.
    ///
    /// # Errors
    /// The reason why the packet cannot be decompressed.
    pub(super) fn whole_packet(
        &mut self,
        body: &[u8],
        pool: &mut Pool,
    ) -> Result<PacketBuf, DropReason> {
        if !compression::is_compressed(body) {
            return Ok(pool.copy_of(body));
        }
        let mut packet = pool.take();
        match self.expander.expand(body, &mut packet) {
            Ok(()) => Ok(packet),
            Err(error) => {
                pool.recycle(packet);
                Err(match error {
                    ExpandError::Malformed => DropReason::NotIp,
                    ExpandError::UnknownTemplate(number) => {
                        let unknown = &mut self.unknown;
                        if unknown.len() < MAX_OWED && !unknown.contains(&number) {
                            unknown.push(number);
                        }
                        DropReason::UnknownTemplate
                    }
                })
            }
        }
    }
}

#[cfg(test)]
impl Templates {
    /// Treats all definitions that are due as acknowledged.
    pub(super) fn acknowledge_all(&mut self, now: Instant, again: Duration) {
        while let Some(definition) = self.compressor.poll_definition(now, again) {
            let number = definition.number;
            self.compressor.on_acknowledged(number);
        }
    }
}

/// Minimum time after which a definition is repeated.
const LEAST_PATIENCE: Duration = Duration::from_millis(100);
/// Maximum length of an encoded definition, in bytes.
const LONGEST_FRAME: usize = 3 + 2 + 16 + 1 + compression::MAX_HEADERS_BYTES;
/// Maximum number of acknowledgements waiting to be sent. Senders repeat definitions that are not acknowledged.
const MAX_OWED: usize = 32;
