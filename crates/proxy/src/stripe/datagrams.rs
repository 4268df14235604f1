//! Datagrams of UDP flows over the lanes of an association (TCP connections to one peer, each over one link).
//!
//! A *flow* is the datagrams between one client and one destination. The asking end numbers its flows. Each of its
//! datagrams names the destination, so that a flow begins with any of its datagrams, and a lost datagram matters no
//! more than in UDP. Datagrams are not numbered: they may be lost, and those of different lanes may overtake each
//! other.
//!
//! Datagrams wait in one queue, in the order of their arrival. When a lane can send, the next datagram is assigned to
//! one of the lanes that can send at this moment, by DBAS's packet-oriented weighted round robin with the lanes'
//! estimated rates as weights. So a lane whose socket is full gets none. Datagrams precede the frames of
//! connections; but while both wait, these frames get a quarter of a lane's bytes.
//!
//! Bounds: [`MAX_FLOWS`] flows; [`MAX_QUEUED`] bytes in the queue, none of them for longer than [`MAX_AGE`].

use core::time::Duration;
use std::collections::{BTreeSet, VecDeque};

use pleach_core::{ids::PathId, time::Instant};

use super::{
    MAX_LANES,
    frame::{FlowId, Frame, MAX_DATAGRAM, Refusal, Wanted},
    sched::{LaneView, Weighted},
};

/// Why a datagram was dropped at this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// It waited for too long.
    Late,
    /// It is longer than a frame may be.
    Long,
    /// The queue is full.
    QueueFull,
}

impl Dropped {
    /// Returns the name of the reason among the drop counters.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Late => "datagram-late",
            Self::Long => "datagram-too-long",
            Self::QueueFull => "datagram-queue-full",
        }
    }
}

/// How a datagram of the peer relates to the known flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrived {
    /// The flow exists, possibly since this datagram.
    Known,
    /// The flow has ended.
    Past,
    /// There are too many flows.
    TooMany,
    /// No such flow was ever opened.
    Unknown,
}

/// The flows of an association, and their datagrams that wait for a lane.
#[derive(Debug, Default)]
pub(super) struct Datagrams {
    flows: BTreeSet<FlowId>,
    /// Number of the next flow that this end opens.
    next_flow: u32,
    /// Flows that the asking end has ended most recently. Their late datagrams do not begin them again.
    ended: BTreeSet<FlowId>,
    /// The flows in `ended`, in the order in which they ended.
    ended_order: VecDeque<FlowId>,
    queue: VecDeque<Queued>,
    queued_bytes: usize,
    /// Datagrams that are assigned to a lane, by slot.
    staged: [Option<Queued>; MAX_LANES],
    /// Bytes of datagrams sent, minus [`SHARE`] times the bytes of items sent, by slot; at least 0.
    lead: [usize; MAX_LANES],
    scheduler: Weighted,
}

/// An encoded frame that waits for a lane.
#[derive(Debug)]
struct Queued {
    since: Instant,
    frame: Vec<u8>,
}

impl Queued {
    fn cost(&self) -> usize {
        self.frame.len() + OVERHEAD
    }
}

impl Datagrams {
    /// Opens a flow at the asking end. `None` if there are too many flows.
    pub(super) fn open(&mut self) -> Option<FlowId> {
        let next = self.next_flow.checked_add(1)?;
        if self.flows.len() >= MAX_FLOWS {
            return None;
        }
        let flow = FlowId(self.next_flow);
        self.next_flow = next;
        self.flows.insert(flow);
        Some(flow)
    }

    /// Removes a flow. Returns whether it existed.
    pub(super) fn close(&mut self, flow: FlowId) -> bool {
        self.flows.remove(&flow)
    }

    /// Removes a flow that the asking end has ended. Returns whether it existed.
    pub(super) fn end(&mut self, flow: FlowId) -> bool {
        if self.ended.insert(flow) {
            self.ended_order.push_back(flow);
        }
        if self.ended_order.len() > MAX_ENDED
            && let Some(oldest) = self.ended_order.pop_front()
        {
            self.ended.remove(&oldest);
        }
        self.close(flow)
    }

