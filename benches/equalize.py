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


def background(peer, label, step):
    """One TCP stream beside UDP background of changing rates; goodput of each step, and how near to what is free."""
    step = float(step)
    rates = [(0, 0), (2, 8), (8, 2), (5, 5), (0, 9), (9, 0)]
    sink = (
        "import socket,time,sys\n"
        "s=socket.create_server(('10.20.0.1',7000))\nprint('ready',flush=True)\nc,_=s.accept()\ntotal=0;begin=time.monotonic();mark=begin\n"
        "c.settimeout(1)\n"
        "while True:\n"
        "  try: d=c.recv(1<<16)\n"
        "  except TimeoutError: d=b'x'*0 or None\n"
        "  if d==b'': break\n"
        "  total+=len(d or b'')\n"
        "  now=time.monotonic()\n"
        "  if now-mark>=0.1:\n"
        "    print(now,total,flush=True); mark=now\n"
    )
    receiver = subprocess.Popen(["ip", "netns", "exec", peer, sys.executable, "-c", sink], stdout=subprocess.PIPE, text=True)
    receiver.stdout.readline()
    points = []
    reader = threading.Thread(target=lambda: points.extend(tuple(map(float, line.split())) for line in receiver.stdout), daemon=True)
    reader.start()
    stream = socket.create_connection(("10.20.0.1", 7000))
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
    steps = []
    for pair in rates:
        speed[:] = pair
        begin = time.monotonic()
        time.sleep(step)
        steps.append((pair, begin, time.monotonic()))
    stop.set()
    time.sleep(0.3)
    stream.close()
    receiver.terminate()
    total = free_total = 0.0
    for pair, begin, end in steps:
        inside = [point for point in points if begin <= point[0] <= end]
        mbps = (inside[-1][1] - inside[0][1]) * 8 / 1e6 / (inside[-1][0] - inside[0][0])
        # Of 20 Mbit/s on the wire, a TCP segment of 1448 of 1514 bytes is payload.
        free = (20 - sum(pair)) * 1448 / 1514
        ideal = free
        tail = [point for point in points if begin + 1 <= point[0] <= end]
        late = (tail[-1][1] - tail[0][1]) * 8 / 1e6 / (tail[-1][0] - tail[0][0])
        print(f"  {label:5} background {pair[0]}+{pair[1]} Mbit/s: {mbps:5.2f} of {ideal:5.2f} Mbit/s ({mbps / ideal:.2f}); from the second second on {late / ideal:.2f}")
        if sum(pair):
            total += mbps
            free_total += ideal
    print(f"  {label:5} with background: {total / free_total:.2f} of what is free")


if __name__ == "__main__":
    {"change": change, "cost": cost, "background": background}[sys.argv[1]](*sys.argv[2:])
