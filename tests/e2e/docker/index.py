"""A package index for a test: one tiny package, over HTTPS with a private certificate, or through a proxy."""

import base64
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Index(ThreadingHTTPServer):
    """Serves one wheel as a package index; `requested` has the requests' paths, or URLs if it serves as a proxy.

    With `certificate`, a certificate and its key, it serves over HTTPS.
    """

    def __init__(self, host: str, package: Path, user: str = "", certificate: tuple[Path, Path] | None = None) -> None:
        super().__init__((host, 0), _Handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.package, self.user, self.requested = package, user, list[str]()


class _Handler(BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        """Answer with the wheel or the page that names it, if the client is authorized."""
        self.server.requested.append(self.path)
        credentials = base64.b64encode(self.server.user.encode()).decode()
        if credentials and self.headers.get("Authorization") != f"Basic {credentials}":
            self._answer(401, b"", ("WWW-Authenticate", "Basic"))
        elif self.path.endswith(".whl"):
            self._answer(200, self.server.package.read_bytes(), ("Content-Type", "application/zip"))
        else:
            page = f"<!DOCTYPE html><a href='/files/{self.server.package.name}'>{self.server.package.name}</a>"
            self._answer(200, page.encode(), ("Content-Type", "text/html"))

    def _answer(self, code: int, content: bytes, header: tuple[str, str]) -> None:
        self.send_response(code)
        self.send_header(*header)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@contextmanager
def serving(index: Index) -> Iterator[Index]:
    """Let an index answer for a `with` block."""
    thread = threading.Thread(target=index.serve_forever, daemon=True)
    thread.start()
    try:
        yield index
    finally:
        index.shutdown()
        index.server_close()
        thread.join(10)


def certified(host: str, directory: Path, name: str) -> tuple[Path, Path]:
    """Create a self-signed certificate for a host; return certificate and key."""
    certificate, key = directory / f"{name}.pem", directory / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext",
         f"subjectAltName=IP:{host}", "-keyout", str(key), "-out", str(certificate)],
        capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    return certificate, key
