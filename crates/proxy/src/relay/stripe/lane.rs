//! A lane's task: reads frames, and writes what the bundle has for it whenever the socket takes something.

use std::{
    cell::{Cell, RefCell},
    io,
    rc::Rc,
    time::Duration,
};

use pleach_core::{time::Instant, units::Bitrate};
use pleach_linux::{clock, tcp};
use socket2::SockRef;
use tokio::{
    net::TcpStream,
    sync::Notify,
    task::{AbortHandle, spawn_local},
    time,
};

use super::{Stripe, handshake::Shaken, pulse::Pulse};
use crate::{
    daemon::share::Share,
    relay::pipe,
    sched::LinkId,
    stripe::{
        bundle::Bundle,
        channel::{Opener, Sealer},
        frame::{self, LaneId},
        rate::LaneSample,
    },
};

/// A lane of a striped connection.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) id: LaneId,
    pub(crate) name: String,
    /// At the end that asked.
    pub(crate) link: Option<LinkId>,
    pub(crate) stream: TcpStream,
    /// Of its link.
    pulse: Pulse,
    pub(super) wake: Notify,
    /// Frames sent and received, before they are sealed.
    pub(crate) tx_bytes: Cell<u64>,
    pub(crate) rx_bytes: Cell<u64>,
    /// The same when the window began, and TCP's segments.
    pub(crate) seen: Cell<(u64, u64)>,
    pub(crate) tcp_seen: Cell<(u32, u32)>,
    /// What it has of its link.
    pub(crate) share: Cell<Share>,
    /// When something last came on it, or arrived that it had sent.
    came_at: Cell<Instant>,
    /// What may wait in the kernel.
    backlog: Cell<u32>,
    task: RefCell<Option<AbortHandle>>,
}

/// Starts a lane's task.
pub(super) fn start(
    stripe: &Rc<Stripe>,
    id: LaneId,
    link: Option<LinkId>,
    name: String,
    pulse: Pulse,
    shaken: Shaken,
) -> Rc<Lane> {
    let Shaken {
        stream,
        mut sealer,
        mut opener,
    } = shaken;
    let share = Share::begin(&stream, 0);
    let lane = Rc::new(Lane {
        id,
        name,
        link,
        stream,
        pulse,
        wake: Notify::new(),
        tx_bytes: Cell::new(0),
        rx_bytes: Cell::new(0),
        seen: Cell::new((0, 0)),
        tcp_seen: Cell::new((0, 0)),
        share: Cell::new(share),
        came_at: Cell::new(clock::now()),
        backlog: Cell::new(0),
        task: RefCell::new(None),
    });
    lane.limit_backlog(LEAST_BACKLOG);
    let (stripe, this) = (Rc::clone(stripe), Rc::clone(&lane));
    let task = spawn_local(async move {
        let both = async {
            tokio::try_join!(
                read(&stripe, &this, &mut opener),
                write(&stripe, &this, &mut sealer)
            )
        };
        let outcome = both.await;
        let why = outcome.map_or_else(|error| error.to_string(), |_| "over".to_owned());
        stripe.end_lane(this.id, &why);
    });
    *lane.task.borrow_mut() = Some(task.abort_handle());
    lane
}

impl Lane {
    pub(super) fn stop(&self) {
        if let Some(task) = self.task.borrow_mut().take() {
            task.abort();
        }
    }

    /// When it will have been quiet for so long that it may be dead, if nothing comes on it until then: sooner if nothing comes
    /// on other lanes of its link either.
    pub(crate) fn quiet_at(&self) -> Instant {
        let came_at = self.came_at.get();
        (came_at.max(self.pulse.came_at()) + QUIET).min(came_at + BUSY_QUIET)
    }

    fn on_came(&self, now: Instant) {
        self.came_at.set(now);
        self.pulse.on_came(now);
    }

    /// Tells the bundle TCP's account.
    pub(super) fn observe(&self, now: Instant, bundle: &mut Bundle) {
        if let Ok(info) = tcp::info(&self.stream) {
            let sample = LaneSample {
                rtt: info.rtt,
                min_rtt: info.min_rtt,
                acked_bytes: info.acked_bytes,
                window_bytes: info.congestion_window_bytes,
                unsent_bytes: info.unsent_bytes.into(),
            };
            if bundle.sender.observe(now, self.id, sample) {
                self.came_at.set(now);
                self.pulse.on_sent(now);
            }
            bundle.sender.note_pulse(self.id, self.pulse.sent_at());
        }
    }

