//! The body of an answer to a plain HTTP request, fetched over several links that have free capacity
//! ([`crate::parts`]).
//!
//! The first connection, over which the answer began, is forwarded inside the kernel as usual. In parallel, parts are
//! fetched by range requests and buffered in memory until all bytes before them have been forwarded. The first
//! connection is not needed beyond the beginning of the next part: its receive window is limited to that point, and
//! it ends there. If a connection or its link fails, the missing bytes are fetched as a part.

use std::{
    cell::{Cell, RefCell},
    io,
    net::IpAddr,
    rc::Rc,
    time::Duration,
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use pleach_core::{time::Instant, units::Bytes};
use pleach_linux::{clock, tcp};
use socket2::SockRef;
use tokio::{net::TcpStream, sync::Notify, time};

use super::{
    meter::{broken_off, read},
    pipe::{self, Meter},
};
use crate::{
    daemon::{connect, hub::Hub, kept::Upstream, live::Live, room, windows},
    estimate::application::Demand,
    http::{
        Body,
        answer::{self, Asked, Head},
        ranges::{self, Resource},
    },
    parts::{Parts, Plan},
};

/// How the resource of an answer can be requested again.
#[derive(Debug)]
pub(super) struct Again {
    /// Head of the original request.
    pub(super) head: Vec<u8>,
    /// Addresses of the server.
    pub(super) addresses: Vec<IpAddr>,
}

/// An answer that is being forwarded.
struct Transfer<'a> {
    hub: &'a Hub,
    live: &'a Live,
    again: &'a Again,
    resource: Resource,
    parts: RefCell<Parts>,
    /// Number of bytes that the first connection is still to carry, without those already read from its socket.
    missing: Cell<u64>,
    is_client_gone: Cell<bool>,
    /// Number of bytes buffered ahead of the client, as counted in the hub's total.
    ahead: Cell<u64>,
    planned_at: Cell<Option<Instant>>,
    /// Notified when the state of the transfer changes.
    pulse: Notify,
}

/// Whether parts are worth requesting if `missing` bytes of the answer have not arrived.
pub(super) fn is_large(missing: u64) -> bool {
    missing >= MIN_MISSING
}

/// Forwards the last `missing` bytes of `resource`, which `from` is sending, to `to`. Returns whether `from` carried
/// all of them, so that the connection may serve another request.
///
/// # Errors
/// Fails if the client's connection fails, or if missing bytes cannot be fetched any more.
pub(super) async fn pass(
    hub: &Hub,
    from: &TcpStream,
    to: &TcpStream,
    missing: u64,
    (resource, again): (Resource, &Again),
    live: &Live,
) -> io::Result<bool> {
    let delivered = resource.len.saturating_sub(missing);
    let transfer = Transfer {
        hub,
        live,
        again,
        parts: RefCell::new(Parts::new(
            clock::now(),
            live.link.get(),
            resource.len,
            delivered,
        )),
        resource,
        missing: Cell::new(missing),
        is_client_gone: Cell::new(false),
        ahead: Cell::new(0),
        planned_at: Cell::new(None),
        pulse: Notify::new(),
    };
    live.may_resume.set(true);
    let outcome = tokio::select! {
        outcome = transfer.deliver(from, to) => outcome,
        never = transfer.fetch_all() => match never {},
    };
    live.may_resume.set(false);
    outcome
}

