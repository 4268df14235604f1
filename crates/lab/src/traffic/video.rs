//! A film, sent in real time, and the quality that its viewer sees.
//!
//! Under RTP the lab itself sends and receives. Both ends use the same clock, so the delay of each packet is exact. A
//! packet is of no use if its delay exceeds the deadline. Under SRT both ends are ffmpeg processes: this program writes
//! the film into one process in real time and reads from the other. SRT's latency is the deadline; it is added to the
//! network's own delay. SRT does not deliver late packets, so late and lost packets cannot be distinguished.
//!
//! After the end of the flow, the receiver reassembles the packets that arrived in time and computes the quality of
//! the film ([`crate::media`]).

mod srt;

use core::time::Duration;
use std::{
    io::Read as _,
    path::PathBuf,
    sync::{Arc, mpsc},
    thread::JoinHandle,
};

use anyhow::Context as _;
use pleach_core::time::Instant;
use pleach_linux::clock;
use pleach_sim::{
    measure::{Arrival, Arrivals, FlowReport},
    results::VideoResult,
    scenario::{Traffic, VideoSpec, VideoTransport},
};
use socket2::{SockAddr, Socket};

use crate::{
    media::{
        film::Film,
        player::{self, Fate},
        rtp, score,
    },
    netns::Netns,
    traffic::{Ends, GRACE, Schedule, TICK, is_down, is_timeout, udp},
    wait,
};

type Threads = Vec<JoinHandle<anyhow::Result<FlowReport>>>;

/// Time for which the receiver waits for the sender's log after both have ended.
const LOG_PATIENCE: Duration = Duration::from_secs(5);

/// Parameters that both ends know.
#[derive(Clone, Debug)]
struct Show {
    flow: String,
    film: Arc<Film>,
    spec: VideoSpec,
    schedule: Schedule,
    /// Start of the film, since the start of the run.
    start: Duration,
    /// Directory for files.
    dir: PathBuf,
    /// Namespace of the viewer.
    viewer: Netns,
}

pub(super) fn start(
    ends: &Ends,
    server: core::net::SocketAddr,
    schedule: Schedule,
    traffic: &Traffic,
    spec: VideoSpec,
) -> anyhow::Result<Threads> {
    let to_client = is_down(traffic.direction);
    let show = Show {
        flow: traffic.name.clone(),
        film: ends.film.clone().context("no film was made")?,
        spec,
        schedule,
        start: traffic.start,
        dir: ends.dir.clone(),
        viewer: if to_client {
            &ends.client
        } else {
            &ends.server
        }
        .clone(),
    };
    if spec.transport == VideoTransport::Srt {
        return srt::start(ends, server, show, to_client);
    }
    let (far, near) = udp::sockets(ends, server)?;
    let (log, sent) = mpsc::channel();
    let sender = show.clone();
    let far_host = ends.server.clone();
    let (far, near) = if to_client {
        let far = far_host.spawn("video-server", move || {
            let peer = udp::wait_for_hello(&far, &sender.schedule)?;
            match peer {
                Some(peer) => send(&far, Some(&peer), &sender, &log),
                None => Ok(FlowReport::default()),
            }
        })?;
        let near = ends
            .client
            .spawn("video-client", move || receive(&near, &show, &sent))?;
        (far, near)
    } else {
        let far = far_host.spawn("video-server", move || receive(&far, &show, &sent))?;
        let near = ends
            .client
            .spawn("video-client", move || send(&near, None, &sender, &log))?;
        (far, near)
    };
    Ok(vec![far, near])
}

/// Sends the film. The times at which the datagrams are sent are passed to `log`.
fn send(
    socket: &Socket,
    peer: Option<&SockAddr>,
    show: &Show,
    log: &mpsc::Sender<Vec<Instant>>,
) -> anyhow::Result<FlowReport> {
    let mut report = FlowReport::default();
    let mut sent_at = Vec::with_capacity(show.film.datagrams.len());
    let mut packet = Vec::new();
    for (number, datagram) in (0..).zip(&show.film.datagrams) {
        packet.clear();
        packet.extend_from_slice(&rtp::header(number, datagram.at));
        packet.extend_from_slice(show.film.payload(datagram));
        wait::until(show.schedule.start + datagram.at);
        sent_at.push(clock::now());
        // A datagram that the host refuses counts as lost, like one that the network loses.
        let _ = match peer {
            Some(peer) => socket.send_to(&packet, peer),
            None => socket.send(&packet),
        };
        report.sent += 1;
        if let Some(at) = show.schedule.elapsed() {
            report.record_sent(at, packet.len());
        }
    }
    // The receiver may have failed. Then the log has no reader.
    let _ = log.send(sent_at);
    Ok(report)
}

