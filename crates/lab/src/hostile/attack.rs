//! A thread that sends datagrams to the gateway at a rate, and reads the answers.

use core::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use anyhow::{Context as _, bail};
use pleach_core::{packet::Ecn, time::Instant};
use pleach_linux::{
    clock,
    udp::{RecvBatch, Transmit, UdpOptions, UdpSocket},
};
use rustix::time::{ClockId, clock_gettime};

use crate::{
    crowd::{member::PORT, numbering::GATEWAY},
    netns::Netns,
    wait,
};

/// What an attacker sends.
pub(super) trait Traffic: Send {
    /// Writes the next datagrams into `out`, each of the returned length except the last, which may be shorter. Returns
    /// `None` if there is nothing to send at present.
    fn batch(&mut self, now: Instant, out: &mut Vec<u8>) -> Option<usize>;

    /// Reads a datagram of the gateway, and adds answers to `answers`.
    fn read(&mut self, now: Instant, datagram: &mut [u8], answers: &mut Vec<Vec<u8>>) {
        let _ = (now, datagram, answers);
    }

    /// Adds datagrams that are sent every 50 ms, beside the rate.
    fn regular(&mut self, now: Instant, out: &mut Vec<Vec<u8>>) {
        let _ = (now, out);
    }
}

/// How fast an attacker sends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pace {
    /// In bits of UDP payload per second.
    Bits(u64),
    /// In datagrams per second.
    Datagrams(u64),
}

/// What an attacker has sent and used.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    pub(super) datagrams: u64,
    /// Bytes of UDP payload.
    pub(super) bytes: u64,
    /// Datagrams that the kernel refused.
    pub(super) refused: u64,
    pub(super) elapsed: Duration,
    /// Processor time of the attacker's thread.
    pub(super) cpu: Duration,
}

impl Sent {
    /// Returns the rate in datagrams per second.
    pub(super) fn per_second(&self) -> f64 {
        self.datagrams as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Returns the rate of UDP payload in Mbit/s.
    pub(super) fn mbps(&self) -> f64 {
        self.bytes as f64 * 8e-6 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Returns the processor time in percent of a core.
    pub(super) fn cpu_percent(&self) -> f64 {
        self.cpu.as_secs_f64() / self.elapsed.as_secs_f64().max(1e-9) * 100.0
    }
}

/// A running attack. It ends when the value is dropped.
pub(super) struct Attack {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<anyhow::Result<Sent>>>,
}

impl Attack {
    /// Starts an attack from `address`, in the namespace of the crowd.
    ///
    /// # Errors
    /// Fails if the socket or the thread cannot be made.
    pub(super) fn start(
        crowd: &Netns,
        address: Ipv4Addr,
        pace: Pace,
        traffic: impl Traffic + 'static,
    ) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&stop);
        let thread = crowd.spawn("attacker", move || {
            let options = UdpOptions::new(SocketAddr::from((address, 0)));
            let socket = UdpSocket::bind(&options).context("socket of the attacker")?;
            run(&socket, pace, traffic, &until)
        })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    /// Ends the attack.
    ///
    /// # Errors
    /// Fails if the attacker has failed.
    pub(super) fn finish(mut self) -> anyhow::Result<Sent> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(sent)) => sent,
            Some(Err(_)) | None => bail!("the thread of the attacker panicked"),
        }
    }
}

impl Drop for Attack {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Only `finish` is interested in the result.
            let _ = thread.join();
        }
    }
}

fn run(
    socket: &UdpSocket,
    pace: Pace,
    mut traffic: impl Traffic,
    stop: &AtomicBool,
) -> anyhow::Result<Sent> {
    let mut rx = RecvBatch::default();
    let (mut batch, mut others) = (Vec::new(), Vec::new());
    let mut sent = Sent::default();
    let began_at = clock::now();
    let cpu = thread_time();
    let mut last = began_at;
    let mut next_regular = began_at;
    let mut credit = 0.0;
    while !stop.load(Ordering::Relaxed) {
        let now = clock::now();
        let (per_second, most) = match pace {
            Pace::Bits(bits) => (bits as f64 / 8.0, bits as f64 / 8.0),
            Pace::Datagrams(count) => (count as f64, count as f64),
        };
        credit = (credit + per_second * now.since(last).as_secs_f64())
            .min(most * LONGEST_GAP.as_secs_f64());
        last = now;
        let received = socket.recv(&mut rx, |message| {
            for datagram in message.contents.chunks_mut(message.stride) {
                traffic.read(now, datagram, &mut others);
            }
        });
        if let Err(error) = received
            && error.kind() != io::ErrorKind::WouldBlock
        {
            // For example an ICMP error of the gateway.
            tracing::debug!(%error, "attacker");
        }
        if now >= next_regular {
            next_regular = now + REGULAR;
            traffic.regular(now, &mut others);
        }
        for datagram in others.drain(..) {
            send(socket, &datagram, datagram.len(), &mut sent);
        }
        while credit > 0.0 {
            batch.clear();
            let Some(len) = traffic.batch(now, &mut batch) else {
                break;
            };
            let before = sent.bytes;
            let count = send(socket, &batch, len, &mut sent);
            credit -= match pace {
                // A datagram that the kernel refuses costs little, but not nothing.
                Pace::Bits(_) => (sent.bytes - before).max(100) as f64,
                Pace::Datagrams(_) => count as f64,
            };
        }
        wait::until(now + PAUSE);
    }
    sent.elapsed = clock::now().since(began_at);
    sent.cpu = thread_time().saturating_sub(cpu);
    Ok(sent)
}

/// Sends datagrams of `len` bytes each. Returns their number.
pub(super) fn send(socket: &UdpSocket, datagrams: &[u8], len: usize, sent: &mut Sent) -> u64 {
    let transmit = Transmit {
        destination: SocketAddr::from((GATEWAY, PORT)),
        src_ip: None,
        ecn: Ecn::NotCapable,
        segment_size: Some(len),
        contents: datagrams,
    };
    let count = datagrams.len().div_ceil(len.max(1)) as u64;
    let accepted = socket.send(&transmit).unwrap_or(0);
    sent.datagrams += accepted.div_ceil(len.max(1)) as u64;
    sent.bytes += accepted as u64;
    sent.refused += (datagrams.len() - accepted).div_ceil(len.max(1)) as u64;
    count
}

/// Returns the processor time of this thread so far.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Pause between rounds, so that the attacker leaves a core if it need not be busy.
const PAUSE: Duration = Duration::from_micros(500);
/// An attacker that was kept from sending for longer does not catch up.
const LONGEST_GAP: Duration = Duration::from_millis(20);
/// Interval of [`Traffic::regular`].
const REGULAR: Duration = Duration::from_millis(50);
