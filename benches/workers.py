#!/usr/bin/env python3
"""A gateway with one and with two data threads, beside wireguard-go: bytes and packets for each CPU second, and what a second
data thread gains.

Two clients, each in a namespace of its own, are joined to one gateway by unshaped veth pairs. All programs run all the time,
over the same pairs, and take turns, so each row compares what was measured within one minute. The clients' keys are such that
they belong to different data threads. Loads, by iperf3 from or to both clients at once: TCP up and down with four
connections for each client, and UDP as fast as it goes with IP packets of 64 and 1400 bytes. CPU seconds are those of the
gateway's process, and those of the gateway and both clients together: over a veth pair, the sender's process does the work of
the receiver's kernel, so only the sum of both ends tells what a byte costs.

The second table limits each data thread to a part of a core (cgroup v1, `cpu.cfs_quota_us`), so that clients, iperf3 and both
data threads have free cores even on a machine with two: what two data threads carry then, divided by what one carries.

Environment: PLEACH_BIN; WIREGUARD_GO_PROGRAM; ROUNDS (5); SECONDS_EACH (3); SHARE (0.2: part of a core of the second table).
Writes bench-results/workers.json.
"""

import base64
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
BINARY = os.path.realpath(os.environ.get("PLEACH_BIN", os.path.join(ROOT, "target/release/pleach")))
WIREGUARD_GO = os.environ.get("WIREGUARD_GO_PROGRAM")
ROUNDS = int(os.environ.get("ROUNDS", "5"))
SECONDS = int(os.environ.get("SECONDS_EACH", "3"))
SHARE = float(os.environ.get("SHARE", "0.2"))
GROUPS = "/sys/fs/cgroup/cpu"
PERIOD_US = 5000
CLIENTS = 2
TICK = os.sysconf("SC_CLK_TCK")
# Options of iperf3. An IP packet of UDP has 28 bytes of headers.
LOADS = {
    "TCP up": ["-P", "4"],
    "TCP down": ["-P", "4", "-R"],
    "UDP, 64 bytes": ["-u", "-b", "0", "-l", "36"],
    "UDP, 1400 bytes": ["-u", "-b", "0", "-l", "1372"],
}


def run(*arguments, **options):
    return subprocess.run(arguments, check=True, text=True, capture_output=True, **options).stdout.strip()


def keys(remainder=None):
    """Returns a key pair; the public key's first byte is even or odd, and so the client's data thread of two."""
    while True:
        private = run(BINARY, "genkey")
        public = run(BINARY, "pubkey", input=private)
        if remainder is None or base64.b64decode(public)[0] % 2 == remainder:
            return private, public


class Machine:
    """The namespaces, and what runs in them."""

    def __init__(self, stack):
        self.stack = stack
        self.folder = stack.enter_context(tempfile.TemporaryDirectory())
        self.gateway = self.namespace("g")
        self.clients = [self.namespace(f"c{number}") for number in range(CLIENTS)]
        for number, client in enumerate(self.clients):
            run("ip", "link", "add", "wan", "netns", client, "type", "veth", "peer", "name", f"down{number}", "netns",
                self.gateway)
            for name, device, address in ((client, "wan", 2), (self.gateway, f"down{number}", 1)):
                run("ip", "-n", name, "address", "add", f"10.100.{number}.{address}/24", "dev", device)
                run("ip", "-n", name, "link", "set", device, "up")
            run("ip", "-n", client, "route", "add", "default", "via", f"10.100.{number}.1")

    def namespace(self, name):
        name = f"plw-{name}-{os.getpid()}"
        run("ip", "netns", "add", name)
        self.stack.callback(subprocess.run, ["ip", "netns", "del", name], check=False)
        run("ip", "-n", name, "link", "set", "lo", "up")
        return name

    def start(self, name, *arguments, **options):
        process = subprocess.Popen(["ip", "netns", "exec", name, *arguments], **options)
        self.stack.callback(process.wait)
        self.stack.callback(process.terminate)
        return process

    def file(self, name, text):
        path = os.path.join(self.folder, name)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        return path


def moving(process):
    """Returns the process that moves the packets: for wireguard-go, a child of what was started."""
    try:
        with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="ascii") as file:
            return int(file.read().split()[0])
    except (OSError, IndexError):
        return process.pid