    /// Lets about [`BACKLOG`] of data wait in the kernel: less and the lane runs dry, more and chunks wait on it that
    /// would be quicker on another by now.
    pub(super) fn adapt(&self, rate: Bitrate) {
        let wanted = u32::try_from(rate.bytes_in(BACKLOG).get()).unwrap_or(u32::MAX);
        let wanted = wanted.clamp(LEAST_BACKLOG, MOST_BACKLOG);
        let now = self.backlog.get();
        if wanted > now + now / 4 || wanted < now / 2 {
            self.limit_backlog(wanted);
        }
    }

    fn limit_backlog(&self, bytes: u32) {
        self.backlog.set(bytes);
        // Without it chunks wait in the kernel for longer.
        let _ = SockRef::from(&self.stream).set_tcp_notsent_lowat(bytes);
    }
}

async fn read(stripe: &Stripe, lane: &Lane, opener: &mut Opener) -> io::Result<()> {
    loop {
        while let Some(bytes) = opener.next_frame().map_err(io::Error::other)? {
            lane.rx_bytes.set(lane.rx_bytes.get() + bytes.len() as u64);
            stripe.note_moved(bytes.len());
            lane.on_came(clock::now());
            let frame = frame::decode(bytes).map_err(io::Error::other)?;
            stripe.handle_frame(lane.id, frame);
        }
        stripe.wake();
        lane.stream.readable().await?;
        match lane.stream.try_read(opener.space()) {
            Ok(0) if stripe.bundle.borrow().is_over() => return Ok(()),
            Ok(0) => return Err(io::Error::other("closed by the other end")),
            Ok(len) => opener.on_filled(len),
            Err(error) if pipe::is_transient(&error) => {}
            Err(error) => return Err(error),
        }
    }
}

async fn write(stripe: &Stripe, lane: &Lane, sealer: &mut Sealer) -> io::Result<()> {
    let (mut plain, mut sealed) = (Vec::new(), Vec::new());
    loop {
        let (due_at, is_flushed) = {
            let mut bundle = stripe.bundle.borrow_mut();
            let now = clock::now();
            for known in stripe.lanes.borrow().iter() {
                known.observe(now, &mut bundle);
            }
            // Small frames go together; one chunk at a time, so that the next can go where it is quickest by then.
            while sealed.len() < frame::MAX_FRAME / 2 {
                plain.clear();
                if !bundle.poll_frame(clock::now(), lane.id, &mut plain) {
                    break;
                }
                lane.tx_bytes.set(lane.tx_bytes.get() + plain.len() as u64);
                stripe.note_moved(plain.len());
                sealer.seal(&plain, &mut sealed);
            }
            bundle.sender.set_free(lane.id, sealed.is_empty());
            (bundle.poll_timeout(lane.id), bundle.is_flushed(lane.id))
        };
        // There is room for what comes next, and other lanes may have got chunks, even if this one has not.
        stripe.takeable.notify_one();
        wake_others(stripe, lane);
        if !sealed.is_empty() {
            stripe.ticking.notify_one();
            write_all(&lane.stream, &sealed).await?;
            sealed.clear();
        } else if is_flushed {
            return pipe::finish(&lane.stream);
        } else {
            let due = async {
                match due_at {
                    Some(at) => time::sleep(at.since(clock::now())).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = lane.wake.notified() => {}
                () = due => {}
            }
        }
    }
}

/// Wakes the lanes that have chunks waiting, and who looks whether they take them.
fn wake_others(stripe: &Stripe, lane: &Lane) {
    for other in stripe.lanes.borrow().iter() {
        if other.id != lane.id && stripe.bundle.borrow().sender.has_staged(other.id) {
            other.wake.notify_one();
            stripe.ticking.notify_one();
        }
    }
}

async fn write_all(stream: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.try_write(bytes) {
            Ok(len) => bytes = &bytes[len..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.writable().await?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// How long nothing comes on the only lane of a connection before there are others: a timeout of TCP's, and a round trip.
const QUIET: Duration = Duration::from_millis(500);
/// The same where others get on over the same link: after three timeouts in a row.
const BUSY_QUIET: Duration = Duration::from_secs(4);
const BACKLOG: Duration = Duration::from_millis(8);
/// Two chunks.
const LEAST_BACKLOG: u32 = 16 << 10;
const MOST_BACKLOG: u32 = 1 << 20;
