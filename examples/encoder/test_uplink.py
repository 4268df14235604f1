"""The rate rule, and the requests to a server that behaves like the daemon's API. `./dev test` runs this file."""

import http.server
import logging
import os
import socketserver
import tempfile
import threading
import unittest

import uplink


class Rule(unittest.TestCase):
    def test_headers_and_audio_are_subtracted(self):
        rule = uplink.RateRule(300_000, 20_000_000, audio=128_000)
        video = rule.take(0, 10.0)
        self.assertTrue(9_000_000 < video < 9_200_000 - 120_000, video)

    def test_the_bounds_hold(self):
        rule = uplink.RateRule(300_000, 6_000_000, audio=128_000)
        self.assertEqual(rule.take(0, 100.0), 6_000_000)
        self.assertEqual(rule.take(5, 0.0), 300_000)
        self.assertRaises(ValueError, uplink.RateRule, 5, 4)
        self.assertRaises(ValueError, uplink.RateRule, 0, 4)

    def test_a_large_fall_is_followed_at_once_and_lets_the_queue_empty(self):
        rule = uplink.RateRule(300_000, 20_000_000)
        before = rule.take(0, 10.0)
        low = rule.take(1, 4.0)
        self.assertAlmostEqual(low, before * 0.4 * uplink.DRAIN_SHARE, delta=2)
        self.assertEqual(rule.take(1 + uplink.DRAIN_S / 2, 4.0), low)
        self.assertAlmostEqual(rule.take(1 + uplink.DRAIN_S, 4.0), before * 0.4, delta=2)

    def test_small_changes(self):
        rule = uplink.RateRule(300_000, 20_000_000)
        before = rule.take(0, 10.0)
        self.assertEqual(rule.take(1, 10.1), before, "not worth a change")
        self.assertLess(rule.take(2, 9.9), before)
        self.assertGreater(rule.take(3, 10.5), before)


class Daemon(http.server.BaseHTTPRequestHandler):
    """Answers with the bodies of `answers`, the last one again and again."""

    protocol_version = "HTTP/1.1"
    answers = []
    seen = []
    connections = 0

    def setup(self):
        super().setup()
        Daemon.connections += 1

    def address_string(self):
        return "test"

    def log_message(self, *_):
        pass

    def do_GET(self):
        Daemon.seen.append((self.path, self.headers.get("Authorization")))
        status, body = Daemon.answers[0]
        if len(Daemon.answers) > 1:
            Daemon.answers.pop(0)
        if status == 0:  # the connection breaks
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())


class UnixServer(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


class Requests(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.directory.name, "t.sock")
        Daemon.answers, Daemon.seen, Daemon.connections = [], [], 0
        self.servers = []
        logging.getLogger("uplink").setLevel(logging.ERROR)

    def tearDown(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()
        self.directory.cleanup()

    def serve(self, server):
        self.servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server

    def test_a_socket_and_one_connection_for_many_requests(self):
        self.serve(UnixServer(self.path, Daemon))
        Daemon.answers = [(200, '{"rate_mbps": 9.5, "settled": true}')]
        api = uplink.Api(self.path)
        self.assertEqual([api.rate_mbps() for _ in range(3)], [9.5] * 3)
        self.assertEqual((Daemon.connections, Daemon.seen[0]), (1, ("/v1/uplink", None)))
        api.connection.close()

    def test_tcp_with_a_token(self):
        server = self.serve(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Daemon))
        token = os.path.join(self.directory.name, "token")
        with open(token, "w", encoding="ascii") as file:
            file.write("token-of-a-test read-only\nother\n")
        Daemon.answers = [(200, '{"rate_mbps": 1}')]
        api = uplink.Api(f"http://127.0.0.1:{server.server_address[1]}", token)
        self.assertEqual(api.rate_mbps(), 1)
        self.assertEqual(Daemon.seen, [("/v1/uplink", "Bearer token-of-a-test")])
        api.connection.close()
        self.assertRaises(ValueError, uplink.Api, "https://127.0.0.1:1")
        self.assertRaises(ValueError, uplink.Api, "router:7780")

    def test_a_closed_connection_is_opened_again(self):
        self.serve(UnixServer(self.path, Daemon))
        Daemon.answers = [(200, '{"rate_mbps": 1}'), (0, ""), (200, '{"rate_mbps": 2}')]
        api = uplink.Api(self.path)
        self.assertEqual([api.rate_mbps(), api.rate_mbps()], [1, 2])
        api.connection.close()

    def test_what_is_no_rate_is_an_error(self):
        self.serve(UnixServer(self.path, Daemon))
        api = uplink.Api(self.path)
        for status, body in [
            (404, '{"error": "this is no client of a tunnel"}'),
            (200, '{"rate_mbps": NaN}'),
            (200, '{"rate_mbps": -1}'),
            (200, '{"rate_mbps": null}'),
            (200, "[]"),
            (200, "<html>"),
            (503, "busy"),
        ]:
            Daemon.answers = [(status, body)]
            self.assertRaises(uplink.ApiError, api.rate_mbps)
        api.connection.close()

    def test_without_a_daemon_the_rate_stays(self):
        server = self.serve(UnixServer(self.path, Daemon))
        Daemon.answers = [(200, '{"rate_mbps": 5}')]
        applied = []
        follower = uplink.Follower(uplink.Api(self.path), uplink.RateRule(300_000, 9_000_000), applied.append)
        follower.step()
        Daemon.answers = [(503, '{"error": "the daemon is stopping"}')]
        with self.assertLogs("uplink", "WARNING") as logs:
            follower.step()
            follower.step()
        self.assertEqual((len(applied), len(logs.output)), (1, 1), "one warning, no change")
        self.assertIn("stopping", logs.output[0])
        Daemon.answers = [(200, '{"rate_mbps": 2}')]
        follower.step()
        self.assertEqual(len(applied), 2)
        self.assertLess(applied[1], applied[0])
        follower.api.connection.close()
        self.assertTrue(server)


if __name__ == "__main__":
    unittest.main()