fn receive(
    mut socket: &Socket,
    show: &Show,
    sent: &mpsc::Receiver<Vec<Instant>>,
) -> anyhow::Result<FlowReport> {
    let mut report = FlowReport::default();
    let mut arrivals = Arrivals::default();
    let mut unwrap = rtp::Unwrap::default();
    let film = &show.film;
    let mut came_at: Vec<Option<Instant>> = vec![None; film.datagrams.len()];
    let mut buffer = vec![0_u8; 65_536];
    socket.set_read_timeout(Some(TICK))?;
    let schedule = &show.schedule;
    let is_client = socket.peer_addr().is_ok();
    while clock::now() < schedule.stop + GRACE {
        if is_client && arrivals.count() == 0 && clock::now() >= schedule.begin - TICK {
            let _ = socket.send(b"hello");
        }
        let count = match socket.read(&mut buffer) {
            Ok(count) => count,
            Err(error) if is_timeout(&error) => continue,
            // The error is an ICMP error about an earlier datagram.
            Err(_) => continue,
        };
        let now = clock::now();
        let Some((sequence, payload)) = rtp::parse(&buffer[..count]) else {
            continue;
        };
        let Some(number) = unwrap.number(sequence) else {
            continue;
        };
        let index = usize::try_from(number)?;
        // A datagram whose bytes were changed counts as not received.
        let is_whole = film
            .datagrams
            .get(index)
            .is_some_and(|datagram| film.payload(datagram) == payload);
        if !is_whole {
            continue;
        }
        let arrival = arrivals.note(number);
        if arrival == Arrival::Copy {
            continue;
        }
        came_at[index] = Some(now);
        schedule.record(&mut report, count);
        if let (Arrival::InOrder, Some(at)) = (arrival, schedule.elapsed()) {
            report.record_in_order(at, count);
        }
    }
    report.reorder_depth_max = arrivals.depth_max();
    report.received = arrivals.count();
    report.received_in_order = arrivals.in_order();
    let sent_at = match sent.recv_timeout(LOG_PATIENCE) {
        Ok(sent_at) => sent_at,
        // Without a hello, no datagram is sent.
        Err(_) if report.received == 0 => Vec::new(),
        Err(_) => anyhow::bail!(
            "{}: {} datagrams of the film arrived, but its sender failed and wrote no log of the sending times",
            show.flow,
            report.received
        ),
    };
    let mut fates = Vec::with_capacity(came_at.len());
    for (index, came_at) in came_at.into_iter().enumerate() {
        let delay = came_at
            .zip(sent_at.get(index))
            .map(|(at, sent)| at.since(*sent));
        fates.push(match delay {
            Some(delay) if delay <= show.spec.deadline => Fate::InTime,
            Some(_) => Fate::Late,
            None => Fate::Lost,
        });
        if let Some(delay) = delay {
            report.delay(delay);
        }
    }
    report.video = Some(judge(show, &fates)?);
    Ok(report)
}

/// Computes the quality that the viewer saw, from the `fates` of the film's datagrams.
fn judge(show: &Show, fates: &[Fate]) -> anyhow::Result<VideoResult> {
    let film = &show.film;
    let viewing = player::view(&film.frames, &film.datagrams, fates, show.start);
    let number_of = |fate| fates.iter().filter(|other| **other == fate).count();
    let held = viewing.is_shown.iter().filter(|is_shown| !**is_shown);
    let mut result = VideoResult {
        flow: show.flow.clone(),
        transport: match show.spec.transport {
            VideoTransport::Rtp => "rtp",
            VideoTransport::Srt => "srt",
        }
        .to_owned(),
        deadline_ms: show.spec.deadline.as_secs_f64() * 1e3,
        sent_pkts: u64::try_from(fates.len())?,
        lost_pkts: u64::try_from(number_of(Fate::Lost))?,
        late_pkts: u64::try_from(number_of(Fate::Late))?,
        frames: u64::try_from(film.frames.len())?,
        frames_lost: viewing.frames_lost,
        frames_late: viewing.frames_late,
        frames_held: u64::try_from(held.count())?,
        // `sum` is not used, because its result for no values is -0.
        frozen_s: viewing
            .freezes
            .iter()
            .fold(0.0, |sum, freeze| sum + freeze.length_s),
        freezes: viewing.freezes.clone(),
        ..VideoResult::default()
    };
    std::fs::create_dir_all(&show.dir)?;
    let stem = film.path.file_stem().unwrap_or_default().to_string_lossy();
    let files = (show.dir.as_path(), stem.as_ref());
    let command = |program: &std::ffi::OsStr| show.viewer.command(program);
    score::score(&mut result, film, &viewing, show.start, files, &command)
        .context("cannot compare the received video with the film")?;
    Ok(result)
}