impl Transfer<'_> {
    /// Forwards the bytes of the first connection, then the fetched bytes.
    async fn deliver(&self, from: &TcpStream, to: &TcpStream) -> io::Result<bool> {
        let meter = FirstMeter(self, from);
        let first = async {
            let pools = &self.hub.buffers.pipes;
            pipe::pass_missing(pools, from, to, &self.missing, &meter).await?;
            if self.missing.get() > 0 {
                return Err(broken_off());
            }
            Ok(())
        };
        // Once a part has taken over, do not wait for the first connection.
        let taken_over = async {
            loop {
                self.pulse.notified().await;
                if self.parts.borrow().is_first_done() {
                    return;
                }
            }
        };
        let outcome = tokio::select! {
            outcome = first => outcome,
            () = taken_over => Ok(()),
            () = self.live.detour.notified() => Err(io::Error::other("the link went down")),
        };
        if self.parts.borrow().is_done() {
            return Ok(self.parts.borrow().first_end() == self.resource.len);
        }
        let mut cause = outcome.err();
        if self.is_client_gone.get() {
            return Err(cause.unwrap_or_else(broken_off));
        }
        if let Some(error) = &cause {
            tracing::debug!(target = %self.live.purpose.target, %error, "the rest is fetched in parts");
        }
        self.parts.borrow_mut().end_first();
        self.missing.set(0);
        self.live.is_held_up.set(false);
        self.foretell(0);
        self.live.upstream.take();
        // The server may have sent more. A reset stops it; an ordinary close would let it continue to send.
        let _ = SockRef::from(from).set_linger(Some(Duration::ZERO));
        let _ = SockRef::from(from).shutdown(std::net::Shutdown::Both);
        self.pulse.notify_waiters();
        loop {
            let bytes = {
                let parts = self.parts.borrow();
                if parts.is_done() {
                    return Ok(false);
                }
                if parts.is_hopeless() {
                    return Err(cause.take().unwrap_or_else(broken_off));
                }
                parts.next_bytes().to_vec()
            };
            if bytes.is_empty() {
                let wait = time::timeout(GRACE, self.pulse.notified());
                if wait.await.is_err() && !self.parts.borrow().is_fetching() {
                    // No link has led to the server for the whole grace period.
                    return Err(cause.take().unwrap_or_else(broken_off));
                }
                continue;
            }
            pipe::write_all(to, &bytes, &HeldMeter(self.live)).await?;
            self.live.touch(clock::now());
            self.parts.borrow_mut().on_passed(bytes.len());
            self.pulse.notify_waiters();
        }
    }

    /// Begins fetches and supervises them; never returns.
    async fn fetch_all(&self) -> std::convert::Infallible {
        let mut running = FuturesUnordered::new();
        loop {
            while let Some(plan) = self.next_plan() {
                running.push(self.fetch(plan));
            }
            tokio::select! {
                Some(()) = running.next(), if !running.is_empty() => {}
                () = time::sleep(LOOK) => {}
                // Bytes that no connection is to carry must be requested at once.
                () = self.pulse.notified(), if self.parts.borrow().is_first_done() => {}
            }
            let silent = self.parts.borrow_mut().look(clock::now());
            for key in silent {
                self.parts.borrow_mut().end_fetch(clock::now(), key);
                self.pulse.notify_waiters();
            }
        }
    }

    fn next_plan(&self) -> Option<Plan> {
        let now = clock::now();
        let before = self.ahead.replace(self.parts.borrow().ahead());
        let all = &self.hub.buffers.ahead;
        all.set((all.get() + self.ahead.get()).saturating_sub(before));
        if self.live.is_held_up.get() {
            // The client is the bottleneck.
            return None;
        }
        let is_fresh = |at: Instant| now.since(at) < PLANS_APART;
        if self.planned_at.get().is_some_and(is_fresh) && !self.parts.borrow().is_starved() {
            return None;
        }
        let lanes = {
            let parts = self.parts.borrow();
            let (live, addresses) = (self.live, &self.again.addresses);
            room::lanes(self.hub, now, live, addresses, &parts)
        };
        let only_next = all.get() > MAX_AHEAD || !self.hub.has_room_for_parts();
        let plan = self.parts.borrow_mut().plan(now, &lanes, only_next);
        if plan.is_none() {
            self.planned_at.set(Some(now));
        }
        let plan = plan?;
        room::promise(self.hub, now, self.live, &plan);
        Some(plan)
    }

    /// Fetches the planned part.
    async fn fetch(&self, plan: Plan) {
        let key = plan.key;
        let bytes = Bytes::new(plan.range.end - plan.range.start);
        let Some(part) = self.hub.begin_part(self.live, plan.link, bytes) else {
            self.parts.borrow_mut().end_fetch(clock::now(), key);
            self.pulse.notify_waiters();
            return;
        };
        let part = PartOf(self.hub, part);
        let outcome = tokio::select! {
            outcome = self.try_fetch(&plan, &part.1) => outcome,
            () = part.1.stopped() => Err(io::Error::other("stopped")),
            () = self.unwanted(key) => Ok(()),
        };
        if let Err(error) = outcome {
            let (target, link) = (&self.live.purpose.target, plan.link.0);
            tracing::debug!(%target, link, range = ?plan.range, %error, "part not fetched");
        }
        self.parts.borrow_mut().end_fetch(clock::now(), key);
        self.pulse.notify_waiters();
    }

    /// Waits until fetch `key` need not carry more bytes.
    async fn unwanted(&self, key: u64) {
        while self.parts.borrow().wants(key) {
            self.pulse.notified().await;
        }
    }

    async fn try_fetch(&self, plan: &Plan, part: &Live) -> io::Result<()> {
        let request = ranges::request(&self.again.head, &plan.range, &self.resource.tag);
        let client = self.live.purpose.client.ip();
        let target = &self.live.purpose.target;
        let link = Some(plan.link);
        let mut before = Bytes::ZERO;
        let kept = self.hub.take_kept(client, target, link);
        let is_kept = kept.is_some();
        let mut stream = match kept {
            Some(upstream) => {
                self.hub.reused(part, link, &upstream.stream);
                before = upstream.received;
                upstream.stream
            }
            None => self.connect(plan, part).await?,
        };
        let mut came = Vec::new();
        let head = match self.ask(&stream, &request, part, &mut came).await {
            // The server had just closed the idle connection.
            Err(_) if is_kept && came.is_empty() => {
                before = Bytes::ZERO;
                stream = self.connect(plan, part).await?;
                self.ask(&stream, &request, part, &mut came).await?
            }
            outcome => outcome?,
        };
        let wanted = (plan.range.clone(), self.resource.clone());
        let mut left = plan.range.end - plan.range.start;
        if head.part.as_ref() != Some(&wanted) || head.body != Some(Body::Length(left)) {
            self.parts.borrow_mut().refuse();
            let text = format!("the server answers {} instead of that part", head.status);
            return Err(io::Error::other(text));
        }
        self.accept(plan.key);
        came.drain(..head.len);
        let mut wants_more = true;
        loop {
            if !came.is_empty() {
                part.down.set(part.down.get() + came.len() as u64);
                let len = came.len() as u64;
                if len > left {
                    return Err(io::Error::other("more than was asked for"));
                }
                left -= len;
                let mut parts = self.parts.borrow_mut();
                wants_more = parts.on_bytes(clock::now(), plan.key, &came);
                drop(parts);
                self.pulse.notify_waiters();
                came.clear();
            }
            if left == 0 || !wants_more {
                break;
            }
            if read(self.hub, &stream, &mut came).await? == 0 {
                return Err(broken_off());
            }
        }
        if left == 0 && head.is_kept {
            part.share.get().end(&stream);
            let received = Bytes::new(before.get().saturating_add(part.down.get()));
            let upstream = Upstream {
                link,
                stream,
                received,
                since: clock::now(),
            };
            self.hub.keep(client, target, upstream);
        }
        Ok(())
    }

    /// Notes that the server has begun to send the part of fetch `key`. The first connection ends where the part
    /// begins.
    fn accept(&self, key: u64) {
        let mut parts = self.parts.borrow_mut();
        let before = parts.first_end();
        let taken = before.saturating_sub(self.missing.get());
        parts.accept(clock::now(), key, taken);
        let less = before - parts.first_end();
        self.missing.set(self.missing.get().saturating_sub(less));
        self.foretell(self.missing.get());
    }

    /// Informs the placer that the first connection will carry `missing` more bytes.
    fn foretell(&self, missing: u64) {
        if let Some(id) = self.live.id {
            let all = Demand {
                up: self.live.up.get(),
                down: self.live.down.get().saturating_add(missing),
            };
            self.hub.placer.borrow_mut().foretell(id, all);
        }
    }

    /// Opens a new connection for `part`.
    async fn connect(&self, plan: &Plan, part: &Live) -> io::Result<Rc<TcpStream>> {
        let (addresses, port) = (&self.again.addresses, self.live.purpose.target.port);
        let opened = connect::open(self.hub, &[plan.link], addresses, port).await;
        let opened = opened.map_err(|error| io::Error::other(error.text))?;
        connect::prepare(&opened.stream);
        part.tcp_begins();
        Ok(Rc::new(opened.stream))
    }

    /// Sends `request` over `stream` and reads the head of the answer into `came`, with the bytes that arrived after
    /// it.
    async fn ask(
        &self,
        stream: &Rc<TcpStream>,
        request: &[u8],
        part: &Live,
        came: &mut Vec<u8>,
    ) -> io::Result<Head> {
        windows::join_link(self.hub, part, stream);
        part.upstream.replace(Some(Rc::clone(stream)));
        part.is_opening.set(false);
        pipe::write_all(stream, request, &UpMeter(part)).await?;
        loop {
            match answer::read(came, Asked::default()) {
                Ok(Some(head)) if head.is_interim() => {
                    came.drain(..head.len);
                    // The final answer may have arrived together with the interim one.
                    continue;
                }
                Ok(Some(head)) => return Ok(head),
                Ok(None) => {}
                Err(_) => {
                    self.parts.borrow_mut().refuse();
                    return Err(io::Error::other("no answer to be understood"));
                }
            }
            if read(self.hub, stream, came).await? == 0 {
                return Err(broken_off());
            }
        }
    }
}

