//! Transport of the film by two ffmpeg processes over SRT.

use core::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};
use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::Ipv4Addr,
    process::{Child, ChildStdin, Command, Stdio},
};

use anyhow::Context as _;
use pleach_linux::clock;
use pleach_sim::measure::FlowReport;
use rustix::event::{PollFd, PollFlags, poll};

use super::{Show, Threads, judge};
use crate::{
    media::{
        ffmpeg,
        film::Film,
        player::Fate,
        ts::{self, Packet},
    },
    netns::Netns,
    traffic::{Ends, GRACE, TICK},
    wait,
};

pub(super) fn start(
    ends: &Ends,
    server: SocketAddr,
    show: Show,
    to_client: bool,
) -> anyhow::Result<Threads> {
    // The client always connects, regardless of the direction of the film, like a user behind address translation.
    let any = match server {
        SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::from([0; 16]),
    };
    let listens = SocketAddr::new(any, server.port());
    let (from, from_url, to, to_url) = if to_client {
        let urls = (
            url(listens, "listener", &show),
            url(server, "caller", &show),
        );
        (&ends.server, urls.0, &ends.client, urls.1)
    } else {
        let urls = (
            url(server, "caller", &show),
            url(listens, "listener", &show),
        );
        (&ends.client, urls.0, &ends.server, urls.1)
    };
    let (sender, host) = (show.clone(), from.clone());
    let send = from.spawn("video-sender", move || send(&host, &from_url, &sender))?;
    let host = to.clone();
    let receive = to.spawn("video-receiver", move || receive(&host, &to_url, &show))?;
    Ok(vec![send, receive])
}

fn url(address: SocketAddr, mode: &str, show: &Show) -> String {
    // The unit is microseconds, unlike that of libsrt's own option.
    let latency = show.spec.deadline.as_micros();
    let patience = CONNECT_PATIENCE.as_millis();
    format!(
        "srt://{address}?mode={mode}&latency={latency}&connect_timeout={patience}&pkt_size=1316"
    )
}

fn ffmpeg(host: &Netns) -> Command {
    let mut command = host.command(ffmpeg::PROGRAM);
    command
        .args(["-v", "error", "-f", "data"])
        .stderr(Stdio::null());
    command
}

