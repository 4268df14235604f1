#!/usr/bin/python3
"""Live video through a tunnel of two emulated lines, one of which fails: with an encoder that follows `GET /v1/uplink`,
and with the same encoder at a fixed rate that needs both lines.

`pleach lab run` emulates scenarios/encoder.toml and scenarios/encoder-slow.toml and runs the daemons. This program runs
examples/encoder/encoder.py in the client's namespace and encoder_viewer.py in the gateway's. It prints a line for each
run and a Markdown table of the medians, and writes bench-results/encoder/results.json. It fails if the picture of an
encoder that follows the rate of encoder.toml freezes for a second or more in all, or if that of a fixed rate does not.

Environment: RUNS=3; SCENARIOS="encoder encoder-slow"; ENCODERS="follows fixed"; LATENCY=2000 (of SRT, in milliseconds);
FIXED=7500 (kbit/s); PLEACH_BIN. Needs root.
"""

import json
import os
import signal
import statistics
import sys
import threading
import time

from lab_run import ROOT, Failed, LabRun, end_at_signal, status

OUT = os.path.join(ROOT, "bench-results/encoder")
RUNS = int(os.environ.get("RUNS", "3"))
SCENARIOS = os.environ.get("SCENARIOS", "encoder encoder-slow").split()
ENCODERS = os.environ.get("ENCODERS", "follows fixed").split()
LATENCY = int(os.environ.get("LATENCY", "2000"))
FIXED = int(os.environ.get("FIXED", "7500"))

# The receiver's port, and the gateway's address inside the tunnel.
PORT = 9000
GATEWAY = "10.77.0.1"
FPS = 30
# Times of the scenarios, in seconds.
FALLS_AT, RETURNS_AT, ENDS_AT = 15, 30, 48
# A pause of the picture of this many seconds, more than three frames, is a freeze.
FREEZE_S = 0.1
# The encoder runs for this time before the first picture counts.
SETTLE_S = 5
# A picture of noise: it fills any bit rate, so the rates are those that were asked for.
ENCODER = ["--source", "videotestsrc is-live=true pattern=snow", "--width", "640", "--height", "360",
           "--fps", str(FPS), "--preset", "ultrafast", "--maximum", str(FIXED), "--latency", str(LATENCY)]


class Watch(threading.Thread):
    """Samples the client's status twenty times a second: time, and for each link state, capacity and bytes sent."""

    def __init__(self, control):
        super().__init__(daemon=True)
        self.control = control
        self.samples = []
        self.ended = threading.Event()

    def run(self):
        while not self.ended.wait(0.05):
            found = status(self.control)
            if found:
                values = lambda link: (link["state"], link["capacity_mbps"], link["tx_bytes"])
                links = {link["name"]: values(link) for link in found["links"]}
                self.samples.append((time.monotonic(), links))

    def zero(self, results):
        """Returns when the scenario began: the lab's samples of the daemon's status have the same byte counters."""
        totals = [(at, sum(link[2] for link in links.values())) for at, links in self.samples]
        zeros = []
        for sample in results["status"]:
            if sample["node"] != "client":
                continue
            total = sum(link["tx_bytes"] for link in sample["status"]["links"])
            for (at, low), (after, high) in zip(totals, totals[1:]):
                if low < total <= high:
                    zeros.append(at + (after - at) * (total - low) / (high - low) - sample["time_s"])
                    break
        if not zeros:
            raise Failed("results.json has no status of this time")
        return statistics.median(zeros)


def run(scenario, number, fixed):
    """Runs the scenario once, and returns the figures."""
    name = f"{scenario}-{'fixed' if fixed else 'follows'}-{number}"
    out = os.path.join(OUT, name)
    with LabRun(os.path.join(ROOT, f"scenarios/{scenario}.toml"), out) as lab:
        watch = Watch(lab.control)
        watch.start()
        # The daemon measures once a second from the first request on. So the runs differ in the time from the last
        # measurement to the failure of the link.
        time.sleep((number - 1) / RUNS)
        python = [sys.executable, "-u"]
        viewer = lab.start(python + [os.path.join(ROOT, "benches/encoder_viewer.py"), str(PORT), str(LATENCY),
                           os.path.join(out, "viewer.json")], "viewer.log", lab.gateway)
        changes = os.path.join(out, "changes.json")
        way = ["--fixed", str(FIXED)] if fixed else ["--api", lab.control, "--log", changes]
        begun = time.monotonic()
        encoder = lab.start(python + [os.path.join(ROOT, "examples/encoder/encoder.py"), "--srt",
                            f"srt://{GATEWAY}:{PORT}"] + way + ENCODER, "encoder.log", lab.client)
        while time.monotonic() < begun + ENDS_AT:
            lab.check(encoder, viewer)
            time.sleep(0.1)
        ended = time.monotonic()
        for process in (encoder, viewer):
            process.send_signal(signal.SIGTERM)
            process.wait(10)
        watch.ended.set()
        results = lab.results()
    with open(os.path.join(out, "viewer.json"), encoding="utf-8") as file:
        seen = json.load(file)
    rates = []
    if not fixed:
        with open(changes, encoding="utf-8") as file:
            rates = [json.loads(line) for line in file]
    zero = watch.zero(results)
    figures = judge(seen, rates, zero, begun, ended)
    figures["refused"] = results["refused"]
    figures["timeline"] = {
        "links": [(round(at - zero, 3), links) for at, links in watch.samples],
        "rates": [(round(rate["monotonic_s"] - zero, 3), rate["uplink_mbps"], rate["video_bps"]) for rate in rates],
        "pictures": [round(at - zero, 3) for at in seen["pictures"]],
    }
    with open(os.path.join(out, "figures.json"), "w", encoding="utf-8") as file:
        json.dump(figures, file)
    return figures


