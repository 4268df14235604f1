"""Servers and clients of benches/proxy.sh.

serve PORT                     files of the working directory over HTTP, whole and in parts, and an echo on PORT + 1
many PROXY TARGET PID          2 000 connections by SOCKS5, 200 new ones a second; memory of process PID
speed PROXY                    bulk data by SOCKS5 to a sink and from a source in this process's namespace
"""

import asyncio
import contextlib
import os
import re
import socket
import sys
import threading
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

CONNECTIONS = 2000
PER_SECOND = 200


def serve(port):
    class Quiet(SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_GET(self):
            """As file servers do: things have tags, and parts of them can be had (RFC 9110, section 14)."""
            path = self.translate_path(self.path)
            if not os.path.isfile(path):
                return super().do_GET()
            size = os.path.getsize(path)
            tag = f'"{size:x}-{os.stat(path).st_mtime_ns:x}"'
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            first, last = map(int, asked.groups()) if asked else (0, size - 1)
            is_part = asked and first <= last < size and self.headers.get("If-Range", tag) == tag
            if not is_part:
                first, last = 0, size - 1
            self.send_response(206 if is_part else 200)
            if is_part:
                self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            for name, value in [("Accept-Ranges", "bytes"), ("ETag", tag), ("Content-Length", last - first + 1)]:
                self.send_header(name, str(value))
            self.end_headers()
            with open(path, "rb") as file:
                # What a client does not want to the end is no error.
                with contextlib.suppress(ConnectionError):
                    self.connection.sendfile(file, first, last - first + 1)

    class Server(ThreadingHTTPServer):
        request_queue_size = 1024
        daemon_threads = True

    async def echo(reader, writer):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def run():
        server = await asyncio.start_server(echo, "0.0.0.0", port + 1, backlog=4096)
        await server.serve_forever()

    threading.Thread(target=Server(("0.0.0.0", port), Quiet).serve_forever, daemon=True).start()
    asyncio.run(run())


def socks_request(host, port):
    return b"\x05\x01\x00\x01" + socket.inet_aton(host) + port.to_bytes(2, "big")


def split(address):
    host, port = address.rsplit(":", 1)
    return host, int(port)


def memory(pid):
    with open(f"/proc/{pid}/status") as status:
        return {line.split(":")[0]: line.split()[1] for line in status if line.startswith("Vm")}


async def many(proxy, target, pid):
    errors = []
    is_full = asyncio.Event()
    opened = 0

    async def one(number):
        nonlocal opened
        try:
            reader, writer = await asyncio.open_connection(*proxy)
            writer.write(b"\x05\x01\x00")
            await reader.readexactly(2)
            writer.write(socks_request(*target))
            reply = await reader.readexactly(10)
            assert reply[1] == 0, f"reply {reply[1]}"
            message = number.to_bytes(4, "big") * 25
            writer.write(message)
            assert await reader.readexactly(100) == message, "another answer"
            opened += 1
            await is_full.wait()
            writer.write(message)
            assert await reader.readexactly(100) == message, "another answer"
            writer.close()
        except Exception as error:
            errors.append(repr(error))

    begin = time.monotonic()
    tasks = []
    for number in range(CONNECTIONS):
        tasks.append(asyncio.create_task(one(number)))
        await asyncio.sleep(max(0, begin + number / PER_SECOND - time.monotonic()))
    while opened + len(errors) < CONNECTIONS and time.monotonic() < begin + 60:
        await asyncio.sleep(0.1)
    took = time.monotonic() - begin
    resident = int(memory(pid)["VmRSS"]) / 1000
    is_full.set()
    await asyncio.gather(*tasks)
    peak = int(memory(pid)["VmHWM"]) / 1000
    print(
        f"many {opened} connections in {took:.1f} s, {len(errors)} errors {sorted(set(errors))[:3]}, "
        f"memory {resident:.1f} MB (peak {peak:.1f})"
    )


def speed(proxy):
    """A process at each end, so that Python's lock does not hold them up; data comes from and goes to the kernel."""
    size = 4 << 20
    seconds = 5
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    port = listener.getsockname()[1]

    def source(peer):
        block = memoryview(bytearray(size))
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                peer.sendall(block)
        except OSError:
            pass
        peer.close()

    for count in (1, 4):
        children = []
        for _ in range(count):
            client = socket.create_connection(proxy)
            client.sendall(b"\x05\x01\x00")
            client.recv(2, socket.MSG_WAITALL)
            client.sendall(socks_request("127.0.0.1", port))
            reply = client.recv(10, socket.MSG_WAITALL)
            assert reply[1] == 0, reply
            peer, _ = listener.accept()
            if (child := os.fork()) == 0:
                client.close()
                source(peer)
                os._exit(0)
            children.append(child)
            peer.close()
            read, write = os.pipe()
            if (child := os.fork()) == 0:
                buffer = memoryview(bytearray(size))
                got, begin = 0, time.monotonic()
                # MSG_TRUNC: TCP throws the bytes away without copying them.
                while length := client.recv_into(buffer, size, socket.MSG_TRUNC):
                    got += length
                rate = got * 8 / 1e9 / (time.monotonic() - begin)
                os.write(write, f"{rate}\n".encode())
                os._exit(0)
            children.append(child)
            client.close()
            os.close(write)
            children.append(os.fdopen(read))
        total = sum(float(item.read()) for item in children if not isinstance(item, int))
        for item in children:
            if isinstance(item, int):
                os.waitpid(item, 0)
        print(f"speed {count} connection(s) over loopback: {total:.1f} Gbit/s")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", port]:
            serve(int(port))
        case ["many", proxy, target, pid]:
            asyncio.run(many(split(proxy), split(target), pid))
        case ["speed", proxy]:
            speed(split(proxy))
        case _:
            sys.exit(__doc__)