/// The entry of a part in the table of connections; dropping it removes the entry.
struct PartOf<'a>(&'a Hub, Rc<Live>);

impl Drop for PartOf<'_> {
    fn drop(&mut self) {
        self.0.end_part(&self.1);
    }
}

/// Counts the bytes of the first connection.
struct FirstMeter<'a>(&'a Transfer<'a>, &'a TcpStream);

impl Meter for FirstMeter<'_> {
    fn moved(&self, bytes: u64) {
        let Self(transfer, from) = self;
        transfer.live.down.set(transfer.live.down.get() + bytes);
        let mut parts = transfer.parts.borrow_mut();
        if parts.on_first(clock::now(), bytes) {
            transfer.pulse.notify_waiters();
        }
        if parts.first_end() < transfer.resource.len {
            // Bytes beyond the end of the first connection's share would be discarded, so the server should not send
            // them.
            bound_end(from, transfer.missing.get());
        }
    }

    fn held_up(&self, is_held_up: bool) {
        self.0.live.is_held_up.set(is_held_up);
    }

    fn refused(&self) {
        self.0.is_client_gone.set(true);
    }
}

/// Limits the receive window of `stream` to `left` bytes, if this does not reduce the throughput. A limit larger than
/// the present buffer would replace the kernel's automatic buffer size by the system's maximum for sizes set by
/// programs, which is smaller.
fn bound_end(stream: &TcpStream, left: u64) {
    let size = SockRef::from(stream).recv_buffer_size();
    let holds = size.is_ok_and(|size| u64::try_from(size).is_ok_and(|size| size / 4 >= left));
    if holds || left <= LITTLE_LEFT {
        let left = u32::try_from(left).unwrap_or(u32::MAX);
        // If the socket refuses, the kernel's own window remains.
        let _ = tcp::bound_window(stream, Some(left));
    }
}