fn send(host: &Netns, url: &str, show: &Show) -> anyhow::Result<FlowReport> {
    let mut report = FlowReport::default();
    let mut command = ffmpeg(host);
    command
        .args([
            "-raw_packet_size",
            "1316",
            "-probesize",
            "32",
            "-i",
            "pipe:0",
        ])
        .args([
            "-map",
            "0",
            "-c",
            "copy",
            "-f",
            "data",
            "-flush_packets",
            "1",
            url,
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::null());
    let mut child = Running(command.spawn().context("cannot run ffmpeg")?);
    let mut pipe = child.0.stdin.take().context("ffmpeg has no input")?;
    // ffmpeg opens its output when it has received input. These packets are not part of the film.
    write(&mut pipe, &ts::NULL_PACKET.repeat(7));
    for datagram in &show.film.datagrams {
        wait::until(show.schedule.start + datagram.at);
        let payload = show.film.payload(datagram);
        // A live encoder does not wait: data that does not fit into the pipe is lost. Data for a closed pipe is lost
        // too: the connection broke, and SRT does not reconnect.
        let mut fds = [PollFd::new(&pipe, PollFlags::OUT)];
        if matches!(
            poll(&mut fds, Some(&wait::timespec(Duration::ZERO))),
            Ok(1..)
        ) {
            let _ = pipe.write_all(payload);
        }
        report.sent += 1;
        if let Some(at) = show.schedule.elapsed() {
            report.record_sent(at, payload.len());
        }
    }
    // ffmpeg buffers its newest packets until further packets follow, and data in flight would be lost with the
    // connection. Therefore null packets are sent until the film has arrived.
    let end = show.schedule.stop + show.spec.deadline + GRACE;
    while clock::now() < end {
        write(&mut pipe, &ts::NULL_PACKET.repeat(7));
        wait::until((clock::now() + TICK).min(end));
    }
    Ok(report)
}

/// Writes at most one datagram without waiting, like a live encoder. Data that does not fit into the pipe is lost. Data
/// for a closed pipe is lost too: the connection broke, and SRT does not reconnect.
fn write(pipe: &mut ChildStdin, datagram: &[u8]) {
    let mut fds = [PollFd::new(&*pipe, PollFlags::OUT)];
    // Free space in the pipe is at least a page, or zero.
    if matches!(
        poll(&mut fds, Some(&wait::timespec(Duration::ZERO))),
        Ok(1..)
    ) {
        let _ = pipe.write_all(datagram);
    }
}

fn receive(host: &Netns, url: &str, show: &Show) -> anyhow::Result<FlowReport> {
    let mut report = FlowReport::default();
    let mut command = ffmpeg(host);
    command
        .args(["-i", url, "-map", "0", "-c", "copy"])
        .args(["-f", "data", "-flush_packets", "1", "pipe:1"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = Running(command.spawn().context("cannot run ffmpeg")?);
    let mut pipe = child.0.stdout.take().context("ffmpeg has no output")?;
    let end = show.schedule.stop + show.spec.deadline + GRACE;
    // Length of the film plus an allowance for data that is not part of it.
    let longest = (show.film.packets.len() + 1_000) * ts::PACKET_BYTES;
    let mut stream = Vec::new();
    let mut buffer = vec![0; 65_536];
    while clock::now() < end && stream.len() <= longest {
        let mut fds = [PollFd::new(&pipe, PollFlags::IN)];
        match poll(&mut fds, Some(&wait::timespec(TICK))) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        match pipe.read(&mut buffer)? {
            0 => break,
            count => {
                stream.extend_from_slice(&buffer[..count]);
                show.schedule.record(&mut report, count);
            }
        }
    }
    drop(child);
    let fates = fates(&show.film, &stream);
    let in_time = fates.iter().filter(|fate| **fate == Fate::InTime).count();
    report.received = u64::try_from(in_time)?;
    report.video = Some(judge(show, &fates)?);
    Ok(report)
}

/// Derives the fates of the film's datagrams from `stream`, the received data. Parts of it can be missing, but no part
/// is out of order.
fn fates(film: &Film, stream: &[u8]) -> Vec<Fate> {
    let mut places: BTreeMap<&Packet, Vec<usize>> = BTreeMap::new();
    for (index, packet) in film.packets.iter().enumerate() {
        places.entry(packet).or_default().push(index);
    }
    let mut came = vec![false; film.packets.len()];
    let mut next = 0;
    // The sender writes whole packets, and SRT delivers its messages only as a whole.
    for packet in stream.as_chunks::<{ ts::PACKET_BYTES }>().0 {
        let Some(places) = places.get(packet) else {
            continue;
        };
        if let Some(&index) = places.get(places.partition_point(|place| *place < next)) {
            came[index] = true;
            next = index + 1;
        }
    }
    let fate = |came: Option<&[bool]>| match came {
        Some(came) if came.iter().all(|came| *came) => Fate::InTime,
        _ => Fate::Lost,
    };
    film.datagrams
        .iter()
        .map(|datagram| fate(came.get(datagram.packets.clone())))
        .collect()
}

/// Time for which a caller tries to connect.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// A program that is ended when this value is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::film::tests::film;

    #[test]
    fn what_came_is_found_again_whatever_is_missing_or_strange() {
        use Fate::{InTime, Lost};
        let film = film();
        let stream = |packets: &mut dyn Iterator<Item = usize>| {
            let packets = packets.map(|index| film.packets[index]);
            packets.flatten().collect::<Vec<u8>>()
        };
        let all = [InTime; 4];
        assert_eq!(fates(&film, &stream(&mut (0..15))), all);
        let mut strange = ts::NULL_PACKET.to_vec();
        strange.extend(stream(&mut (0..15)));
        strange.extend([0x47, 1, 2]);
        assert_eq!(fates(&film, &strange), all);
        assert_eq!(
            fates(&film, &stream(&mut (7..15))),
            [Lost, InTime, InTime, InTime]
        );
        assert_eq!(
            fates(&film, &stream(&mut (0..7).chain(11..13).chain(14..15))),
            [InTime, Lost, Lost, InTime]
        );
        assert_eq!(fates(&film, &[]), [Lost; 4]);
    }
}
