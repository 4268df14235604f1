"""Measurements of benches/equalize.sh that a shell is too slow or too blunt for; run inside the host's namespace."""

import glob
import re
import socket
import statistics
import subprocess
import sys
import threading
import time

TARGET = ("10.20.0.1", 9)
LINKS = ("l0", "l1")


def device_counters():
    """Packets and bytes that each link's device has sent."""
    found = {}
    with open("/proc/net/dev", encoding="ascii") as file:
        for line in file:
            name, _, rest = line.partition(":")
            if name.strip() in LINKS:
                fields = rest.split()
                found[name.strip()] = (int(fields[9]), int(fields[8]))
    return found


def blast(stop, rate=None):
    """Sends datagrams until `stop`; `rate`: in datagrams per second."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.connect(TARGET)
    data = bytes(1000)
    begin, sent = time.monotonic(), 0
    while not stop.is_set():
        try:
            sock.send(data)
        except OSError:
            pass  # nobody listens there, and ICMP says so
        sent += 1
        if rate and sent % 16 == 0:
            ahead = sent / rate - (time.monotonic() - begin)
            if ahead > 0:
                time.sleep(ahead)


def change(binary, control):
    """From the call of `pleach weights` until a millisecond's packets are split anew."""
    import json

    stop = threading.Event()
    sender = threading.Thread(target=blast, args=(stop, 20000), daemon=True)
    sender.start()
    time.sleep(0.5)
    whole, daemon = [], []
    for turn in range(20):
        a, b = (4, 1) if turn % 2 == 0 else (1, 4)
        wanted = a / (a + b)
        conn = socket.socket(socket.AF_UNIX)
        conn.connect(control)
        before = device_counters()
        begin = time.monotonic()
        conn.sendall(json.dumps({"command": "weights", "weights": {"l0": a, "l1": b}}).encode() + b"\n")
        conn.recv(4096)
        daemon.append(time.monotonic() - begin)
        while time.monotonic() < begin + 1:
            now = device_counters()
            sent = [now[name][0] - before[name][0] for name in LINKS]
            if sum(sent) >= 10:
                if abs(sent[0] / sum(sent) - wanted) < 0.15:
                    whole.append(time.monotonic() - begin)
                    break
                before = now
        conn.close()
        time.sleep(0.05)
    stop.set()
    sender.join()
    shown = lambda times: f"median {statistics.median(times) * 1e3:.2f} ms, longest {max(times) * 1e3:.2f} ms"
    print(f"  answered: {shown(daemon)}")
    print(f"  seen in the device counters ({len(whole)} of 20): {shown(whole)}")


def program_stats(pid):
    """Run time in ns and runs of the BPF program that the process `pid` holds."""
    for path in glob.glob(f"/proc/{pid}/fdinfo/*"):
        with open(path, encoding="ascii") as file:
            text = file.read()
        run = re.search(r"run_time_ns:\s*(\d+)", text)
        if run:
            return int(run[1]), int(re.search(r"run_cnt:\s*(\d+)", text)[1])
    sys.exit("the process has no BPF program")


def cost(pid, seconds):
    with open("/proc/sys/kernel/bpf_stats_enabled", "w", encoding="ascii") as file:
        file.write("1")
    before, packets_before = program_stats(pid), device_counters()
    stop = threading.Event()
    sender = threading.Thread(target=blast, args=(stop,), daemon=True)
    sender.start()
    time.sleep(float(seconds))
    stop.set()
    sender.join()
    after, packets_after = program_stats(pid), device_counters()
    packets = sum(packets_after[name][0] - packets_before[name][0] for name in LINKS)
    nanos, runs = after[0] - before[0], after[1] - before[1]
    print(f"  {nanos / packets:.0f} ns a packet in {runs / packets:.2f} runs, {packets / float(seconds) / 1e3:.0f} thousand packets a second")


SINK = """
import socket, time
s = socket.create_server(("10.20.0.1", 7000))
print("ready", flush=True)
c, _ = s.accept()
c.settimeout(1)
total, mark = 0, time.monotonic()
while True:
    try:
        data = c.recv(1 << 16)
    except TimeoutError:
        continue
    if not data:
        break
    total += len(data)
    now = time.monotonic()
    if now - mark >= 0.05:
        print(now, total, flush=True)
        mark = now
"""


