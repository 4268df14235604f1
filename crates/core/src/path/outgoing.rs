//! What leaves on a path: data datagrams, packet trains, and the control frames that concern the path itself.

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
    /// Takes note of a data datagram of `len` bytes of UDP payload that leaves now with the next number and carries a packet
    /// of the host. `numbered`: the packet, unless it is one of several copies. [`on_sent`](Self::on_sent) has to follow.
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
            // Nobody waits for the repair of a copy.
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

    /// Takes note of any data datagram of `len` bytes of UDP payload that leaves now.
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

    /// Takes note that a packet waits for the path.
    pub fn on_limited(&mut self, now: Instant) {
        self.limited_at = Some(now);
    }

    /// A datagram counts as lost that should have carried data; see [`Sender::take_lost`](super::sender::Sender::take_lost).
    pub fn on_nacked(&mut self, now: Instant) {
        self.mtu.on_lost(now);
    }

    /// Writes the frames that are due and travel on the path they concern: answers, link descriptions and their
    /// acknowledgements, train results, the end of a burst, a probe.
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
            // Where there is no room for it, there may be later.
            let _ = writer.push(&Frame::Ping { token, size: 0 });
            self.health.on_probe_sent(now);
        }
    }

    /// Writes the next datagram of a packet train, if one is due; whether it did. A path that may not carry one now is sent
    /// none, and begins anew later.
    pub fn write_train(&mut self, now: Instant, writer: &mut FrameWriter<'_>) -> bool {
        // A gateway does not know a link before it was described.
        let is_described = self.role == Role::Client || self.announced.due.is_none();
        if !is_described || self.route.is_none() || self.link.role != LinkRole::Active {
            self.train_sender.cancel();
            return false;
        }
        if !self.address.is_proven() {
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

/// When an unacknowledged announcement is sent again.
pub(crate) const ANNOUNCE_AGAIN: Duration = Duration::from_millis(500);
/// A path counts as lossy for so long after the last NACK.
const LOSES_FOR: Duration = Duration::from_secs(10);
