#!/usr/bin/env python3
"""SRT over two emulated lines: over each line alone, without a tunnel, and through the tunnel over both.

The conditions are those of a published report about another multipath tunnel (SRT with lossmaxttl=32, maxbw=0, oheadbw=25).
`pleach lab run` emulates the lines and runs the daemons. srt-live-transmit sends from the client's namespace to the gateway's: a stream of numbered
packets at a constant rate. Loss: packets that never came out of the receiver. Delay: from the sender's input to the
receiver's output, so it contains the latency of SRT.

Prints a Markdown table, and writes bench-results/srt/results.json. Environment: SECONDS_EACH=30; CONDITIONS="P1 P2 C3 C3h
C4 C5"; PLEACH_BIN. Needs root and Debian's srt-tools.
"""

import json
import os
import struct
import subprocess
import sys
import threading
import time

from lab_run import ROOT, Failed, LabRun, end_at_signal

OUT = os.path.join(ROOT, "bench-results/srt")
SECONDS = int(os.environ.get("SECONDS_EACH", "30"))
# Time for SRT's handshake before the first packet, and for its buffers after the last.
BEFORE_S, AFTER_S = 1.5, 2.0
# Length of SRT's usual payload: seven packets of an MPEG transport stream.
PAYLOAD = 1316
# The begin of each packet: magic number, number of the packet, time of sending.
HEAD = struct.Struct("!QQd")
MAGIC = 0x706C656163682021
# The tunnel carries the second port as a class with a deadline.
PORT, CLASS_PORT = 9000, 9001
GATEWAY = "10.77.0.1"

# Lines: rate in Mbit/s, one-way delay in ms, jitter in ms, loss in percent, and bursts of loss. Stream: rate in Mbit/s,
# latency of SRT in ms.
CONDITIONS = {
    "P1": (((100, 20, 0, 0, None), (100, 20, 0, 0, None)), 25, 120),
    "P2": (((100, 20, 0, 0, None), (100, 20, 0, 0, None)), 120, 120),
    "C3": (((100, 50, 0, 0, (2, 40, 70, 0.1)), (100, 50, 0, 0, None)), 25, 120),
    "C3h": (((100, 50, 0, 0, (4, 30, 80, 0.5)), (100, 50, 0, 0, None)), 25, 120),
    "C4": (((100, 20, 50, 0, None), (100, 40, 0, 0, None)), 25, 120),
    "C5": (((40, 40, 20, 0.2, None), (30, 60, 30, 0.4, None)), 42, 250),
}


def scenario(name, lines, latency, seconds):
    """Returns a scenario with these lines, whose queues hold 100 ms."""
    text = f'name = "srt-{name.lower()}"\nseed = 1\nduration = "{seconds}s"\n'
    for index, (rate, delay, jitter, loss, bursts) in enumerate(lines):
        text += f'\n[[link]]\nname = "line{index}"\nrate = "{rate}Mbit"\ndelay = "{delay}ms"\n'
        text += f'queue = "{rate * 12500}B"\n'
        if jitter:
            text += f'jitter = "{jitter}ms"\nreorder = true\n'
        if loss:
            text += f"loss = {loss / 100}\n"
        if bursts:
            enter, leave, bad, good = (value / 100 for value in bursts)
            text += f"gilbert = {{ p = {enter}, r = {leave}, loss_bad = {bad}, loss_good = {good} }}\n"
    text += '\n[tunnel]\npolicy = "adaptive"\n\n[[tunnel.class]]\nname = "srt"\n'
    text += f'ports = {CLASS_PORT}\ndeadline = "{latency}ms"\nduplicate = "auto"\nshare = 20\n'
    return text + '\n[[traffic]]\nkind = "ping"\nname = "ping"\n'


class Received(threading.Thread):
    """Reads the receiver's output: for each packet its number, and when it was sent."""

    def __init__(self, stream):
        super().__init__(daemon=True)
        self.stream = stream
        self.delays_ms = {}
        self.is_shifted = False

    def run(self):
        left = b""
        while read := self.stream.read1(1 << 20):
            now = time.monotonic()
            left += read
            for at in range(0, len(left) - PAYLOAD + 1, PAYLOAD):
                magic, number, sent_at = HEAD.unpack_from(left, at)
                self.is_shifted |= magic != MAGIC
                self.delays_ms.setdefault(number, (now - sent_at) * 1000)
            left = left[len(left) - len(left) % PAYLOAD:]