def patterns(step, seed):
    """Seconds and Mbit/s of background on each link: R-NAT-10's, or random ones of random length."""
    fixed = [(0, 0), (2, 8), (8, 2), (5, 5), (0, 9), (9, 0)]
    if not seed:
        return [(step, pair) for pair in fixed]
    import random

    dice = random.Random(int(seed))
    level = lambda: dice.randrange(0, 19) / 2
    return [(step, (0, 0))] + [(dice.uniform(step / 4, step), (level(), level())) for _ in range(8)]


def connect(peer, congestion):
    """A TCP stream to `peer`: its receiver, the (time, bytes) that one has told so far, and the stream."""
    receiver = subprocess.Popen(["ip", "netns", "exec", peer, sys.executable, "-c", SINK], stdout=subprocess.PIPE, text=True)
    receiver.stdout.readline()
    points = []
    reader = threading.Thread(target=lambda: points.extend(tuple(map(float, line.split())) for line in receiver.stdout), daemon=True)
    reader.start()
    stream = socket.socket()
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
    stream.connect(("10.20.0.1", 7000))
    return receiver, points, stream


def background(peer, label, step, seed="", congestion="cubic"):
    """One TCP stream beside UDP background of changing rates: goodput of each phase, how near to what is free, and when it is there."""
    receiver, points, stream = connect(peer, congestion)
    stop = threading.Event()

    def pour():
        data = bytes(1 << 16)
        while not stop.is_set():
            stream.send(data)

    pourer = threading.Thread(target=pour, daemon=True)
    pourer.start()
    # Background to the links' own addresses, which are not spread.
    speed = [0, 0]

    def others(link):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        data, due = bytes(1000), time.monotonic()
        while not stop.is_set():
            if speed[link] == 0:
                time.sleep(0.01)
                due = time.monotonic()
                continue
            try:
                sock.sendto(data, (f"10.1{link}.0.2", 9))
            except OSError:
                pass
            due += 1042 * 8 / (speed[link] * 1e6)
            time.sleep(max(0, due - time.monotonic()))

    for link in (0, 1):
        threading.Thread(target=others, args=(link,), daemon=True).start()
    phases = []
    for seconds, pair in patterns(float(step), seed):
        speed[:] = pair
        begin = time.monotonic()
        time.sleep(seconds)
        phases.append((pair, begin, time.monotonic()))
    stop.set()
    time.sleep(0.3)
    stream.close()
    receiver.terminate()

    def received(at):
        """Bytes until then, between two points on a straight line."""
        before = [point for point in points if point[0] <= at] or [(at, 0.0)]
        after = [point for point in points if point[0] > at] or [before[-1]]
        (t0, b0), (t1, b1) = before[-1], after[0]
        return b0 + (b1 - b0) * (at - t0) / (t1 - t0) if t1 > t0 else b0

    def mbps(begin, end):
        return (received(end) - received(begin)) * 8 / 1e6 / (end - begin)

    shares, times = [], []
    for pair, begin, end in phases:
        # Of 20 Mbit/s on the wire, a TCP segment of 1448 of 1514 bytes is payload.
        free = (20 - sum(pair)) * 1448 / 1514
        share = mbps(begin, end) / free
        steps = range(int((end - begin - 0.5) / 0.05))
        there = next((step * 0.05 for step in steps if mbps(begin + step * 0.05, begin + step * 0.05 + 0.5) >= 0.9 * free), None)
        shown = "never" if there is None else f"after {there:.2f} s"
        print(f"  {label:5} {end - begin:4.1f} s of background {pair[0]}+{pair[1]} Mbit/s: {share:.3f} of the {free:5.2f} Mbit/s that are free; nine tenths for half a second {shown}")
        if sum(pair):
            shares.append(share)
            times.append(end - begin if there is None else there)
    print(f"  {label:5} {congestion}: least phase {min(shares):.3f}, mean {statistics.mean(shares):.3f}; recovery median {statistics.median(times):.2f} s, longest {max(times):.2f} s")