    /// Handles a datagram that arrived at the answering end.
    pub(super) fn on_asked(&mut self, flow: FlowId) -> Arrived {
        if self.flows.contains(&flow) {
            Arrived::Known
        } else if self.ended.contains(&flow) {
            Arrived::Past
        } else if self.flows.len() >= MAX_FLOWS {
            Arrived::TooMany
        } else {
            self.flows.insert(flow);
            Arrived::Known
        }
    }

    /// Handles a frame of flow `flow` that arrived at the asking end.
    pub(super) fn on_answered(&self, flow: FlowId) -> Arrived {
        if self.flows.contains(&flow) {
            Arrived::Known
        } else if flow.0 < self.next_flow {
            Arrived::Past
        } else {
            Arrived::Unknown
        }
    }

    /// Returns the number of flows.
    pub(super) fn flow_count(&self) -> usize {
        self.flows.len()
    }

    /// Queues a datagram.
    ///
    /// # Errors
    /// Fails if the datagram is too long, or the queue is full.
    pub(super) fn push(
        &mut self,
        now: Instant,
        flow: FlowId,
        wanted: Option<Wanted>,
        data: &[u8],
    ) -> Result<(), Dropped> {
        if data.len() > MAX_DATAGRAM {
            return Err(Dropped::Long);
        }
        self.push_frame(now, &Frame::Datagram { flow, wanted, data })
    }

    /// Queues the notification that a flow has ended. If the queue is full, the flow ends at the other end by itself.
    pub(super) fn push_end(&mut self, now: Instant, flow: FlowId, refusal: Option<Refusal>) {
        let _ = self.push_frame(now, &Frame::FlowEnd { flow, refusal });
    }

    fn push_frame(&mut self, now: Instant, frame: &Frame<'_>) -> Result<(), Dropped> {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        let queued = Queued {
            since: now,
            frame: bytes,
        };
        if self.queued_bytes + queued.cost() > MAX_QUEUED {
            return Err(Dropped::QueueFull);
        }
        self.queued_bytes += queued.cost();
        self.queue.push_back(queued);
        Ok(())
    }

    /// Drops frames that have waited for too long. Returns their number.
    pub(super) fn drop_late(&mut self, now: Instant) -> usize {
        let is_late = |queued: &Queued| now.since(queued.since) > MAX_AGE;
        let mut count = 0;
        while let Some(late) = self.queue.pop_front_if(|queued| is_late(queued)) {
            self.queued_bytes -= late.cost();
            count += 1;
        }
        for staged in &mut self.staged {
            count += usize::from(staged.take_if(|queued| is_late(queued)).is_some());
        }
        count
    }

    /// Whether nothing waits for a lane.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.staged.iter().all(Option::is_none)
    }

    /// Whether a frame is assigned to the lane in `slot`.
    pub(super) fn has_staged(&self, slot: PathId) -> bool {
        self.staged.get(slot.index()).is_some_and(Option::is_some)
    }

    /// Whether datagrams precede items on the lane in `slot` at present.
    pub(super) fn is_first(&self, slot: PathId) -> bool {
        self.lead.get(slot.index()).is_none_or(|lead| *lead < LEAD)
    }

    /// Notes that the lane in `slot` has sent an item of `bytes`. `None`: it has no item to send.
    pub(super) fn on_item(&mut self, slot: PathId, bytes: Option<usize>) {
        if let Some(lead) = self.lead.get_mut(slot.index()) {
            *lead = bytes.map_or(0, |bytes| lead.saturating_sub(SHARE * bytes));
        }
    }

    /// Returns the next frame for the lane in `slot`, which can send. `lanes` are the working lanes.
    pub(super) fn poll(&mut self, slot: PathId, lanes: &mut [LaneView]) -> Option<Vec<u8>> {
        loop {
            if let Some(queued) = self.staged.get_mut(slot.index())?.take() {
                self.lead[slot.index()] += queued.cost();
                return Some(queued.frame);
            }
            if self.queue.is_empty() {
                return None;
            }
            for lane in &mut *lanes {
                lane.is_free &= !self.has_staged(lane.slot);
            }
            let chosen = self.scheduler.assign(lanes)?;
            let queued = self.queue.pop_front()?;
            self.queued_bytes -= queued.cost();
            *self.staged.get_mut(chosen.index())? = Some(queued);
        }
    }

    /// Returns the frame that is assigned to the lane in `slot` to the queue, because the lane is gone.
    pub(super) fn on_lane_removed(&mut self, slot: PathId) {
        let staged = self.staged.get_mut(slot.index()).and_then(Option::take);
        if let Some(queued) = staged {
            self.queued_bytes += queued.cost();
            self.queue.push_front(queued);
        }
        self.on_item(slot, None);
    }
}

