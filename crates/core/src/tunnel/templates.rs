//! Templates of headers told and acknowledged, and packets made shorter and whole again by them
//! ([`crate::compression`]).

use core::time::Duration;

use super::{Tunnel, control::MAX_BODY};
use crate::{
    compression::{self, ExpandError, Template},
    counters::DropReason,
    packet::{PacketBuf, Pool},
    time::Instant,
    transmit::TxQueue,
    wire::control::{Frame, FrameWriter},
};

impl Tunnel {
    /// Sends the templates that are due, and what acknowledges those of the other end.
    pub(super) fn send_templates(&mut self, now: Instant, out: &mut TxQueue) {
        let is_due = self.compressor.due().is_some_and(|due| due <= now);
        let is_owed = !(self.templates_owed.is_empty() && self.templates_unknown.is_empty());
        if !(is_due || is_owed) || out.is_full() {
            return;
        }
        let Some(best) = self.best_path() else {
            return;
        };
        let rtt = self.path(best).and_then(|path| path.rtt().smoothed());
        let again = (rtt.unwrap_or_default() * 2).max(LEAST_PATIENCE);
        let mut body = [0; MAX_BODY];
        let mut writer = FrameWriter::new(&mut body);
        for number in self.templates_owed.drain(..) {
            // There is room for as many as may be owed.
            let _ = writer.push(&Frame::TemplateAck { number });
        }
        for number in self.templates_unknown.drain(..) {
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
            self.seal_control(now, best, &body[..len], out);
        }
    }

    /// The other end will leave out what `headers` say.
    pub(super) fn on_template(&mut self, number: u16, travelling: u128, headers: &[u8]) {
        let Some(template) = Template::from_wire(headers, travelling) else {
            return;
        };
        let may_be = number < compression::NUMBERS && self.templates_owed.len() < MAX_OWED;
        if may_be && self.expander.define(number, template) {
            self.templates_owed.push(number);
        }
    }

    /// The packet that came as `body`, whole.
    ///
    /// # Errors
    /// Why it is none.
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
                        let unknown = &mut self.templates_unknown;
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

/// A definition is told again after this at the earliest.
const LEAST_PATIENCE: Duration = Duration::from_millis(100);
/// Room a definition may take, in bytes.
const LONGEST_FRAME: usize = 3 + 2 + 16 + 1 + compression::MAX_HEADERS_BYTES;
/// Acknowledgements owed at most; definitions beyond are repeated by their sender.
const MAX_OWED: usize = 32;
