"""A webhook on loopback, which stores the messages that it receives."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


class _Hook(BaseHTTPRequestHandler):
    server: "Server"

    def do_POST(self) -> None:
        """Store the message, and answer with the next code."""
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.received.append((self.path, self.headers["Content-Type"], message))
        code = self.server.codes.pop(0) if len(self.server.codes) > 1 else self.server.codes[0]
        self.send_response(code)
        if code in range(300, 400):
            self.send_header("Location", f"{self.server.address}/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST  # noqa: N815  as its base calls it

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class Server(HTTPServer):
    """Answers with `codes` in turn, repeating the last one; `received` has path, content type and message of each request."""

    def __init__(self, *codes: int) -> None:
        super().__init__(("127.0.0.1", 0), _Hook)
        self.codes, self.received = list(codes), list[tuple[str, str, Any]]()
        self.address = f"http://127.0.0.1:{self.server_port}"


@contextlib.contextmanager
def serving(*codes: int) -> Iterator[Server]:
    """Serve for a `with` block."""
    with Server(*codes) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