/// Maximum number of flows of an association.
pub const MAX_FLOWS: usize = 256;
/// Maximum number of bytes in the queue of an association: [`MAX_AGE`] at 40 Mbit/s.
pub const MAX_QUEUED: usize = 1 << 20;
/// Maximum time in the queue. After this time most applications have given a datagram up.
pub const MAX_AGE: Duration = Duration::from_millis(200);
/// Number of bytes of datagrams after which a lane sends an item: connections keep at least a quarter of a lane.
const LEAD: usize = SHARE * super::CHUNK;
/// Number of bytes of datagrams for each byte of items, if both wait.
const SHARE: usize = 3;
/// Number of bytes that a queued frame costs beyond its own bytes. It bounds the number of empty datagrams.
const OVERHEAD: usize = 64;
/// Number of ended flows that are remembered.
const MAX_ENDED: usize = 1024;

#[cfg(test)]
mod tests {
    use pleach_core::units::{Bitrate, Bytes};

    use super::*;

    const WANTED: Wanted = Wanted { ip: None, port: 53 };

    fn lanes(rates_mbps: &[u64]) -> Vec<LaneView> {
        let lane = |(slot, mbps): (u8, &u64)| LaneView {
            slot: PathId(slot),
            rate: Bitrate::from_mbps(*mbps),
            delay: Duration::from_millis(10),
            waiting: Bytes::ZERO,
            is_free: true,
        };
        (0..).zip(rates_mbps).map(lane).collect()
    }

    #[test]
    fn lanes_that_can_send_share_datagrams_by_their_rates() {
        let mut datagrams = Datagrams::default();
        let flow = datagrams.open().expect("room");
        let mut sent = [0; 2];
        for turn in (0..150).flat_map(|_| [0_u8, 1]) {
            let pushed = datagrams.push(Instant::ZERO, flow, Some(WANTED), &[1; 1000]);
            assert_eq!(pushed, Ok(()));
            // The lanes ask in turn, and both could send.
            for slot in [turn, 1 - turn] {
                let mut lanes = lanes(&[20, 10]);
                let slot = PathId(slot);
                sent[slot.index()] += usize::from(datagrams.poll(slot, &mut lanes).is_some());
            }
        }
        assert!(datagrams.is_empty());
        assert_eq!(sent[0] + sent[1], 300);
        assert!((195..=205).contains(&sent[0]), "{sent:?}");
        // A lane whose socket is full gets nothing.
        for _ in 0..9 {
            let pushed = datagrams.push(Instant::ZERO, flow, None, b"x");
            assert_eq!(pushed, Ok(()));
            let mut lanes = lanes(&[20, 10]);
            lanes[0].is_free = false;
            assert!(datagrams.poll(PathId(1), &mut lanes).is_some());
        }
    }

    #[test]
    fn the_queue_is_bounded_in_bytes_and_in_time() {
        let mut datagrams = Datagrams::default();
        let flow = datagrams.open().expect("room");
        let long = vec![0; MAX_DATAGRAM + 1];
        let mut push = |at: Instant, data: &[u8]| datagrams.push(at, flow, Some(WANTED), data);
        assert_eq!(push(Instant::ZERO, &long), Err(Dropped::Long));
        let mut count = 0;
        while push(Instant::ZERO, b"").is_ok() {
            count += 1;
        }
        assert!((10_000..20_000).contains(&count), "{count}");
        assert_eq!(push(Instant::ZERO, b""), Err(Dropped::QueueFull));
        assert_eq!(datagrams.drop_late(Instant::ZERO + MAX_AGE), 0);
        let mut lanes = lanes(&[1]);
        assert!(datagrams.poll(PathId(0), &mut lanes).is_some());
        let late = Instant::ZERO + MAX_AGE + Duration::from_millis(1);
        assert_eq!(datagrams.drop_late(late), count - 1);
        assert!(datagrams.is_empty());
        assert_eq!(datagrams.queued_bytes, 0);
        assert_eq!(datagrams.push(late, flow, None, b"next"), Ok(()));
    }

