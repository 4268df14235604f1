"""A scenario that `pleach lab run` runs, with programs of our own in the namespaces of its client and gateway."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
BINARY = os.path.realpath(os.environ.get("PLEACH_BIN", os.path.join(ROOT, "target/release/pleach")))


class Failed(Exception):
    pass


def wait_for(what, seconds, condition):
    """Returns the first true value of `condition()`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise Failed(f"{what}: not within {seconds} s")


def daemon(config):
    """Returns the process of the daemon that the lab has started with the file `config`."""
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                arguments = file.read().decode(errors="replace").split("\0")
        except OSError:
            continue
        if arguments[1:3] == ["up", config]:
            return int(entry)
    return None


def status(control):
    """Returns the daemon's status, or None."""
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(1)
            sock.connect(control)
            sock.sendall(b'{"command": "status"}\n')
            return json.loads(sock.makefile().readline())
    except (OSError, ValueError):
        return None


class LabRun:
    """A running scenario. At the end of the `with` block, all programs that it has started are ended.

    `client` and `gateway` are the processes of the daemons; `control` is the client's control socket.
    """

    def __init__(self, scenario, out):
        self.scenario, self.out = scenario, out
        self.started = []

    def __enter__(self):
        os.makedirs(self.out, exist_ok=True)
        try:
            self.lab = self.start([BINARY, "lab", "run", self.scenario, "--out", self.out], "lab.log")
            config = os.path.join(self.out, "run-1/client.toml")
            self.client = wait_for("the client", 30, lambda: daemon(config))
            self.gateway = wait_for("the gateway", 30, lambda: daemon(os.path.join(self.out, "run-1/gateway.toml")))
            with open(config, encoding="utf-8") as file:
                self.control = re.search(r'^control = "(.*)"$', file.read(), re.MULTILINE)[1]
            is_up = lambda found: found and found["up"] and all(link["state"] == "up" for link in found["links"])
            wait_for("the tunnel", 15, lambda: is_up(status(self.control)))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.wait()

    def start(self, command, log, inside=None, **options):
        """Starts a program, in the namespace of the process `inside` if one is given. Its output goes to the file `log`."""
        if inside is not None:
            command = ["nsenter", f"--net=/proc/{inside}/ns/net", "--"] + command
        with open(os.path.join(self.out, log), "wb") as file:
            process = subprocess.Popen(command, **({"stdout": file, "stderr": file, "stdin": subprocess.DEVNULL} | options),
                                       env=os.environ | {"PLEACH_BIN": BINARY, "PYTHONDONTWRITEBYTECODE": "1"})
        self.started.append(process)
        return process

    def check(self, *processes):
        """Fails if the lab or one of `processes` has ended."""
        if any(process.poll() is not None for process in (self.lab, *processes)):
            raise Failed(f"a program has ended early; the logs are in {self.out}")

    def results(self):
        """Waits for the end of the scenario, and returns its results."""
        self.lab.wait(120)
        if self.lab.returncode != 0:
            raise Failed(f"the lab failed; its log is in {self.out}")
        with open(os.path.join(self.out, "results.json"), encoding="utf-8") as file:
            return json.load(file)


def end_at_signal():
    """Lets a run that is ended by a signal end its programs."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
