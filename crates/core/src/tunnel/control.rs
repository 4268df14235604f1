//! Control datagrams to the other end: probes, descriptions of links, packet trains, reports of received packets, and
//! the close message.
//!
//! Reports are sent on the best path. Every [`SECOND_REPORT`] they are also sent on the second best path, so that a
//! path that fails in one direction does not suppress the reports about the other paths.

use core::time::Duration;

use super::{
    fec::Receiving,
    lengths::Lengths,
    receptions::Receptions,
    sealer::{MAX_BODY, Sealer},
    templates::Templates,
    trains::Trains,
};
use crate::{
    ids::PathId,
    path::{Path, train::TRAIN_PACKET_BYTES},
    profile::Profile,
    role::Role,
    session::{hash::SecretStream, limiter::Bucket, secret::Secret},
    time::Instant,
    wire::control::{Frame, FrameWriter, MAX_RANGES, MissingWriter},
};

/// The control messages that are due.
#[derive(Debug)]
pub(super) struct Control {
    /// Unpredictable tokens for path challenges.
    tokens: SecretStream,
    pub(super) receptions: Receptions,
    /// Paths whose interface has gone down, about which the other end has not been informed yet, with the counter of
    /// their next control datagram.
    links_down: Vec<(PathId, u64)>,
    /// Time at which reports are next sent on the second best path as well.
    second_report_at: Option<Instant>,
    pub(super) trains: Trains,
    is_closing: bool,
    /// Whether the other end has sent a close message.
    is_closed_by_peer: bool,
}

impl Control {
    /// Returns the state at the start of an association. `role`: the role of this end. `secret` must be unknown to
    /// everybody else, and nobody else may be able to derive it.
    pub(super) fn new(role: Role, receptions: Receptions, secret: &Secret) -> Self {
        Self {
            tokens: SecretStream::new(secret.expose(), b"challenges"),
            receptions,
            links_down: Vec::new(),
            second_report_at: None,
            trains: Trains::new(role),
            is_closing: false,
            is_closed_by_peer: false,
        }
    }

    /// Whether this end is closing the association.
    pub(super) const fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// Sends a close message on every path at the next [`send`](Self::send).
    pub(super) fn close(&mut self) {
        self.is_closing = true;
    }

    /// Records the close message of the other end.
    pub(super) fn on_close(&mut self) {
        self.is_closed_by_peer = true;
    }

    /// Whether the other end has sent a close message since the last call.
    pub(super) fn take_closed_by_peer(&mut self) -> bool {
        core::mem::take(&mut self.is_closed_by_peer)
    }

    /// Sends the control datagrams that are due. `train_starts`: limit of the permissions for packet trains of all
    /// peers.
    pub(super) fn send(
        &mut self,
        sealer: &mut Sealer<'_>,
        profile: &Profile,
        lengths: &Lengths,
        (templates, fec): (&mut Templates, &mut Receiving),
        train_starts: &mut Bucket,
    ) {
        if self.is_closing {
            return send_close(sealer);
        }
        for id in sealer.paths.ids() {
            if sealer.out.is_full() {
                return;
            }
            self.send_path_control(sealer, id);
            lengths.probe(sealer, id);
            let now = sealer.now;
            if profile.trains
                && let Some(path) = sealer.paths.get_mut(id)
                && path.wants_train(now)
            {
                if self.trains.may_run(now, train_starts) {
                    send_train(sealer, id);
                } else {
                    path.skip_train();
                }
            }
        }
        self.send_links_down(sealer);
        self.send_reports(sealer, fec);
        self.receptions.send(sealer);
        templates.send(sealer);
    }

    /// Records whether `path` will have a route. If it loses its route, the other end is informed at the next
    /// [`send`](Self::send).
    pub(super) fn on_route(&mut self, path: &Path, will_have_route: bool) {
        let id = path.id();
        match (path.route().is_some(), will_have_route) {
            (true, false) => self.links_down.push((id, path.sender().next_control())),
            (false, true) => self.links_down.retain(|(down, _)| *down != id),
            (true, true) | (false, false) => {}
        }
    }

    /// Informs the other end, on every working path, of the interfaces that have gone down. The report of such a path
    /// travels in the same datagram, so that the other end retransmits only packets that were lost. A lost message is not
    /// repeated: the other end then notices the silence.
    fn send_links_down(&mut self, sealer: &mut Sealer<'_>) {
        while let Some((id, counter)) = self.links_down.last().copied()
            && sealer.paths.working().next().is_some()
        {
            let mut body = [0; MAX_BODY];
            let mut writer = FrameWriter::new(&mut body);
            if let Some(path) = sealer.paths.get_mut(id) {
                write_report(sealer.now, path, &mut writer);
            }
            let _ = writer.push(&Frame::LinkDown { path: id, counter });
            let len = writer.len();
            let working: Vec<PathId> = sealer.paths.working().map(Path::id).collect();
            let mut is_sent = false;
            for id in working {
                is_sent |= sealer.control(id, &body[..len]);
            }
            if !is_sent {
                return;
            }
            self.links_down.pop();
        }
    }