    #[test]
    fn what_is_assigned_to_a_lane_that_dies_or_stalls_is_not_kept_for_it() {
        let mut datagrams = Datagrams::default();
        let flow = datagrams.open().expect("room");
        for data in [b"1", b"2"] {
            let pushed = datagrams.push(Instant::ZERO, flow, None, data);
            assert_eq!(pushed, Ok(()));
        }
        // Lane 0 is quicker and gets the first, lane 1 the second.
        let second = datagrams.poll(PathId(1), &mut lanes(&[20, 10]));
        assert!(second.expect("there").ends_with(b"2"));
        assert!(datagrams.has_staged(PathId(0)));
        datagrams.on_lane_removed(PathId(0));
        let again = datagrams.poll(PathId(1), &mut lanes(&[20, 10])[1..]);
        assert!(again.expect("there").ends_with(b"1"));
        assert_eq!(datagrams.queued_bytes, 0);

        for data in [b"3", b"4"] {
            let pushed = datagrams.push(Instant::ZERO, flow, None, data);
            assert_eq!(pushed, Ok(()));
        }
        let mut both = lanes(&[20, 10]);
        assert!(datagrams.poll(PathId(1), &mut both).is_some());
        assert_eq!(datagrams.drop_late(Instant::ZERO + 2 * MAX_AGE), 1);
        assert!(datagrams.is_empty());
    }

    #[test]
    fn connections_get_a_quarter_of_a_lane_with_frames_of_any_length() {
        for len in [21, 1000, super::super::CHUNK] {
            let mut datagrams = Datagrams::default();
            let flow = datagrams.open().expect("room");
            let slot = PathId(0);
            let mut bytes = [0; 2];
            while bytes[0] + bytes[1] < 2_000_000 {
                let _ = datagrams.push(Instant::ZERO, flow, None, &[1; 1000]);
                if datagrams.is_first(slot) {
                    let frame = datagrams.poll(slot, &mut lanes(&[20])).expect("there");
                    bytes[0] += frame.len() + OVERHEAD;
                } else {
                    datagrams.on_item(slot, Some(len));
                    bytes[1] += len;
                }
            }
            assert!((440_000..=520_000).contains(&bytes[1]), "{bytes:?}");
        }
    }

    #[test]
    fn flows_are_bounded_and_an_ended_flow_does_not_begin_again() {
        let mut asks = Datagrams::default();
        let flows: Vec<FlowId> = core::iter::from_fn(|| asks.open()).collect();
        assert_eq!(flows.len(), MAX_FLOWS);
        assert_eq!(asks.on_answered(flows[0]), Arrived::Known);
        assert!(asks.close(flows[0]) && !asks.close(flows[0]));
        assert_eq!(asks.on_answered(flows[0]), Arrived::Past);
        assert_eq!(asks.on_answered(FlowId(9999)), Arrived::Unknown);
        assert!(asks.open().is_some_and(|flow| !flows.contains(&flow)));

        let mut answers = Datagrams::default();
        for flow in &flows {
            assert_eq!(answers.on_asked(*flow), Arrived::Known);
        }
        assert_eq!(answers.on_asked(FlowId(9999)), Arrived::TooMany);
        assert!(answers.end(flows[3]));
        assert_eq!(answers.on_asked(flows[3]), Arrived::Past);
        assert_eq!(answers.on_asked(FlowId(9999)), Arrived::Known);
        for flow in 20_000..40_000 {
            answers.end(FlowId(flow));
        }
        assert_eq!(answers.ended.len(), MAX_ENDED);
        assert_eq!(answers.ended_order.len(), MAX_ENDED);
    }

    #[test]
    fn the_flow_that_ended_first_is_forgotten_first_whatever_its_number() {
        let mut answers = Datagrams::default();
        let count = u32::try_from(MAX_ENDED).expect("few");
        // The flow with the lowest number lives longest.
        for flow in (0..=count).rev() {
            answers.end(FlowId(flow));
        }
        assert_eq!(answers.on_asked(FlowId(0)), Arrived::Past);
        assert_eq!(answers.on_asked(FlowId(1)), Arrived::Past);
        assert_eq!(answers.on_asked(FlowId(count)), Arrived::Known);
    }
}
