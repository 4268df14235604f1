#!/usr/bin/python3
"""Asks a pleach client for the rate that the tunnel carries upwards, and derives the bit rate of a video encoder.

`encoder.py` imports this module. As a program, it prints the bit rate in kbit/s, one line for each change, for scripts
that control another encoder:

    uplink.py --api http://127.0.0.1:7780 --maximum 8000

It needs Python 3.10 or newer and no other packages. `docs/live-video.md` has examples.
"""

import argparse
import http.client
import json
import logging
import math
import socket
import threading
import time
import urllib.parse

# Fraction of the uplink's rate that is left for the streams. SRT, UDP and IPv4 headers take 44 bytes of each datagram
# of 1360 bytes. MPEG-TS takes 4 of 188 bytes, and stuffing at the end of each frame; 5 % in all.
PAYLOAD_SHARE = 1316 / 1360 * 0.95

# After a large fall, packets that were encoded at the old rate wait in the tunnel's queue. The encoder sends at this
# fraction of the new rate for this time in seconds, so that the queue empties.
DRAIN_S = 1.0
DRAIN_SHARE = 0.5
# A fall to less than this fraction of the previous rate is large.
LARGE_FALL = 0.9

# A rise by less than this factor is not worth a change of the encoder.
SMALL_RISE = 1.03

# Interval in seconds between two requests. The daemon measures when it is asked, at most once a second. A request
# between two measurements costs it little, and the next measurement is made soon after it is due.
INTERVAL_S = 0.2
# Longest time in seconds for which a request may take.
PATIENCE_S = 2.0

log = logging.getLogger("uplink")


class ApiError(Exception):
    """The daemon gives no rate; the text says why."""


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=PATIENCE_S)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Api:
    """The API of one daemon. `address`: the path of its control socket, or `http://HOST:PORT` of its `[dashboard]`.
    `token_file`: a file whose first word is a token."""

    def __init__(self, address, token_file=None):
        self.address = address
        self.headers = {}
        if token_file:
            with open(token_file, encoding="ascii") as file:
                words = file.readline().split()
            if not words:
                raise ValueError(f"{token_file}: the first line has no token")
            self.headers["Authorization"] = f"Bearer {words[0]}"
        if address.startswith("/"):
            self.connection = UnixConnection(address)
            return
        url = urllib.parse.urlsplit(address)
        if url.scheme != "http" or not url.hostname or url.path not in ("", "/"):
            raise ValueError(f"{address}: expected the path of a control socket, or http://HOST:PORT")
        self.connection = http.client.HTTPConnection(url.hostname, url.port or 80, timeout=PATIENCE_S)

    def rate_mbps(self):
        """Returns the rate at which an encoder may send, with all headers, in Mbit/s. Raises ApiError."""
        # The daemon closes a connection that was idle, so a request over an old connection may fail once.
        is_old = self.connection.sock is not None
        try:
            return self._ask()
        except (OSError, http.client.HTTPException) as error:
            self.connection.close()
            if not is_old or isinstance(error, TimeoutError):
                raise ApiError(f"{self.address}: {error}") from error
        try:
            return self._ask()
        except (OSError, http.client.HTTPException) as error:
            self.connection.close()
            raise ApiError(f"{self.address}: {error}") from error

    def _ask(self):
        self.connection.request("GET", "/v1/uplink", headers=self.headers)
        answer = self.connection.getresponse()
        body = answer.read(65536)
        if not answer.isclosed():
            self.connection.close()
        try:
            found = json.loads(body)
            if answer.status != 200:
                raise ApiError(f"{self.address}: {answer.status} {found['error']}")
            rate = float(found["rate_mbps"])
        except (ValueError, KeyError, TypeError) as error:
            raise ApiError(f"{self.address}: the answer ({answer.status}) is not that of /v1/uplink") from error
        if not math.isfinite(rate) or rate < 0:
            raise ApiError(f"{self.address}: the rate {rate} is not a rate")
        return rate