class Subject:
    """A gateway and its clients. Inner network 10.SUBNET.0.0/24, where the gateway has .1."""

    def __init__(self, machine, name, subnet, workers=1, program=None):
        self.machine, self.name, self.subnet = machine, name, subnet
        program = program or [BINARY]
        port = 7000 + subnet
        own = keys()
        pairs = [keys(number % 2) for number in range(CLIENTS)]
        text = f"""
mode = "gateway"
[tunnel]
name = "plw{subnet}"
address = ["10.{subnet}.0.1/24"]
private_key = "{own[0]}"
listen = "0.0.0.0:{port}"
workers = {workers}
split_tcp = "off"
control = "{machine.folder}/g{subnet}.sock"
"""
        for number, (_, public) in enumerate(pairs):
            text += f"""
[[client]]
name = "c{number}"
public_key = "{public}"
allowed_ips = ["10.{subnet}.0.{number + 2}/32"]
"""
        log = open(os.path.join(machine.folder, f"{subnet}.log"), "w+", encoding="utf-8")
        self.log = log
        self.process = machine.start(machine.gateway, *program, "up", machine.file(f"g{subnet}.toml", text), stderr=log)
        self.peers = []
        for number, (private, _) in enumerate(pairs):
            text = f"""
mode = "client"
[tunnel]
name = "plw{subnet}"
address = ["10.{subnet}.0.{number + 2}/24"]
private_key = "{private}"
split_tcp = "off"
control = "{machine.folder}/c{number}-{subnet}.sock"
[gateway]
public_key = "{own[1]}"
endpoints = ["10.100.{number}.1:{port}"]
allowed_ips = ["10.{subnet}.0.0/24"]
[[link]]
name = "veth"
device = "wan"
"""
            self.peers.append(machine.start(machine.clients[number], *program, "up",
                                            machine.file(f"c{number}-{subnet}.toml", text), stderr=log))
        for client in machine.clients:
            for _ in range(100):
                if subprocess.run(["ip", "netns", "exec", client, "ping", "-c", "1", "-W", "1", "-q", f"10.{subnet}.0.1"],
                                  check=False, capture_output=True).returncode == 0:
                    break
                time.sleep(0.1)
            else:
                log.seek(0)
                sys.exit(f"{name} does not connect:\n{log.read()}")

    def gateway_process(self):
        return moving(self.process)

    def cpu(self):
        """Returns the CPU seconds of the gateway, and of the gateway and its clients."""
        seconds = []
        for process in [self.process, *self.peers]:
            with open(f"/proc/{moving(process)}/stat", encoding="ascii") as file:
                fields = file.read().rsplit(") ", 1)[1].split()
            seconds.append((int(fields[11]) + int(fields[12])) / TICK)
        return seconds[0], sum(seconds)

    def data_threads(self):
        process = self.gateway_process()
        threads = [process]
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/comm", encoding="ascii") as file:
                if file.read().startswith("worker "):
                    threads.append(int(thread))
        return threads

    def load(self, options):
        """Returns bytes and packets that have arrived in a second, and CPU seconds in a second: `cpu` of the gateway, `cpu_all`
        of the clients as well."""
        machine = self.machine
        servers = [subprocess.Popen(["ip", "netns", "exec", machine.gateway, "iperf3", "-s", "-1", "-p", str(5300 + number)],
                                    stdout=subprocess.DEVNULL) for number in range(CLIENTS)]
        for number in range(CLIENTS):
            while not run("ip", "netns", "exec", machine.gateway, "ss", "-Hltn", f"sport = :{5300 + number}"):
                time.sleep(0.02)
        before, began = self.cpu(), time.monotonic()
        flows = [subprocess.Popen(["ip", "netns", "exec", client, "iperf3", "-J", "-c", f"10.{self.subnet}.0.1", "-p",
                                   str(5300 + number), "-t", str(SECONDS), *options], text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL)
                 for number, client in enumerate(machine.clients)]
        results = [json.loads(flow.communicate()[0]) for flow in flows]
        took = time.monotonic() - began
        cpu, cpu_all = ((end - start) / took for start, end in zip(before, self.cpu()))
        for server in servers:
            server.wait()
        packets, parts = 0, []
        for result in results:
            if "error" in result:
                sys.exit(f"{self.name}: iperf3: {result['error']}")
            end = result["end"]
            if "-u" in options:
                total = end["sum"]
                arrived = total["packets"] - total["lost_packets"]
                packets += arrived / total["seconds"]
                parts.append(arrived * (int(options[-1]) + 28) / total["seconds"])
            else:
                parts.append(end["sum_received"]["bits_per_second"] / 8)
        return {"bytes_per_s": sum(parts), "packets_per_s": packets, "cpu": cpu, "cpu_all": cpu_all, "by_client": parts}


