//! A film: encoded by ffmpeg, and divided into frames and datagrams.
//!
//! A datagram carries up to seven packets of the transport stream, all from the same frame. The datagrams of frame
//! *n* are spaced evenly over the duration of that frame, as from a live encoder, so the gaps between datagrams are
//! shorter in a key frame. The rate is limited over an eighth of a second (`bufsize`), so the size of a frame is at
//! most about three times the mean.

use core::{ops::Range, time::Duration};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, ensure};
use pleach_sim::scenario::{VideoSource, VideoSpec};

use crate::media::{
    ffmpeg,
    ts::{self, Packet},
};

/// Number of pictures per second.
pub(crate) const FRAMES_PER_SECOND: u32 = 25;
/// Duration of a picture.
pub(crate) const FRAME_TIME: Duration = Duration::from_millis(40);
/// Width and height of a picture.
const SIZE: &str = "1280x720";
/// Number of packets of the transport stream in a datagram: 1316 bytes, as is common practice.
const PACKETS_PER_DATAGRAM: usize = 7;
/// Largest film in bytes: twenty minutes at 8 Mbit/s fit, an hour at 100 Mbit/s does not.
const MAX_BYTES: u64 = 1 << 31;

/// A film, ready to be sent.
#[derive(Debug)]
pub(crate) struct Film {
    /// Path of the file.
    pub(crate) path: PathBuf,
    /// The transport stream.
    pub(crate) packets: Vec<Packet>,
    /// The frames in order of time. Tables of the stream before a frame belong to the frame.
    pub(crate) frames: Vec<Frame>,
    /// The datagrams in order of time.
    pub(crate) datagrams: Vec<Datagram>,
}

/// One picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// Range of the frame's packets.
    pub(crate) packets: Range<usize>,
    /// Whether the frame refers to no other frame.
    pub(crate) is_key: bool,
}

/// Packets that are sent in one datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Datagram {
    /// Index of the datagram's frame.
    pub(crate) frame: usize,
    /// Range of the datagram's packets.
    pub(crate) packets: Range<usize>,
    /// Time of sending, since the start of the film.
    pub(crate) at: Duration,
}

impl Film {
    /// Lets ffmpeg encode a film of `length` to `path`.
    ///
    /// # Errors
    /// Fails if ffmpeg fails, or if the file cannot be read or does not match the request.
    pub(crate) fn make(spec: &VideoSpec, length: Duration, path: &Path) -> anyhow::Result<Self> {
        let frames = length.as_millis() / FRAME_TIME.as_millis();
        let source = match spec.source {
            VideoSource::Mandelbrot => format!("mandelbrot=size={SIZE}:rate={FRAMES_PER_SECOND}"),
            VideoSource::Testsrc2 => {
                format!("testsrc2=size={SIZE}:rate={FRAMES_PER_SECOND},noise=alls=6:allf=t")
            }
        };
        let bps = spec.rate.as_bps();
        ensure!(
            length.as_secs().saturating_mul(bps) / 8 < MAX_BYTES,
            "the film would be larger than 2 GiB: use a lower `rate` or an earlier `stop`"
        );
        let (rate, eighth) = (bps.to_string(), (bps / 8).to_string());
        let frames = frames.to_string();
        let key_interval = FRAMES_PER_SECOND.to_string();
        #[rustfmt::skip]
        let arguments = [
            "-v", "error", "-y", "-f", "lavfi", "-i", &source, "-frames:v", &frames,
            "-c:v", "libx264", "-threads", "1", "-preset", "veryfast", "-pix_fmt", "yuv420p", "-bf", "0",
            "-g", &key_interval, "-keyint_min", &key_interval, "-sc_threshold", "0",
            "-b:v", &rate, "-maxrate", &rate, "-bufsize", &eighth,
            "-f", "mpegts", "-muxdelay", "0", "-muxpreload", "0", "-fflags", "+bitexact",
        ];
        ffmpeg::output(Command::new(ffmpeg::PROGRAM).args(arguments).arg(path))?;
        let stream = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let film = Self::cut(path, ts::packets(&stream)?)?;
        ensure!(
            film.frames.len().to_string() == frames,
            "ffmpeg made {} of {frames} frames",
            film.frames.len()
        );
        Ok(film)
    }

    /// Divides `packets` into frames and datagrams.
    ///
    /// # Errors
    /// Fails if the stream does not begin with a key frame.
    fn cut(path: &Path, packets: Vec<Packet>) -> anyhow::Result<Self> {
        let mut frames: Vec<Frame> = Vec::new();
        // Start of the next frame, after the video of the previous frame.
        let mut after = 0;
        let mut video = None;
        for (index, packet) in packets.iter().enumerate() {
            let head = ts::head(packet);
            if head.starts_frame {
                video = Some(head.pid);
                frames.push(Frame {
                    packets: after..index,
                    is_key: head.is_random_access,
                });
            }
            if let Some(frame) = frames.last_mut()
                && video == Some(head.pid)
            {
                after = index + 1;
                frame.packets.end = after;
            }
        }
        ensure!(
            frames.first().is_some_and(|frame| frame.is_key),
            "the film does not begin with a key frame"
        );
        let mut datagrams = Vec::new();
        let mut begin = Duration::ZERO;
        for (index, frame) in frames.iter().enumerate() {
            let count = frame.packets.len().div_ceil(PACKETS_PER_DATAGRAM);
            let gap = FRAME_TIME / u32::try_from(count).unwrap_or(u32::MAX).max(1);
            let mut at = begin;
            for first in frame.packets.clone().step_by(PACKETS_PER_DATAGRAM) {
                let last = (first + PACKETS_PER_DATAGRAM).min(frame.packets.end);
                datagrams.push(Datagram {
                    frame: index,
                    packets: first..last,
                    at,
                });
                at += gap;
            }
            begin += FRAME_TIME;
        }
        Ok(Self {
            path: path.to_owned(),
            packets,
            frames,
            datagrams,
        })
    }