impl Drop for Transfer<'_> {
    fn drop(&mut self) {
        let all = &self.hub.buffers.ahead;
        all.set(all.get().saturating_sub(self.ahead.get()));
    }
}

/// Counts the bytes of a part's request.
struct UpMeter<'a>(&'a Live);

impl Meter for UpMeter<'_> {
    fn moved(&self, bytes: u64) {
        self.0.up.set(self.0.up.get() + bytes);
    }

    fn held_up(&self, _is_held_up: bool) {}
}

/// Records whether the client keeps up with the fetched bytes. These bytes were counted when they arrived.
struct HeldMeter<'a>(&'a Live);

impl Meter for HeldMeter<'_> {
    fn moved(&self, _bytes: u64) {}

    fn held_up(&self, is_held_up: bool) {
        self.0.is_held_up.set(is_held_up);
    }
}

/// Number of bytes for which every system allows programs to set a buffer.
const LITTLE_LEFT: u64 = 64 << 10;
/// Minimum number of missing bytes for fetching parts. Fewer bytes arrive in one burst, or are lost and retransmitted
/// together.
const MIN_MISSING: u64 = 4 << 10;
/// Number of bytes that all answers together may buffer ahead of their clients. Beyond this limit, only bytes for
/// which clients wait are fetched.
const MAX_AHEAD: u64 = 128 << 20;
/// Time that a client waits while no link leads to the server.
const GRACE: Duration = Duration::from_secs(10);
/// Minimum interval between two planning attempts if the first one found nothing to fetch.
const PLANS_APART: Duration = Duration::from_millis(5);
/// Interval of looking for links with free capacity.
const LOOK: Duration = Duration::from_millis(30);

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::{io::AsyncWriteExt as _, net::TcpListener};

    use super::*;
    use crate::{
        daemon::hub::tests::{begin, hub},
        relay::stripe::tests::run,
    };

    /// Returns a connection to a local server, and the server's side.
    async fn connected() -> (Rc<TcpStream>, TcpStream) {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = TcpListener::bind(any).await.expect("a port");
        let to = listener.local_addr().expect("bound");
        let stream = TcpStream::connect(to).await.expect("it listens");
        let (server, _) = listener.accept().await.expect("a client");
        (Rc::new(stream), server)
    }

    #[test]
    fn an_answer_is_read_that_comes_along_with_an_interim_one() {
        run(async {
            let hub = hub();
            let (live, _) = begin(&hub, [127, 0, 0, 1].into());
            let resource = Resource {
                len: 100_000,
                tag: b"\"t\"".to_vec(),
            };
            let again = Again {
                head: b"GET /x HTTP/1.1\r\n\r\n".to_vec(),
                addresses: Vec::new(),
            };
            let transfer = Transfer {
                hub: &hub,
                live: &live,
                again: &again,
                parts: RefCell::new(Parts::new(clock::now(), None, resource.len, 0)),
                resource,
                missing: Cell::new(0),
                is_client_gone: Cell::new(false),
                ahead: Cell::new(0),
                planned_at: Cell::new(None),
                pulse: Notify::new(),
            };
            let (stream, mut server) = connected().await;
            let text = "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 206 Partial Content\r\nETag: \"t\"\r\n\
                        Content-Range: bytes 0-2/100000\r\nContent-Length: 3\r\n\r\nabc";
            server.write_all(text.as_bytes()).await.expect("sent");
            let mut came = Vec::new();
            let asked = transfer.ask(&stream, b"GET", &live, &mut came);
            let head = time::timeout(Duration::from_secs(10), asked).await;
            let head = head.expect("all of it is there").expect("an answer");
            assert_eq!((head.status, &came[head.len..]), (206, &b"abc"[..]));
        });
    }

    #[test]
    fn a_window_is_closed_on_an_end_that_is_near_and_not_on_a_far_one() {
        run(async {
            let (stream, _server) = connected().await;
            let size = || {
                SockRef::from(&*stream)
                    .recv_buffer_size()
                    .expect("a socket")
            };
            let before = size() as u64;
            for left in [4 << 20, before] {
                bound_end(&stream, left);
                assert_eq!(size() as u64, before, "the kernel is free to enlarge it");
            }
            bound_end(&stream, LITTLE_LEFT);
            assert!(size() as u64 >= LITTLE_LEFT * 4);
        });
    }
}
