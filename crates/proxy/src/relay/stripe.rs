//! Striped mode: a TCP connection joined to one of another pleach's, over a lane on each link; DBAS's packet-oriented
//! mode. What is sent, when and on which lane is [`crate::stripe`]'s matter; here are the sockets.
//!
//! Each lane has a task ([`lane`]). The tasks of a connection share a [`Stripe`] and wake each other. Another task looks
//! at the lanes' TCP every [`TICK`], for estimates and for lanes that have fallen silent. Both ends of a striped
//! connection run this; who asked also dials the lanes ([`crate::daemon::peers`]).

pub(crate) mod handshake;
pub(crate) mod lane;
pub(crate) mod pulse;
#[cfg(test)]
pub(crate) mod tests;

use std::{
    cell::{Cell, RefCell},
    io,
    rc::Rc,
    time::Duration,
};

use pleach_core::{time::Instant, units::Bitrate};
use pleach_linux::clock;
use socket2::SockRef;
use tokio::{net::TcpStream, sync::Notify, time};

use self::{handshake::Shaken, lane::Lane, pulse::Pulses};
use super::{answer, meter, pipe};
use crate::{
    daemon::{hub::Hub, live::Live},
    handshake::Request,
    http::Body,
    sched::LinkId,
    stripe::{
        bundle::{Bundle, Event},
        frame::{Frame, LaneId},
        sched::Striping,
    },
};

/// One end of a striped connection.
#[derive(Debug)]
pub(crate) struct Stripe {
    /// Name of the other end.
    pub(crate) peer: String,
    pub(crate) striping: Striping,
    pub(crate) bundle: RefCell<Bundle>,
    pulses: Pulses,
    lanes: RefCell<Vec<Rc<Lane>>>,
    /// Those that ended and whose bytes are not booked yet.
    ended_lanes: RefCell<Vec<Rc<Lane>>>,
    /// Something can be delivered, something can be taken, a lane waits for TCP's account.
    deliverable: Notify,
    takeable: Notify,
    ticking: Notify,
    /// A lane came or went, or the connection has become large.
    pub(crate) changed: Notify,
    /// A lane went; for who waits for the last.
    ended: Notify,
    failure: RefCell<Option<String>>,
    failed: Notify,
    /// Since when no lane has been there on which something came.
    laneless_since: Cell<Option<Instant>>,
    /// Bytes of all frames, both ways.
    moved: Cell<u64>,
}

/// A lane's state for the status.
#[derive(Clone, Debug)]
pub(crate) struct LaneState {
    pub(crate) name: String,
    pub(crate) is_suspect: bool,
    pub(crate) rate: Bitrate,
    pub(crate) rtt: Duration,
    pub(crate) tx_bytes: u64,
    pub(crate) rx_bytes: u64,
}

impl Stripe {
    /// One without lanes, to `peer`.
    pub(crate) fn new(peer: String, striping: Striping, pulses: &Pulses) -> Rc<Self> {
        Rc::new(Self {
            peer,
            striping,
            bundle: RefCell::new(Bundle::new(striping)),
            pulses: pulses.clone(),
            lanes: RefCell::default(),
            ended_lanes: RefCell::default(),
            deliverable: Notify::new(),
            takeable: Notify::new(),
            ticking: Notify::new(),
            changed: Notify::new(),
            ended: Notify::new(),
            failure: RefCell::default(),
            failed: Notify::new(),
            laneless_since: Cell::new(Some(clock::now())),
            moved: Cell::new(0),
        })
    }

    /// Adds a lane over `link`, of that name. `false`: there are too many.
    pub(crate) fn add_lane(
        self: &Rc<Self>,
        id: LaneId,
        link: Option<LinkId>,
        name: String,
        shaken: Shaken,
    ) -> bool {
        if !self.bundle.borrow_mut().add_lane(clock::now(), id) {
            return false;
        }
        tracing::debug!(peer = self.peer, link = name, "lane joined");
        let pulse = self.pulses.of(&self.peer, &name);
        let lane = lane::start(self, id, link, name, pulse, shaken);
        self.lanes.borrow_mut().push(lane);
        self.wake();
        self.changed.notify_one();
        true
    }

    /// Notes that something came from the other end before there was a lane: the request, or that it is open.
    pub(crate) fn note_heard(&self) {
        self.laneless_since.set(None);
    }