@contextlib.contextmanager
def limited(threads, share):
    """Gives each of the threads a part of a core."""
    groups = []
    try:
        for number, thread in enumerate(threads):
            group = f"{GROUPS}/plw-{os.getpid()}-{number}"
            os.mkdir(group)
            groups.append(group)
            for name, value in (("cpu.cfs_period_us", PERIOD_US), ("cpu.cfs_quota_us", int(PERIOD_US * share)),
                                ("tasks", thread)):
                with open(f"{group}/{name}", "w", encoding="ascii") as file:
                    file.write(str(value))
        yield
    finally:
        for group in groups:
            with open(f"{group}/tasks", encoding="ascii") as file:
                threads = file.read().split()
            for thread in threads:
                with open(f"{GROUPS}/tasks", "w", encoding="ascii") as file:
                    file.write(thread)
            os.rmdir(group)


def median(rows, value):
    return statistics.median(value(row) for row in rows)


def main():
    with contextlib.ExitStack() as stack:
        machine = Machine(stack)
        subjects = [Subject(machine, "1 data thread", 71), Subject(machine, "2 data threads", 72, workers=2)]
        if WIREGUARD_GO:
            subjects.append(Subject(machine, "wireguard-go", 73,
                                    program=[os.path.join(ROOT, "benches/peers/wireguard_go.py")]))
        else:
            print("NOT MEASURED: wireguard-go, because WIREGUARD_GO_PROGRAM is not set", file=sys.stderr)
        rows = {(load, subject.name): [] for load in LOADS for subject in subjects}
        for number in range(ROUNDS):
            for load, options in LOADS.items():
                for subject in subjects:
                    print(f"round {number + 1} of {ROUNDS}: {load}, {subject.name}        ", end="\r", file=sys.stderr, flush=True)
                    rows[load, subject.name].append(subject.load(options))
        shared = {subject.name: [] for subject in subjects[:2]}
        if os.path.exists(f"{GROUPS}/cpu.cfs_quota_us"):
            for number in range(ROUNDS):
                for subject in subjects[:2]:
                    with limited(subject.data_threads(), SHARE):
                        shared[subject.name].append(subject.load(LOADS["TCP up"]))
        else:
            print("NOT MEASURED: data threads with a part of a core, because there is no cgroup v1 of cpu", file=sys.stderr)

    print(f"{'':16} {'':16} {'Mbit/s':>8} {'packets/s':>10} {'cores':>6} {'GB/CPU s':>9} {'both ends':>9} {'packets/CPU s':>14} {'both ends':>9}   "
          f"medians of {ROUNDS} runs of {SECONDS} s, {os.cpu_count()} cores for all")
    for (load, name), runs in rows.items():
        cpu = median(runs, lambda row: row["cpu"])
        print(f"{load:16} {name:16} {median(runs, lambda row: row['bytes_per_s']) * 8e-6:8.0f} "
              f"{median(runs, lambda row: row['packets_per_s']):10.0f} {cpu:6.2f} "
              f"{median(runs, lambda row: row['bytes_per_s'] / row['cpu']) * 1e-9:9.3f} "
              f"{median(runs, lambda row: row['bytes_per_s'] / row['cpu_all']) * 1e-9:9.3f} "
              f"{median(runs, lambda row: row['packets_per_s'] / row['cpu']):14.0f} "
              f"{median(runs, lambda row: row['packets_per_s'] / row['cpu_all']):9.0f}")
    if any(shared.values()):
        one, two = (median(shared[subject.name], lambda row: row["bytes_per_s"]) * 8e-6 for subject in subjects[:2])
        ratios = [b["bytes_per_s"] / a["bytes_per_s"] for a, b in zip(*shared.values())]
        print(f"TCP up, each data thread with {SHARE:.2f} of a core: {one:.0f} Mbit/s with one, {two:.0f} with two, "
              f"{statistics.median(ratios):.2f} times (median of pairs; {min(ratios):.2f} to {max(ratios):.2f})")
    os.makedirs(os.path.join(ROOT, "bench-results"), exist_ok=True)
    with open(os.path.join(ROOT, "bench-results/workers.json"), "w", encoding="utf-8") as file:
        json.dump({"loads": [{"load": load, "program": name, "runs": runs} for (load, name), runs in rows.items()],
                   "share": SHARE, "limited": shared}, file, indent=1)


if __name__ == "__main__":
    main()
