#!/usr/bin/env python3
"""wireguard-go in the place of pleach, for `--peer` of the bench `profiles`.

The lab starts this program as it starts pleach: `genkey`, `pubkey`, and `up FILE` with a configuration of pleach. Of the
configuration only keys, addresses and the first link are used: WireGuard has one path. There is no control socket.

Environment: WIREGUARD_GO_PROGRAM, the program.
"""

import base64
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
WIREGUARD_GO = os.environ.get("WIREGUARD_GO_PROGRAM", "wireguard-go")
# The keys of both programs are those of X25519 in base64.
KEYS = os.environ.get("PLEACH_KEYS", os.path.join(ROOT, "target/release/pleach"))
# WireGuard's headers: 60 bytes over IPv4, 80 over IPv6.
MTU = 1420


def hexadecimal(key):
    return base64.b64decode(key).hex()


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)


def configure(device, lines):
    """Sends a request of the configuration protocol to wireguard-go."""
    path = f"/var/run/wireguard/{device}.sock"
    for _ in range(200):
        if os.path.exists(path):
            break
        time.sleep(0.02)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        sock.sendall(("set=1\n" + "\n".join(lines) + "\n\n").encode())
        answer = sock.recv(4096).decode()
    if "errno=0" not in answer:
        sys.exit(f"wireguard-go refused its configuration: {answer.strip()}")


def settings(config):
    """Returns the lines of the configuration protocol."""
    lines = [f"private_key={hexadecimal(config['tunnel']['private_key'])}"]
    if config["mode"] == "gateway":
        lines.append(f"listen_port={config['tunnel']['listen'].rpartition(':')[2]}")
        for client in config["client"]:
            lines.append(f"public_key={hexadecimal(client['public_key'])}")
            lines += [f"allowed_ip={network}" for network in client["allowed_ips"]]
    else:
        gateway = config["gateway"]
        lines.append(f"public_key={hexadecimal(gateway['public_key'])}")
        lines.append(f"endpoint={gateway['endpoints'][0]}")
        lines += [f"allowed_ip={network}" for network in gateway["allowed_ips"]]
    return lines


def route(config, device):
    """Routes all traffic of a client into the tunnel, and the tunnel over the first link."""
    endpoint = config["gateway"]["endpoints"][0].rpartition(":")[0].strip("[]")
    link = config["link"][0]["device"]
    family = "-6" if ":" in endpoint else "-4"
    shown = subprocess.run(["ip", family, "route", "show", "default", "dev", link], check=True, capture_output=True,
                           text=True).stdout.split()
    ip(family, "route", "add", endpoint, "via", shown[shown.index("via") + 1], "dev", link)
    for network in ("0.0.0.0/1", "128.0.0.0/1", "::/1", "8000::/1"):
        ip("-6" if ":" in network else "-4", "route", "add", network, "dev", device)


def up(file):
    with open(file, "rb") as opened:
        config = tomllib.load(opened)
    # Sockets of all namespaces are in one directory, so the names must differ.
    device = f"wg{os.getpid()}"
    process = subprocess.Popen([WIREGUARD_GO, "-f", device], env=os.environ | {"LOG_LEVEL": "error"})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        configure(device, settings(config))
        for address in config["tunnel"]["address"]:
            ip("address", "add", address, "dev", device)
        ip("link", "set", "dev", device, "mtu", str(MTU), "up")
        if config["mode"] == "client":
            route(config, device)
        process.wait()
    finally:
        process.terminate()
        process.wait()


def main():
    if sys.argv[1:2] in (["genkey"], ["pubkey"]):
        os.execv(KEYS, [KEYS, sys.argv[1]])
    if sys.argv[1:2] != ["up"] or len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} genkey | pubkey | up FILE")
    up(sys.argv[2])


if __name__ == "__main__":
    main()