    /// Ends a lane because of `why`.
    pub(crate) fn end_lane(&self, id: LaneId, why: &str) {
        let found = {
            let mut lanes = self.lanes.borrow_mut();
            let index = lanes.iter().position(|lane| lane.id == id);
            index.map(|index| lanes.remove(index))
        };
        let Some(lane) = found else { return };
        tracing::debug!(peer = self.peer, link = lane.name, "lane ended: {why}");
        lane.stop();
        self.ended_lanes.borrow_mut().push(lane);
        self.ended.notify_one();
        self.bundle.borrow_mut().remove_lane(id);
        if self.lanes.borrow().is_empty() {
            let since = self.laneless_since.get().unwrap_or_else(clock::now);
            self.laneless_since.set(Some(since));
        }
        self.wake();
        self.changed.notify_one();
    }

    /// Whether so much has gone either way that further lanes are worth what they cost.
    pub(crate) fn is_large(&self) -> bool {
        self.moved.get() >= LARGE
    }

    /// Notes `len` bytes of frames on any lane.
    pub(crate) fn note_moved(&self, len: usize) {
        let was_large = self.is_large();
        self.moved.set(self.moved.get() + len as u64);
        if self.is_large() && !was_large {
            self.changed.notify_one();
        }
    }

    pub(crate) fn lanes(&self) -> Vec<Rc<Lane>> {
        self.lanes.borrow().clone()
    }

    /// Lanes that ended since this was last asked.
    pub(crate) fn take_ended(&self) -> Vec<Rc<Lane>> {
        self.ended_lanes.take()
    }

    /// The lanes for the status.
    pub(crate) fn lane_states(&self) -> Vec<LaneState> {
        let bundle = self.bundle.borrow();
        let state = |lane: &Rc<Lane>| {
            let (rate, rtt, is_suspect) = bundle.sender.lane_state(lane.id)?;
            Some(LaneState {
                name: lane.name.clone(),
                is_suspect,
                rate,
                rtt,
                tx_bytes: lane.tx_bytes.get(),
                rx_bytes: lane.rx_bytes.get(),
            })
        };
        self.lanes.borrow().iter().filter_map(state).collect()
    }

    /// Handles a frame that came on a lane.
    fn handle_frame(&self, id: LaneId, frame: Frame<'_>) {
        self.laneless_since.set(None);
        let event = self
            .bundle
            .borrow_mut()
            .handle_frame(clock::now(), id, frame);
        match event {
            Ok(Event::Progress) => {}
            Ok(Event::LaneGone(id)) => self.end_lane(id, "it died at the other end"),
            Ok(Event::Reset) => self.fail("it broke at the other end".to_owned()),
            Err(violation) => self.fail(format!("the other end {violation}")),
        }
    }

    fn fail(&self, why: String) {
        self.failure.borrow_mut().get_or_insert(why);
        self.failed.notify_one();
    }

    /// Lets every task look whether there is something for it.
    fn wake(&self) {
        for lane in self.lanes.borrow().iter() {
            lane.wake.notify_one();
        }
        self.deliverable.notify_one();
        self.takeable.notify_one();
        self.ticking.notify_one();
    }

    /// Waits until the connection cannot go on.
    async fn broken(&self) -> io::Error {
        loop {
            if let Some(why) = self.failure.borrow().as_ref() {
                return io::Error::other(why.clone());
            }
            self.failed.notified().await;
        }
    }

    /// Looks at the lanes as long as there is something to look for.
    async fn tick(&self) -> io::Error {
        loop {
            let is_idle = !self.bundle.borrow().sender.is_waiting();
            if is_idle && self.laneless_since.get().is_none() {
                self.ticking.notified().await;
            }
            time::sleep(TICK).await;
            let now = clock::now();
            let since = self.laneless_since.get();
            if since.is_some_and(|since| now.since(since) > LANELESS) {
                return io::Error::other("no lane is left");
            }
            let hopeless = self.bundle.borrow().sender.hopeless_lane(now);
            if let Some(id) = hopeless {
                self.end_lane(id, "nothing gets through");
            }
            let news = {
                let mut bundle = self.bundle.borrow_mut();
                for lane in self.lanes.borrow().iter() {
                    lane.observe(now, &mut bundle);
                    if let Some((rate, ..)) = bundle.sender.lane_state(lane.id) {
                        lane.adapt(rate);
                    }
                }
                bundle.sender.handle_timeout(now)
            };
            if news {
                self.wake();
            }
        }
    }

