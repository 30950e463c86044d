"""The page over TLS in Chromium, and behind a proxy that does TLS."""

from __future__ import annotations

import http.client
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from benchmarks.live_training import free_port

from page_browser import check_page, opened, operator_file, served, sign_in, visit
from page_client import OPERATOR, RUNS

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for 127.0.0.1, signed by itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    words += ["-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-out", cert, "-keyout", key]
    subprocess.run(words, check=True, capture_output=True)
    return cert, key


def test_over_tls_the_session_is_a_cookie_for_tls_alone(
    browser: Any, certificate: tuple[str, str], tmp_path: Path
) -> None:
    cert, key = certificate
    operators = str(operator_file(tmp_path, "ada", OPERATOR))
    with served(RUNS, "--cert", cert, "--key", key, "--operator-token-file", operators) as server:
        assert server.base.startswith("https://127.0.0.1:")
        page = opened(browser, server)
        sign_in(page, OPERATOR)  # a POST: its origin is https, too
        visit(page, server, "/runs")
        check_page(page)
        cookies = page.context.cookies()
        assert cookies and all(
            each["secure"] and each["httpOnly"] and each["sameSite"] == "Strict" for each in cookies
        )
        assert page.said == []
        page.close()
        with pytest.raises(httpx.TransportError):
            httpx.get(server.opened.replace("https", "http"))


class Forwarding(BaseHTTPRequestHandler):
    """What a proxy that does TLS sends on: the request, and in headers who asked for what."""

    to: str
    name: str

    def do_GET(self) -> None:
        self.forward()

    def do_POST(self) -> None:
        self.forward()

    def forward(self) -> None:
        size = int(self.headers.get("content-length", "0"))
        headers = dict(self.headers.items()) | {
            "Host": self.name,
            "X-Forwarded-Host": self.name,
            "X-Forwarded-Proto": "https",
            "X-Forwarded-For": "203.0.113.7",
        }
        asked = http.client.HTTPConnection(self.to)
        asked.request(self.command, self.path, self.rfile.read(size), headers)
        answer = asked.getresponse()
        self.send_response(answer.status)
        for field, value in answer.getheaders():
            if field.lower() != "transfer-encoding":  # parts are sent on as they come
                self.send_header(field, value)
        self.end_headers()
        while part := answer.read1():
            self.wfile.write(part)
            self.wfile.flush()
        asked.close()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def forwarding(to: str, name: str) -> Iterator[str]:
    """A proxy before a server, as which it is known to browsers; its address."""
    handler = type("Handler", (Forwarding,), {"to": to, "name": name})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{proxy.server_port}"
        finally:
            proxy.shutdown()


def test_behind_a_proxy_that_does_tls_it_answers_to_its_name(tmp_path: Path) -> None:
    operators = str(operator_file(tmp_path, "ada", OPERATOR))
    to = f"127.0.0.1:{free_port()}"
    options = ("--listen", to, "--behind-proxy", "--host", "flow.example")
    acting = {"x-computeflow": "1", "content-type": "application/json"}
    with served(RUNS, *options, "--operator-token-file", operators) as server:
        assert server.base == "https://flow.example"
        with (
            forwarding(to, "flow.example") as proxy,
            httpx.Client(base_url=proxy, headers={"accept": "application/json"}) as client,
        ):
            opening = client.get("/open", params={"token": server.token})
            cookie = opening.headers["set-cookie"]
            assert "; Secure" in cookie and "HttpOnly" in cookie and "SameSite=Strict" in cookie
            own = {"cookie": cookie.partition(";")[0]}
            assert client.get("/runs", headers=own).json()["title"] == "Runs"
            with client.stream("GET", "/events", params={"of": "/runs"}, headers=own) as events:
                assert next(events.iter_text()).startswith("retry:")
            for origin, status in (("http://flow.example", 403), ("https://flow.example", 200)):
                headers = own | acting | {"origin": origin}
                answer = client.post("/session", headers=headers, json={"token": OPERATOR})
                assert answer.status_code == status, answer.text
        with forwarding(to, "other.example") as proxy:
            assert httpx.get(f"{proxy}/runs").status_code == 421