def send(pipe, mbps):
    """Writes packets at a constant rate for SECONDS. Returns their number."""
    per_s = mbps * 1e6 / 8 / PAYLOAD
    filler = bytes(PAYLOAD - HEAD.size)
    begun, number = time.monotonic(), 0
    while (elapsed := time.monotonic() - begun) < SECONDS:
        due = int(elapsed * per_s)
        if due > number:
            now = time.monotonic()
            pipe.write(b"".join(HEAD.pack(MAGIC, n, now) + filler for n in range(number, due)))
            pipe.flush()
            number = due
        time.sleep(0.002)
    return number


def stream(lab, label, address, port, mbps, latency):
    """Sends one stream to `address`, and returns its figures."""
    options = f"latency={latency}&lossmaxttl=32"
    receiver = lab.start(["srt-live-transmit", "-q", "-chunk", str(PAYLOAD), f"srt://:{port}?mode=listener&{options}", "file://con"],
                         f"{label}-receiver.log", lab.gateway, stdout=subprocess.PIPE)
    received = Received(receiver.stdout)
    received.start()
    sender = lab.start(["srt-live-transmit", "-q", "-chunk", str(PAYLOAD), "file://con",
                        f"srt://{address}:{port}?mode=caller&maxbw=0&oheadbw=25&{options}"],
                       f"{label}-sender.log", lab.client, stdin=subprocess.PIPE)
    time.sleep(BEFORE_S)
    lab.check(receiver, sender)
    count = send(sender.stdin, mbps)
    time.sleep(AFTER_S)
    lab.check(receiver, sender)
    # It ends neither with its input nor by a request.
    for process in (sender, receiver):
        process.kill()
        process.wait()
    received.join(10)
    if received.is_shifted:
        raise Failed(f"{label}: the receiver's output is not what was sent")
    delays = sorted(received.delays_ms.values())
    at = lambda part: round(delays[int(part * (len(delays) - 1))], 1) if delays else None
    return {"sent": count, "lost_pct": 100 * (1 - len(delays) / count), "p50_ms": at(0.5), "p99_ms": at(0.99)}


def condition(name):
    """Runs one condition, and returns its figures by way."""
    lines, mbps, latency = CONDITIONS[name]
    ways = [(f"line {index + 1}", f"10.{100 + index}.0.1", PORT) for index in range(len(lines))]
    ways += [("pleach", GATEWAY, PORT), ("pleach, class", GATEWAY, CLASS_PORT)]
    out = os.path.join(OUT, name)
    os.makedirs(out, exist_ok=True)
    file = os.path.join(out, "scenario.toml")
    seconds = int(len(ways) * (SECONDS + BEFORE_S + AFTER_S + 2)) + 5
    with open(file, "w", encoding="utf-8") as opened:
        opened.write(scenario(name, lines, latency, seconds))
    found = {}
    with LabRun(file, out) as lab:
        for label, address, port in ways:
            found[label] = stream(lab, label.replace(" ", "-"), address, port, mbps, latency)
            figures = found[label]
            print(f"{name}, {label}: {figures['lost_pct']:.2f} % lost, {figures['p50_ms']} ms", flush=True)
        refused = lab.results()["refused"]
    if refused:
        print(f"{name} is not valid: {refused}", flush=True)
    return {"mbps": mbps, "latency_ms": latency, "ways": found, "refused": refused}


def main():
    if os.geteuid() != 0:
        sys.exit("srt: needs root, for the namespaces of the lab's hosts")
    end_at_signal()
    found, failed = {}, False
    for name in os.environ.get("CONDITIONS", " ".join(CONDITIONS)).split():
        try:
            found[name] = condition(name)
        except (Failed, OSError, subprocess.TimeoutExpired) as error:
            print(f"{name}: {error}", flush=True)
            failed = True
            continue
        os.makedirs(OUT, exist_ok=True)
        with open(os.path.join(OUT, "results.json"), "w", encoding="utf-8") as file:
            json.dump({"seconds": SECONDS, "conditions": found}, file, indent=1)
    ways = ["line 1", "line 2", "pleach", "pleach, class"]
    print("\n| lost, % (median delay, ms) | " + " | ".join(ways) + " |\n| --- |" + " ---: |" * len(ways))
    for name, case in found.items():
        cells = [f"{case['ways'][way]['lost_pct']:.2f} ({case['ways'][way]['p50_ms']})" for way in ways]
        mark = " (not valid)" if case["refused"] else ""
        print(f"| {name}{mark}: {case['mbps']} Mbit/s, {case['latency_ms']} ms | " + " | ".join(cells) + " |")
    if failed:
        sys.exit("srt: not all conditions were measured")


if __name__ == "__main__":
    main()