    /// Sends the answers, probes and descriptions of one path on that path, with the challenge of its remote address
    /// ([`crate::path::address`]).
    fn send_path_control(&mut self, sealer: &mut Sealer<'_>, id: PathId) {
        let now = sealer.now;
        let path = sealer.paths.get_mut(id);
        let Some(path) = path.filter(|path| path.route().is_some()) else {
            return;
        };
        let mut body = [0; MAX_BODY];
        let room = path.address().body_room().min(MAX_BODY);
        let mut writer = FrameWriter::new(&mut body[..room]);
        let tokens = &mut self.tokens;
        let draw = || u64::from_be_bytes(tokens.array());
        let challenge = path.address_mut().take_challenge(now, draw);
        for token in challenge.into_iter().flatten() {
            let _ = writer.push(&Frame::Ping { token, size: 0 });
        }
        path.write_control(now, &mut writer);
        if !writer.is_empty() {
            let len = writer.len();
            sealer.control(id, &body[..len]);
        }
    }

    /// Sends the reports that are due, in several datagrams if the missing ranges do not fit into one.
    fn send_reports(&mut self, sealer: &mut Sealer<'_>, fec: &mut Receiving) {
        let mut recovered = MissingWriter::default();
        let now = sealer.now;
        let is_due = |path: &Path| path.receiver().report_due().is_some_and(|due| due <= now);
        let mut is_first = true;
        while !sealer.out.is_full()
            && sealer.paths.iter().any(is_due)
            && let Some(best) = sealer.paths.best()
        {
            let mut body = [0; MAX_BODY];
            let mut writer = FrameWriter::new(&mut body);
            if core::mem::take(&mut is_first) {
                fec.tell(&mut recovered);
                if let Some(ranges) = recovered.ranges() {
                    let _ = writer.push(&Frame::Recovered { ranges });
                }
            }
            for path in sealer.paths.iter_mut() {
                write_report(now, path, &mut writer);
            }
            let len = writer.len();
            sealer.control(best, &body[..len]);
            if self.second_report_at.is_none_or(|at| at <= now)
                && let Some(second) = sealer.paths.second(best)
            {
                let cost = |id| sealer.paths.get(id).map(|path| path.link().cost);
                let pause = if cost(second) > cost(best) {
                    DEAR_REPORT
                } else {
                    SECOND_REPORT
                };
                self.second_report_at = Some(now + pause);
                sealer.control(second, &body[..len]);
            }
        }
    }
}

/// Writes the report of a path, if a report is due and fits.
fn write_report(now: Instant, path: &mut Path, writer: &mut FrameWriter<'_>) {
    if path.receiver().report_due().is_none() || writer.room() < MAX_REPORT {
        return;
    }
    let mut missing = MissingWriter::default();
    if let Some(report) = path.receiver_mut().take_report(now, &mut missing) {
        let path = path.id();
        // Missing ranges come first, because the report confirms that they have been sent.
        if let Some(ranges) = missing.ranges() {
            let _ = writer.push(&Frame::Missing { path, ranges });
        }
        let _ = writer.push(&Frame::Report { path, report });
    }
}

/// Sends the due packets of a packet train, back to back.
fn send_train(sealer: &mut Sealer<'_>, id: PathId) {
    let now = sealer.now;
    while !sealer.out.is_full()
        && let Some(path) = sealer.paths.get_mut(id)
    {
        let mut body = [0; TRAIN_PACKET_BYTES];
        let mut writer = FrameWriter::new(&mut body);
        if !path.write_train(now, &mut writer) {
            return;
        }
        let len = writer.len();
        sealer.control(id, &body[..len]);
    }
}

/// Sends a close message on every path, and drops all sessions.
pub(super) fn send_close(sealer: &mut Sealer<'_>) {
    let mut body = [0; 8];
    let mut writer = FrameWriter::new(&mut body);
    let _ = writer.push(&Frame::Close);
    let len = writer.len();
    for id in sealer.paths.ids() {
        sealer.control(id, &body[..len]);
    }
    sealer.sessions.clear();
}

/// Maximum size of a report with its missing ranges, in bytes.
const MAX_REPORT: usize = 60 + 6 * MAX_RANGES;
/// Interval of the reports on the second best path.
const SECOND_REPORT: Duration = Duration::from_millis(50);
/// Interval of the reports on the second best path if that path costs more than the best path. The path is probed at
/// the same interval anyway.
const DEAR_REPORT: Duration = Duration::from_millis(500);