class RateRule:
    """Derives the bit rate of the video from the rate of the uplink. All rates are in bit/s.

    `minimum`, `maximum`: bounds of the result. `audio`: rate of the other streams of the same connection.
    """

    def __init__(self, minimum, maximum, audio=0):
        if not 0 < minimum <= maximum:
            raise ValueError("the minimum must be above 0 and not above the maximum")
        self.minimum = minimum
        self.maximum = maximum
        self.audio = audio
        self.video = minimum
        self._target = None
        self._drain_until = -math.inf

    def take(self, now, uplink_mbps):
        """Returns the bit rate for the video at the time `now`, in seconds. `uplink_mbps`: rate of the uplink.

        The rate falls at once. It rises when the uplink's rate does, which the daemon delays by ten seconds."""
        wanted = uplink_mbps * 1e6 * PAYLOAD_SHARE - self.audio
        wanted = min(max(wanted, self.minimum), self.maximum)
        if self._target is not None and wanted < self._target * LARGE_FALL:
            self._drain_until = now + DRAIN_S
        is_small_rise = self._target is not None and self._target < wanted < self._target * SMALL_RISE
        if not is_small_rise or wanted == self.maximum:
            self._target = wanted
        share = DRAIN_SHARE if now < self._drain_until else 1
        self.video = int(max(self._target * share, self.minimum))
        return self.video


class Follower:
    """Asks `api` repeatedly and calls `apply(bit/s)` for each change. Without an answer the rate stays as it is."""

    def __init__(self, api, rule, apply, clock=time.monotonic):
        self.api = api
        self.rule = rule
        self.apply = apply
        self.clock = clock
        self.uplink_mbps = None
        self._applied = None
        self._is_away = False
        self._stop = threading.Event()

    def step(self):
        """Asks once."""
        try:
            self.uplink_mbps = self.api.rate_mbps()
        except ApiError as error:
            if not self._is_away:
                log.warning("no rate from pleach, the bit rate stays at %d kbit/s: %s", self.rule.video // 1000, error)
            self._is_away = True
            return
        if self._is_away:
            log.info("pleach answers again")
        self._is_away = False
        video = self.rule.take(self.clock(), self.uplink_mbps)
        if video != self._applied:
            log.info("uplink %.2f Mbit/s: video %d kbit/s", self.uplink_mbps, video // 1000)
            self._applied = video
            self.apply(video)

    def run(self):
        """Asks until `stop` is called from another thread."""
        while not self._stop.is_set():
            self.step()
            self._stop.wait(INTERVAL_S)

    def stop(self):
        """Ends `run`."""
        self._stop.set()


def add_options(parser):
    """Adds the options that the programs of this directory share."""
    parser.add_argument("--api", help="control socket of the pleach client, or http://HOST:PORT of its dashboard")
    parser.add_argument("--token-file", help="file with a token of the dashboard; `read-only` suffices")
    parser.add_argument("--minimum", type=int, default=300, metavar="KBIT", help="lowest bit rate of the video [300]")
    parser.add_argument("--maximum", type=int, default=6000, metavar="KBIT", help="highest bit rate [6000]")
    parser.add_argument("--audio-rate", type=int, default=128, metavar="KBIT", help="bit rate of the audio [128]")


def follower(options, apply):
    """Returns the follower that `options` describe. Raises ValueError or OSError if an option is wrong."""
    if not options.api:
        raise ValueError("--api is missing: for example --api http://127.0.0.1:7780")
    rule = RateRule(options.minimum * 1000, options.maximum * 1000, options.audio_rate * 1000)
    return Follower(Api(options.api, options.token_file), rule, apply)


def main():
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    parser = argparse.ArgumentParser(description="Prints the bit rate for a video encoder in kbit/s, when it changes.")
    add_options(parser)
    options = parser.parse_args()
    try:
        follower(options, lambda video: print(video // 1000, flush=True)).run()
    except (OSError, ValueError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