    /// Takes all that comes from `from`, to its end.
    async fn take_all(&self, hub: &Hub, from: &TcpStream, moved: &Cell<u64>) -> io::Result<()> {
        loop {
            let room = self.room().await;
            from.readable().await?;
            let read = {
                let mut scratch = hub.buffers.scratch.borrow_mut();
                let len = room.min(scratch.len());
                let read = from.try_read(&mut scratch[..len]);
                if let Ok(len) = read {
                    self.bundle.borrow_mut().sender.write(&scratch[..len]);
                }
                read
            };
            match read {
                Ok(0) => {
                    self.finish();
                    return Ok(());
                }
                Ok(len) => {
                    moved.set(moved.get() + len as u64);
                    self.wake_lanes();
                }
                Err(error) if pipe::is_transient(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes `bytes`.
    async fn take(&self, mut bytes: &[u8], moved: &Cell<u64>) {
        while !bytes.is_empty() {
            self.room().await;
            let len = self.bundle.borrow_mut().sender.write(bytes);
            moved.set(moved.get() + len as u64);
            bytes = &bytes[len..];
            self.wake_lanes();
        }
    }

    /// Takes a request's body from `from`; what follows it stays unread.
    async fn take_body(
        &self,
        hub: &Hub,
        from: &TcpStream,
        mut body: Body,
        live: &Live,
    ) -> io::Result<()> {
        while !body.is_done() {
            from.readable().await?;
            let read = {
                let mut scratch = hub.buffers.scratch.borrow_mut();
                match from.try_read(&mut scratch) {
                    Ok(0) => return Err(io::Error::other("the client left within its request")),
                    Ok(len) => {
                        let taken = body.take(&scratch[..len]).map_err(io::Error::other)?;
                        live.is_ahead.set(taken < len);
                        scratch[..taken].to_vec()
                    }
                    Err(error) if pipe::is_transient(&error) => Vec::new(),
                    Err(error) => return Err(error),
                }
            };
            self.take(&read, &live.up).await;
        }
        Ok(())
    }

    fn finish(&self) {
        self.bundle.borrow_mut().sender.finish();
        self.wake_lanes();
    }

    /// Delivers all that comes to `to`, and its end.
    async fn deliver_all(
        &self,
        to: &TcpStream,
        moved: &Cell<u64>,
        held_up: &Cell<bool>,
    ) -> io::Result<()> {
        loop {
            let written = {
                let mut bundle = self.bundle.borrow_mut();
                let bytes = bundle.receiver.peek();
                if bytes.is_empty() {
                    if bundle.receiver.is_done() {
                        break;
                    }
                    None
                } else {
                    let written = to.try_write(bytes);
                    if let Ok(len) = written {
                        bundle.consume(len);
                    }
                    Some(written)
                }
            };
            match written {
                None => self.deliverable.notified().await,
                Some(Ok(len)) => {
                    moved.set(moved.get() + len as u64);
                    self.wake_lanes();
                }
                Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    held_up.set(true);
                    to.writable().await?;
                    held_up.set(false);
                }
                Some(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Some(Err(error)) => return Err(error),
            }
        }
        pipe::finish(to)?;
        self.wake_lanes();
        Ok(())
    }

    /// Waits until the other end has delivered all that was taken, the end with it.
    ///
    /// # Errors
    /// Nothing more was delivered for as long as `limit`, or the connection broke.
    async fn delivered(&self, limit: Duration) -> io::Result<()> {
        let delivered = async {
            let (mut seen, mut deadline) = (None, time::Instant::now());
            loop {
                {
                    let sender = &self.bundle.borrow().sender;
                    if sender.is_done() {
                        return io::Result::Ok(());
                    }
                    let now = Some(sender.delivered());
                    if now != seen {
                        (seen, deadline) = (now, time::Instant::now() + limit);
                    }
                }
                // Nobody else waits for room: all was taken.
                let moved = time::timeout_at(deadline, self.takeable.notified());
                moved.await.map_err(|_| io::ErrorKind::TimedOut)?;
            }
        };
        tokio::select! {
            outcome = delivered => outcome,
            error = self.broken() => Err(error),
            error = self.tick() => Err(error),
        }
    }

    async fn room(&self) -> usize {
        loop {
            let room = self.bundle.borrow().sender.room();
            if room > 0 {
                return room;
            }
            self.takeable.notified().await;
        }
    }

    fn wake_lanes(&self) {
        for lane in self.lanes.borrow().iter() {
            lane.wake.notify_one();
        }
        self.ticking.notify_one();
    }

    /// Waits until all lanes have said their last.
    async fn drained(&self) {
        while !self.lanes.borrow().is_empty() {
            self.ended.notified().await;
        }
    }

    /// Ends all lanes, at once.
    pub(crate) fn close(&self) {
        for lane in self.lanes.borrow_mut().drain(..) {
            lane.stop();
            self.ended_lanes.borrow_mut().push(lane);
        }
    }
}

/// The end that asked: serves `client`, whose `request` goes over `stripe`, until both directions have ended.
///
/// # Errors
/// What broke the connection; the client is reset then.
pub(crate) async fn relay(
    hub: &Hub,
    client: &TcpStream,
    live: &Live,
    stripe: &Stripe,
    mut request: Request,
) -> io::Result<()> {
    let is_request = request.body != Body::Tunnel;
    let upward = async {
        stripe.take(&request.head, &live.up).await;
        let rest = core::mem::take(&mut request.rest);
        let len = request.body.take(&rest).map_err(io::Error::other)?;
        live.is_ahead.set(len < rest.len());
        stripe.take(&rest[..len], &live.up).await;
        if is_request {
            stripe.take_body(hub, client, request.body, live).await?;
        } else {
            stripe.take_all(hub, client, &live.up).await?;
        }
        live.is_half_closed.set(true);
        Ok(())
    };
    let downward = async {
        let held_up = &live.is_held_up;
        stripe.deliver_all(client, &live.down, held_up).await?;
        live.is_half_closed.set(true);
        Ok(())
    };
    let both = async { tokio::try_join!(upward, downward).map(drop) };
    let outcome = tokio::select! {
        outcome = both => outcome.map(|()| End::Both),
        error = stripe.broken() => Err(error),
        error = stripe.tick() => Err(error),
        () = live.stopped() => Err(meter::stopped(live)),
        () = answer::another_request(client, live), if is_request => Ok(End::Answered),
    };
    // After a request's answer nothing more goes up.
    stripe.finish();
    end(hub, client, stripe, outcome).await
}

/// The end that was asked: joins `stripe` to `target` until both directions have ended.
///
/// # Errors
/// What broke the connection; the target is reset then.
pub(crate) async fn answer(
    hub: &Hub,
    target: &TcpStream,
    live: &Live,
    stripe: &Stripe,
) -> io::Result<()> {
    live.is_opening.set(false);
    let both = async {
        let held_up = Cell::new(false);
        let upward = async {
            stripe.deliver_all(target, &live.up, &held_up).await?;
            live.is_half_closed.set(true);
            Ok(())
        };
        let downward = async {
            stripe.take_all(hub, target, &live.down).await?;
            live.is_half_closed.set(true);
            io::Result::Ok(())
        };
        tokio::try_join!(upward, downward).map(drop)
    };
    let outcome = tokio::select! {
        outcome = both => outcome.map(|()| End::Both),
        error = stripe.broken() => Err(error),
        error = stripe.tick() => Err(error),
        () = live.stopped() => Err(meter::stopped(live)),
    };
    end(hub, target, stripe, outcome).await
}

/// How a connection ended that did not break.
enum End {
    /// A request was answered, and the client has another one; it is not to wait for the server.
    Answered,
    /// In both directions.
    Both,
}

/// Lets the other end deliver what was taken, tells it how it ended, and `stream` if it broke.
async fn end(
    hub: &Hub,
    stream: &TcpStream,
    stripe: &Stripe,
    outcome: io::Result<End>,
) -> io::Result<()> {
    let outcome = match outcome {
        Ok(End::Answered) => Ok(()),
        // What is under way may need to be sent again on another lane. `stream` has ended, and keeps what it was given.
        Ok(End::Both) => stripe.delivered(hub.half_closed_idle()).await,
        Err(error) => {
            // A socket that refuses is closed plainly.
            let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
            Err(error)
        }
    };
    if outcome.is_err() {
        stripe.bundle.borrow_mut().reset();
    }
    stripe.wake();
    let last = async {
        tokio::select! {
            () = stripe.drained() => {}
            _ = stripe.tick() => {}
        }
    };
    let _ = time::timeout(LAST_WORDS, last).await;
    stripe.close();
    outcome
}

/// What moves less goes over one lane: a further one costs two round trips and a slow start of its own, and each of its first
/// segments that is lost a timeout.
const LARGE: u64 = 64 << 10;
/// How often TCP is asked about the lanes.
const TICK: Duration = Duration::from_millis(25);
/// Without any lane for so long, a connection ends; as long as one without carrier may last.
const LANELESS: Duration = Duration::from_secs(10);
/// How long the lanes may take to say their last, after all was delivered or the connection broke.
const LAST_WORDS: Duration = Duration::from_secs(3);