    /// Returns the bytes of `datagram`.
    pub(crate) fn payload(&self, datagram: &Datagram) -> &[u8] {
        self.packets
            .get(datagram.packets.clone())
            .unwrap_or_default()
            .as_flattened()
    }

    /// Returns the transport stream with all tables and only those frames for which `is_shown` is true.
    pub(crate) fn only(&self, is_shown: &[bool]) -> Vec<u8> {
        let mut stream = Vec::new();
        // Bounded by the number of stream ids, 2^13.
        let mut counters: BTreeMap<u16, u8> = BTreeMap::new();
        for (frame, is_shown) in self.frames.iter().zip(is_shown) {
            for packet in self.packets.get(frame.packets.clone()).unwrap_or_default() {
                let head = ts::head(packet);
                if !is_shown && Some(head.pid) == self.video_pid() {
                    continue;
                }
                let mut packet = *packet;
                let counter = counters.entry(head.pid).or_insert(15);
                *counter = counter.wrapping_add(u8::from(head.has_payload)) % 16;
                ts::set_counter(&mut packet, *counter);
                stream.extend_from_slice(&packet);
            }
        }
        stream
    }

    fn video_pid(&self) -> Option<u16> {
        let packets = self.frames.first()?.packets.clone();
        let mut heads = self.packets.get(packets)?.iter().map(ts::head);
        heads.find(|head| head.starts_frame).map(|head| head.pid)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const VIDEO: [u8; 8] = [0x47, 0x41, 0x00, 0x11, 0, 0, 1, 0xe0];
    const KEY: [u8; 14] = [0x47, 0x41, 0x00, 0x31, 1, 0x40, 0, 0, 1, 0xe0, 0, 0, 0, 0];
    const MORE: [u8; 5] = [0x47, 0x01, 0x00, 0x11, 9];
    const TABLE: [u8; 6] = [0x47, 0x40, 0x00, 0x11, 0, 0];

    fn packet(bytes: &[u8]) -> Packet {
        let mut packet = [0xff; ts::PACKET_BYTES];
        packet[..bytes.len()].copy_from_slice(bytes);
        packet
    }

    /// Returns a table, a key frame of ten packets, a table, a frame of two packets, and a frame of one packet.
    pub(crate) fn film() -> Film {
        // The random access flag follows the length of the adaptation field.
        let mut stream = vec![packet(&TABLE), packet(&KEY)];
        stream.extend([packet(&MORE); 9]);
        stream.extend([
            packet(&TABLE),
            packet(&VIDEO),
            packet(&MORE),
            packet(&VIDEO),
        ]);
        for (number, packet) in (0..).zip(&mut stream) {
            packet[ts::PACKET_BYTES - 1] = number;
        }
        Film::cut(Path::new("film.ts"), stream).expect("a film")
    }

    #[test]
    fn no_datagram_has_parts_of_two_frames() {
        let film = film();
        let frames: Vec<_> = film
            .frames
            .iter()
            .map(|f| (f.packets.clone(), f.is_key))
            .collect();
        assert_eq!(frames, [(0..11, true), (11..14, false), (14..15, false)]);
        let datagrams: Vec<_> = film
            .datagrams
            .iter()
            .map(|d| (d.frame, d.packets.clone(), d.at.as_millis()))
            .collect();
        assert_eq!(
            datagrams,
            [
                (0, 0..7, 0),
                (0, 7..11, 20),
                (1, 11..14, 40),
                (2, 14..15, 80)
            ]
        );
        assert_eq!(film.payload(&film.datagrams[1]).len(), 4 * 188);
    }

    #[test]
    fn leaves_out_what_is_not_shown_and_keeps_tables() {
        let film = film();
        let all = film.only(&[true; 3]);
        assert_eq!(all.len(), 15 * 188);
        let some = ts::packets(&film.only(&[true, false, true])).expect("whole");
        assert_eq!(some.len(), 13);
        let counters: Vec<u8> = some
            .iter()
            .filter(|p| p[2] == 0 && p[1] & 1 == 1)
            .map(|p| p[3] & 15)
            .collect();
        let wanted: Vec<u8> = (0..11).collect();
        assert_eq!(counters, wanted, "no gap in the counters");
    }

    #[test]
    fn a_film_begins_with_a_key_frame() {
        assert!(Film::cut(Path::new("x"), vec![packet(&VIDEO)]).is_err());
        assert!(Film::cut(Path::new("x"), vec![]).is_err());
    }
}