def judge(seen, rates, zero, begun, ended):
    """Returns what the viewer saw from five seconds after the encoder's start to its end."""
    first, last = begun + SETTLE_S, ended - 0.5
    shown = [at for at in seen["pictures"] if first <= at <= last]
    if not [at for at in seen["pictures"] if at < first]:
        raise Failed("no picture arrived before the measurement began")
    edges = [first] + shown + [last]
    pauses = [(at, after - at) for at, after in zip(edges, edges[1:])]
    freezes = [(round(at - zero, 2), round(pause - 1 / FPS, 3)) for at, pause in pauses if pause > FREEZE_S + 1 / FPS]

    def received(begin, end):
        """Median of the rates received in each second, in Mbit/s."""
        tenths = {int(tenth): size for tenth, size in seen["received"].items()}
        begin, end = int((zero + begin) * 10), int((zero + end) * 10)
        seconds = [sum(tenths.get(tenth, 0) for tenth in range(at, at + 10)) for at in range(begin, end - 9, 10)]
        return statistics.median(seconds) * 8 / 1e6

    lower = [rate for rate in rates if rate["monotonic_s"] > zero + FALLS_AT]
    delay = LATENCY / 1000
    expected = (last - first) * FPS
    return {
        "frozen_s": sum(length for _, length in freezes),
        "longest_s": max((length for _, length in freezes), default=0),
        "freezes": freezes,
        "lost_pct": max(0, 100 * (1 - len(shown) / expected)),
        "before_mbps": received(FALLS_AT - 7, FALLS_AT),
        "during_mbps": received(FALLS_AT + 3 + delay, RETURNS_AT),
        "after_mbps": received(RETURNS_AT + 12, RETURNS_AT + 14),
        "reaction_s": lower[0]["monotonic_s"] - zero - FALLS_AT if lower else None,
    }


COLUMNS = (
    ("frozen, s", "frozen_s", "{:.2f}"),
    ("longest freeze, s", "longest_s", "{:.2f}"),
    ("pictures lost, %", "lost_pct", "{:.1f}"),
    ("Mbit/s before", "before_mbps", "{:.1f}"),
    ("meanwhile", "during_mbps", "{:.1f}"),
    ("after", "after_mbps", "{:.1f}"),
    ("lower rate after, s", "reaction_s", "{:.2f}"),
)


def row(label, all_figures):
    """Returns a row of the table: the median of each figure, and in brackets the extremes."""
    cells = [label]
    for _, key, form in COLUMNS:
        values = sorted(figures[key] for figures in all_figures if figures[key] is not None)
        if not values:
            cells.append("–")
            continue
        text = form.format(statistics.median(values))
        low, high = form.format(values[0]), form.format(values[-1])
        cells.append(text if low == high else f"{text} ({low} to {high})")
    return "| " + " | ".join(cells) + " |"


def main():
    if os.geteuid() != 0:
        sys.exit("encoder: needs root, for the namespaces of the lab's hosts")
    end_at_signal()
    found, broken = {}, []
    for scenario in SCENARIOS:
        for number in range(1, RUNS + 1):
            for encoder in ENCODERS:
                fixed = encoder == "fixed"
                label = f"{scenario}, {f'fixed at {FIXED} kbit/s' if fixed else 'follows'}"
                try:
                    figures = run(scenario, number, fixed)
                except Failed as error:
                    sys.exit(f"encoder: {label}: {error}")
                print(row(f"{label}, run {number}", [figures]), flush=True)
                if figures["refused"]:
                    print(f"not valid: {figures['refused']}")
                found.setdefault(label, []).append({key: figures[key] for key in figures if key != "timeline"})
                if scenario == "encoder" and (figures["frozen_s"] < 1) == fixed:
                    broken.append(f"{label}, run {number}: frozen for {figures['frozen_s']:.2f} s")
    head = [f"SRT latency {LATENCY} ms; median of {RUNS} (extremes)"] + [column[0] for column in COLUMNS]
    print("\n| " + " | ".join(head) + " |")
    print("| --- |" + " ---: |" * len(COLUMNS))
    for label, all_figures in found.items():
        print(row(label, all_figures))
    with open(os.path.join(OUT, "results.json"), "w", encoding="utf-8") as file:
        json.dump({"latency_ms": LATENCY, "fixed_kbit": FIXED, "runs": found}, file, indent=1)
    if broken:
        sys.exit("not as promised: " + "; ".join(broken))


if __name__ == "__main__":
    main()
