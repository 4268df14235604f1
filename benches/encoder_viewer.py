"""Receives SRT, decodes the video, and records when each picture could be shown:
encoder_viewer.py PORT LATENCY_MS FILE.

SRT delivers each packet at its time of sending plus the latency, and drops later packets. The decoder drops pictures
that refer to a missing one. So a picture leaves the decoder when it is due, or never. On SIGTERM, the times of all
pictures (CLOCK_MONOTONIC, in seconds) and the bytes received in each tenth of a second are written to the file.
"""

import json
import signal
import sys
import time

import gi

gi.require_version("Gst", "1.0")
from gi.repository import GLib, Gst  # noqa: E402

PIPELINE = """
srtsrc name=srt uri=srt://0.0.0.0:{port}?mode=listener latency={latency} keep-listening=true
  ! tsdemux name=demux
demux. ! queue ! h264parse ! avdec_h264 max-threads=1 output-corrupt=false ! fakesink name=screen sync=false
demux. ! queue ! aacparse ! fakesink sync=false async=false
"""


class Viewer:
    def __init__(self, port, latency):
        self.text = PIPELINE.format(port=port, latency=latency)
        self.pictures = []
        self.received = {}
        self.pipeline = None

    def start(self):
        self.pipeline = Gst.parse_launch(self.text)
        probes = (("srt", "src", self.on_packet), ("screen", "sink", self.on_picture))
        for element, pad, probe in probes:
            pad = self.pipeline.get_by_name(element).get_static_pad(pad)
            pad.add_probe(Gst.PadProbeType.BUFFER, probe)
        bus = self.pipeline.get_bus()
        bus.add_signal_watch()
        bus.connect("message::error", self.on_failure)
        bus.connect("message::eos", self.on_failure)
        self.pipeline.set_state(Gst.State.PLAYING)
        return GLib.SOURCE_REMOVE

    def on_packet(self, _pad, info):
        tenth = int(time.monotonic() * 10)
        self.received[tenth] = self.received.get(tenth, 0) + info.get_buffer().get_size()
        return Gst.PadProbeReturn.OK

    def on_picture(self, _pad, _info):
        self.pictures.append(time.monotonic())
        return Gst.PadProbeReturn.OK

    def on_failure(self, _bus, message):
        if message.type == Gst.MessageType.ERROR:
            print(message.parse_error(), file=sys.stderr)
        # The pipeline waits for the next connection.
        self.pipeline.get_bus().remove_signal_watch()
        self.pipeline.set_state(Gst.State.NULL)
        GLib.timeout_add(50, self.start)


def main():
    port, latency, path = sys.argv[1:]
    Gst.init(None)
    loop = GLib.MainLoop()
    viewer = Viewer(port, latency)
    viewer.start()
    GLib.unix_signal_add(GLib.PRIORITY_DEFAULT, signal.SIGTERM, loop.quit)
    loop.run()
    viewer.pipeline.set_state(Gst.State.NULL)
    with open(path, "w", encoding="ascii") as file:
        json.dump({"pictures": viewer.pictures, "received": viewer.received}, file)


main()
