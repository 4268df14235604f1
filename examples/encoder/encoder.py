#!/usr/bin/python3
"""A live video encoder that follows the rate of a pleach tunnel: H.264 and AAC in MPEG-TS over SRT.

    encoder.py --srt srt://203.0.113.7:9000 --api http://127.0.0.1:7780 --source "v4l2src device=/dev/video0"

It needs GStreamer 1.20 or newer, in Debian: python3-gst-1.0, gstreamer1.0-libav, gstreamer1.0-plugins-base, -good, -bad
and -ugly. `docs/live-video.md` describes the set-up. If the connection breaks, the encoder connects again.
"""

import argparse
import json
import logging
import signal
import sys
import threading
import time

import gi

gi.require_version("Gst", "1.0")
from gi.repository import GLib, Gst  # noqa: E402

import uplink  # noqa: E402

log = logging.getLogger("encoder")

# Time in seconds from a failure until the encoder connects again.
RETRY_S = 1
# The encoder's buffer, in milliseconds of the bit rate. A short one makes the size of frames even, and a change of the
# rate quick.
BUFFER_MS = 250

PIPELINE = """
{source} ! videoconvert ! videoscale ! videorate
  ! video/x-raw,format=I420,width={width},height={height},framerate={fps}/1
  ! queue max-size-buffers=5 max-size-time=0 max-size-bytes=0 leaky=downstream
  ! x264enc name=video tune=zerolatency speed-preset={preset} key-int-max={gop} vbv-buf-capacity={buffer} bitrate={kbit}
  ! video/x-h264,profile=main ! h264parse config-interval=-1 ! queue ! mux.
{audio} ! audioconvert ! audioresample ! audio/x-raw,rate=48000,channels=2
  ! queue ! avenc_aac bitrate={audio_bits} ! aacparse ! queue ! mux.
mpegtsmux name=mux alignment=7 ! srtsink name=srt latency={latency}
"""


class Encoder:
    """The pipeline, which is built anew after each failure."""

    def __init__(self, options):
        self.options = options
        self.kbit = options.fixed or options.minimum
        self.lock = threading.Lock()
        self.pipeline = None

    def start(self):
        """Builds and starts the pipeline. Raises GLib.Error if an element is missing or an option is wrong."""
        o = self.options
        text = PIPELINE.format(
            source=o.source, audio=o.audio, width=o.width, height=o.height, fps=o.fps, preset=o.preset,
            gop=max(1, round(o.fps * o.keyframes)), buffer=BUFFER_MS, kbit=self.kbit, audio_bits=o.audio_rate * 1000,
            latency=o.latency,
        )
        pipeline = Gst.parse_launch(text)
        # Not in the text, because it may contain characters that the text gives a meaning to.
        pipeline.get_by_name("srt").set_property("uri", o.srt)
        bus = pipeline.get_bus()
        bus.add_signal_watch()
        bus.connect("message::error", self.on_error)
        bus.connect("message::eos", self.on_end)
        with self.lock:
            self.pipeline = pipeline
            pipeline.get_by_name("video").set_property("bitrate", self.kbit)
        # Without the parameters, which may contain a passphrase.
        log.info("sending to %s", o.srt.partition("?")[0])
        # A failure is reported on the bus, also if nobody listens there.
        pipeline.set_state(Gst.State.PLAYING)
        return GLib.SOURCE_REMOVE

    def set_rate(self, bits):
        """Sets the bit rate of the video, from any thread."""
        with self.lock:
            self.kbit = max(1, bits // 1000)
            if self.pipeline:
                self.pipeline.get_by_name("video").set_property("bitrate", self.kbit)

    def stop(self):
        """Ends the pipeline."""
        with self.lock:
            pipeline, self.pipeline = self.pipeline, None
        if pipeline:
            pipeline.get_bus().remove_signal_watch()
            pipeline.set_state(Gst.State.NULL)

    def on_error(self, _bus, message):
        error, _ = message.parse_error()
        self.fail(f"{message.src.get_name()}: {error.message}")

    def on_end(self, _bus, _message):
        self.fail("the source has ended")

    def fail(self, why):
        if self.pipeline is None:
            return
        log.warning("%s; trying again", why)
        self.stop()
        GLib.timeout_add_seconds(RETRY_S, self.start)


def parse():
    parser = argparse.ArgumentParser(description="Sends live video over SRT at the rate that a pleach tunnel carries.")
    parser.add_argument("--srt", required=True, metavar="URI", help="receiver, such as srt://203.0.113.7:9000")
    parser.add_argument("--latency", type=int, default=2000, metavar="MS", help="latency of SRT [2000]")
    uplink.add_options(parser)
    parser.add_argument("--fixed", type=int, metavar="KBIT", help="send at this bit rate and do not ask pleach")
    parser.add_argument("--source", default="videotestsrc is-live=true", help="video source in GStreamer's syntax")
    parser.add_argument("--audio", default="audiotestsrc is-live=true wave=silence", help="audio source, likewise")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=720)
    parser.add_argument("--fps", type=int, default=30)
    parser.add_argument("--keyframes", type=float, default=1, metavar="S", help="seconds between two key frames [1]")
    parser.add_argument("--preset", default="veryfast", help="x264's preset: speed against quality [veryfast]")
    parser.add_argument("--log", metavar="FILE", help="writes a line of JSON for each change of the rate")
    options = parser.parse_args()
    if not options.fixed and not options.api:
        parser.error("--api or --fixed is missing: for example --api http://127.0.0.1:7780")
    return parser, options


def main():
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", level=logging.INFO)
    Gst.init(None)
    parser, options = parse()
    loop = GLib.MainLoop()
    encoder = Encoder(options)
    changes = open(options.log, "w", buffering=1, encoding="utf-8") if options.log else None

    def apply(bits):
        encoder.set_rate(bits)
        if changes:
            line = {"monotonic_s": time.monotonic(), "uplink_mbps": follower.uplink_mbps, "video_bps": bits}
            changes.write(json.dumps(line) + "\n")

    follower = None
    if not options.fixed:
        try:
            follower = uplink.follower(options, apply)
        except (OSError, ValueError) as error:
            parser.error(str(error))
        # The first rate is known before the first frame is encoded.
        follower.step()
        threading.Thread(target=follower.run, name="uplink", daemon=True).start()
    try:
        encoder.start()
    except GLib.Error as error:
        log.error("%s", error.message)
        return 1
    for number in (signal.SIGINT, signal.SIGTERM):
        GLib.unix_signal_add(GLib.PRIORITY_DEFAULT, number, loop.quit)
    loop.run()
    encoder.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
