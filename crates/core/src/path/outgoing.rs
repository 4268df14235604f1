//! Datagrams that leave on a path: data, packet trains, and the control frames that concern the path itself.

use core::time::Duration;

use super::{Path, on_wire, sender::Numbered, train::TRAIN_PACKET_BYTES};
use crate::{
    ids::Seq,
    packet::Pool,
    profile::Mechanism,
    role::Role,
    time::Instant,
    units::Bytes,
    wire::control::{Frame, FrameWriter, LinkRole},
};

impl Path {
    /// Records a data datagram of `len` bytes of UDP payload that leaves now with the next number and carries a packet
    /// of the host. `numbered`: the packet, or `None` if it is one of several copies. [`on_sent`](Self::on_sent) must
    /// follow.
    pub fn on_data_sent(
        &mut self,
        now: Instant,
        len: usize,
        global_seq: Seq,
        numbered: Option<Numbered>,
        pool: &mut Pool,
    ) {
        let is_kept = numbered.is_some();
        let is_expendable = numbered
            .as_ref()
            .is_some_and(|numbered| numbered.is_expendable);
        if !is_expendable {
            let lost_at = self.sender.lost_at();
            let is_lossy = lost_at.is_some_and(|at| now.since(at) < LOSES_FOR);
            // A copy needs no retransmission, so a tail frame is not needed to detect its loss.
            let is_known = is_lossy || !is_kept || self.model.loss.latest_ppm().is_some();
            let announces = self.profile.detects_losses() && self.profile.has(Mechanism::Tails);
            let is_lossy = if announces {
                is_known.then_some(is_lossy)
            } else {
                Some(false)
            };
            self.tail.on_sent(now, len, is_lossy);
        }
        self.sender
            .on_sent(now, len, Some(global_seq), numbered, pool);
    }

    /// Records any data datagram of `len` bytes of UDP payload that leaves now.
    pub fn on_sent(&mut self, now: Instant, len: Bytes) {
        self.health.on_sent(now);
        self.mtu.on_sent(now, len);
        self.model
            .on_wire
            .on_sent(len + on_wire::headers(self.route.as_ref()));
        self.charge(now, len);
    }

    /// Charges the pacer for a datagram of `len` bytes of UDP payload.
    pub fn charge(&mut self, now: Instant, len: Bytes) {
        let len = len + on_wire::headers(self.route.as_ref());
        self.pacer.on_sent(now, len);
    }

    /// Records that a packet waits for the pacer of this path.
    pub fn on_limited(&mut self, now: Instant) {
        self.limited_at = Some(now);
    }

    /// Records the loss of a datagram of data; see [`Sender::take_lost`](super::sender::Sender::take_lost).
    pub fn on_nacked(&mut self, now: Instant) {
        self.mtu.on_lost(now);
    }

    /// Writes the due frames that travel on the path they concern: pongs, link descriptions and their
    /// acknowledgements, train results, a tail frame, a probe.
    pub fn write_control(&mut self, now: Instant, writer: &mut FrameWriter<'_>) {
        let mut is_answer = false;
        while let Some((token, size)) = self.probes.take_owed() {
            if !writer.push(&Frame::Pong { token, size }) {
                break;
            }
            is_answer = true;
        }
        if let Some(version) = self.link_ack.take() {
            let path = self.id;
            let _ = writer.push(&Frame::LinkAck { path, version });
        }
        let is_announcer = self.role == Role::Client;
        if is_announcer && self.announced.due.is_some_and(|due| due <= now) {
            let frame = Frame::Link {
                path: self.id,
                version: self.announced.version,
                info: self.link.info(),
            };
            if writer.push(&frame) {
                self.announced.due = Some(now + ANNOUNCE_AGAIN);
            }
        }
        if let Some(result) = self.train_receiver.take_result(now) {
            let _ = writer.push(&Frame::Train(result));
        }
        if self.tail.take(now)
            && let Some((counter, global_seq)) = self.sender.last()
        {
            let _ = writer.push(&Frame::Tail {
                path_seq: Seq::of_counter(counter),
                global_seq,
            });
        }
        if self.health.probe_due(now) || is_answer && self.health.probe_may_join(now) {
            let token = self.probes.start(now);
            // If there is no room now, a later datagram may have room.
            let _ = writer.push(&Frame::Ping { token, size: 0 });
            self.health.on_probe_sent(now);
        }
    }

    /// Skips the packet trains that are due. The next trains follow as if these had been sent.
    pub(crate) fn skip_train(&mut self) {
        self.train_sender.skip();
    }

    /// Whether a datagram of a packet train is due. If the path may not carry trains now, the train is cancelled; trains
    /// start again later.
    pub fn wants_train(&mut self, now: Instant) -> bool {
        // A gateway does not know a link before the client has described it.
        let is_described = self.role == Role::Client || self.announced.due.is_none();
        if !is_described || self.route.is_none() || self.link.role != LinkRole::Active {
            self.train_sender.cancel();
            return false;
        }
        self.address.is_proven() && self.train_sender.due().is_some_and(|due| due <= now)
    }

    /// Writes the next datagram of a packet train, if one [is due](Self::wants_train). Returns whether it did.
    pub fn write_train(&mut self, now: Instant, writer: &mut FrameWriter<'_>) -> bool {
        if !self.wants_train(now) {
            return false;
        }
        let Some(packet) = self.train_sender.next(now) else {
            return false;
        };
        let _ = writer.push(&Frame::TrainPacket(packet));
        writer.pad_to(TRAIN_PACKET_BYTES);
        true
    }
}

/// Retransmission interval of an unacknowledged link description.
pub(crate) const ANNOUNCE_AGAIN: Duration = Duration::from_millis(500);
/// Time after the last NACK for which a path counts as lossy.
const LOSES_FOR: Duration = Duration::from_secs(10);