def outage(control, host, peer):
    """From the loss of a link until the equalizer leaves it out, and from its return until it takes it in."""
    import json

    def state():
        conn = socket.socket(socket.AF_UNIX)
        conn.connect(control)
        conn.sendall(b'{"command": "status"}\n')
        text = b""
        while not text.endswith(b"\n"):
            part = conn.recv(65536)
            if not part:
                break
            text += part
        conn.close()
        # The answer is {"ok": …} or the status itself, in either case with the links in their order.
        found = re.findall(rb'"state":"(\w+)"', text)
        return found[1].decode()

    def until(wanted, begin):
        while time.monotonic() < begin + 10:
            if state() == wanted:
                return time.monotonic() - begin
        sys.exit(f"link l1 never was {wanted}")

    def ip(namespace, *words):
        subprocess.run(["ip", "-n", namespace, *words], check=True)

    def create():
        ip(host, "link", "add", "l1", "index", "51", "type", "veth", "peer", "name", "r1", "index", "51", "netns", peer)
        ip(host, "address", "add", "10.11.0.1/24", "dev", "l1")
        ip(peer, "address", "add", "10.11.0.2/24", "dev", "r1")
        ip(peer, "link", "set", "r1", "up")

    ways = {
        "carrier": (lambda: ip(peer, "link", "set", "r1", "down"), lambda: None, lambda: ip(peer, "link", "set", "r1", "up")),
        "down": (lambda: ip(host, "link", "set", "l1", "down"), lambda: None, lambda: ip(host, "link", "set", "l1", "up")),
        "vanishes": (lambda: ip(host, "link", "delete", "l1"), create, lambda: ip(host, "link", "set", "l1", "up")),
    }
    for name, (lose, between, back) in ways.items():
        lost, returned = [], []
        for turn in range(10):
            begin = time.monotonic()
            lose()
            lost.append(until("down", begin))
            time.sleep(0.1 + 0.05 * turn)
            between()
            begin = time.monotonic()
            back()
            returned.append(until("up", begin))
            time.sleep(0.1 + 0.05 * turn)
        shown = lambda times: f"median {statistics.median(times) * 1e3:.0f} ms, longest {max(times) * 1e3:.0f} ms"
        print(f"  {name:8}: left out {shown(lost)}; taken in again {shown(returned)}")


def wire(*delays_ms):
    """In a namespace between: frames from `mN` leave by `nN` after the delay of that link, and the other way after 10 ms."""
    import collections
    import select

    def open_device(name):
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        sock.bind((name, 0))
        sock.setblocking(False)
        return sock

    for name in [f"{side}{n}" for side in "mn" for n in range(len(delays_ms))]:
        no_checksums(name)
    ways = []
    for number, delay in enumerate(delays_ms):
        near, far = open_device(f"m{number}"), open_device(f"n{number}")
        ways += [(near, far, float(delay) / 1e3, collections.deque()), (far, near, 0.01, collections.deque())]
    print("ready", flush=True)
    while True:
        now = time.monotonic()
        due = [held[0][0] for *_, held in ways if held]
        readable, _, _ = select.select([way[0] for way in ways], [], [], max(0, min(due) - now) if due else None)
        now = time.monotonic()
        for source, target, delay, held in ways:
            while source in readable:
                try:
                    frame, address = source.recvfrom(65536)
                except BlockingIOError:
                    break
                if address[2] != socket.PACKET_OUTGOING:
                    held.append((now + delay, frame))
            while held and held[0][0] <= now:
                try:
                    target.send(held.popleft()[1])
                except OSError:
                    pass  # its queue is full: lost


def no_checksums(name):
    """Has the kernel compute checksums before `name`, not leave them to a device: frames are forwarded by a program."""
    import ctypes
    import fcntl
    import struct

    ETHTOOL_STXCSUM, SIOCETHTOOL = 0x17, 0x8946
    command = bytearray(struct.pack("II", ETHTOOL_STXCSUM, 0))
    data = (ctypes.c_char * 8).from_buffer(command)
    request = struct.pack("16sP16x", name.encode(), ctypes.addressof(data))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, SIOCETHTOOL, request)


def flow(peer, seconds, congestion="cubic"):
    """One TCP stream: its goodput in each tenth of a second as a share of what TCP can carry over both links, and segments sent again."""
    TCPI_TOTAL_RETRANS = 100
    receiver, points, stream = connect(peer, congestion)
    begin, end = time.monotonic(), time.monotonic() + float(seconds)
    stream.settimeout(1)
    while time.monotonic() < end:
        try:
            stream.send(bytes(1 << 16))
        except TimeoutError:
            pass
    info = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    receiver.terminate()
    stream.close()
    ideal = 20 * 1448 / 1514
    total = lambda at: max([bytes for when, bytes in points if when <= at], default=0)
    tenths = [begin + step / 10 for step in range(int(float(seconds) * 10) + 1)]
    shares = [(total(b) - total(a)) * 8 / 1e6 / (b - a) / ideal for a, b in zip(tenths, tenths[1:])]
    again = int.from_bytes(info[TCPI_TOTAL_RETRANS : TCPI_TOTAL_RETRANS + 4], sys.byteorder)
    print(again, *(f"{share:.4f}" for share in shares))


def flows(label, congestion):
    """Medians over the runs of `flow` on the standard input."""
    runs = [[float(word) for word in line.split()] for line in sys.stdin]
    again = [int(run[0]) for run in runs]
    runs = [run[1:] for run in runs]
    # From then on a second has nine tenths of the ideal.
    first = lambda run: next((at / 10 for at in range(len(run) - 9) if statistics.mean(run[at : at + 10]) >= 0.9), None)
    there = [first(run) for run in runs]
    median = lambda values: statistics.median(values)
    known = sorted(float("inf") if at is None else at for at in there)
    middle = known[len(known) // 2]
    shown = "never" if middle == float("inf") else f"from {middle:.1f} s on"
    seconds = [median([statistics.mean(run[at : at + 10]) for run in runs]) for at in range(0, len(runs[0]) - 9, 10)]
    late = median([statistics.mean(run[50:]) for run in runs])
    print(f"  {label:7} {congestion}: nine tenths of the ideal {shown} (runs: {' '.join('never' if at is None else f'{at:.1f}' for at in there)}), from 5 s on {late:.3f}; sent again {median(again):.0f} segments")
    print(f"          each second: {' '.join(f'{share:.2f}' for share in seconds)}")


def pour(daemon, seconds, label):
    """Super-packets of UDP without a pause: what leaves by the links, and what the daemon takes meanwhile."""
    UDP_SEGMENT = 103
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 1400)
    data = bytes(1400 * 45)

    def used():
        with open(f"/proc/{daemon}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    before, used_before, begin = device_counters(), used(), time.monotonic()
    offered = 0
    while time.monotonic() < begin + float(seconds):
        try:
            offered += sock.sendto(data, TARGET)
        except OSError:
            pass  # nobody listens there, and ICMP says so
    time.sleep(0.1)
    span = time.monotonic() - begin
    after = device_counters()
    rate = sum(after[name][1] - before[name][1] for name in LINKS) * 8 / 1e9 / span
    print(f"  {label:6} {rate:6.2f} Gbit/s left of {offered * 8 / 1e9 / span:6.2f} offered, the daemon {(used() - used_before) / span:.2f} of a processor")


def answers(*devices_ms):
    """Answers pings in place of the kernel, what came in by each device that many milliseconds later."""
    replies = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    replies.bind((TARGET[0], 0))

    def serve(device, later):
        requests = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        requests.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
        while True:
            packet, source = requests.recvfrom(2048)
            message = packet[20:]
            if message[0] != 8:
                continue
            time.sleep(later)
            # Type 8 becomes 0, and the checksum grows by as much.
            total = int.from_bytes(message[2:4], "big") + 0x0800
            total = (total & 0xFFFF) + (total >> 16)
            replies.sendto(b"\0\0" + total.to_bytes(2, "big") + message[4:], source)

    threads = [threading.Thread(target=serve, args=(device, float(later) / 1e3)) for device, later in zip(devices_ms[::2], devices_ms[1::2])]
    for thread in threads:
        thread.start()


if __name__ == "__main__":
    {"answers": answers, "change": change, "cost": cost, "background": background, "outage": outage, "pour": pour, "wire": wire, "no_checksums": no_checksums, "flow": flow, "flows": flows}[sys.argv[1]](*sys.argv[2:])
