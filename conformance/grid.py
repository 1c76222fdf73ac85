"""The server under test: requests, answers, waiting, and what it offers.

Its own file because checks should read as sentences. One connection per request, nothing pooled, retried or followed:
what the server did is what a check sees.

Invariant: every wait has a deadline (a number of seconds times `patience`) and ends as soon as the condition holds.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from typing import Any, Callable, TypeVar
from collections.abc import Mapping
from urllib.parse import urlsplit

from check import Failed, Skipped

T = TypeVar("T")

# An answer that needs no browser; far more than any takes, so that only a hang is called one.
ANSWER = 30.0
# A create may wait in the queue behind others and then for a launch.
CREATE = 90.0
# What must happen by itself (a slot becomes free, a waiter is served).
SOON = 20.0
FIRST_PAUSE = 0.01
LONGEST_PAUSE = 0.1


class Unreachable(Exception):
    """There is no server, or it does not let us in."""


class Reply:
    """Status, headers and body of one answer, and the request it answers."""

    def __init__(self, request: str, status: int, headers: Mapping[str, str], raw: bytes) -> None:
        self.request = request
        self.status = status
        self.headers = {name.lower(): value for name, value in headers.items()}
        self.raw = raw

    def json(self) -> Any:
        """The body, which must be JSON."""
        try:
            return json.loads(self.raw.decode("utf-8"))
        except (UnicodeDecodeError, ValueError):
            raise Failed(f"{self.request}: expected a JSON body, got {self.sketch()}") from None

    def object(self) -> dict[str, Any]:
        """The body, which must be a JSON object."""
        body = self.json()
        if not isinstance(body, dict):
            raise Failed(f"{self.request}: expected a JSON object, got {self.sketch()}")
        return body

    def expect(self, *statuses: int) -> Reply:
        """Fails unless the status is one of these."""
        if self.status not in statuses:
            wanted = " or ".join(str(status) for status in statuses)
            raise Failed(f"{self.request}: expected {wanted}, got {self.status} {self.sketch()}".rstrip())
        return self

    def error(self, status: int, code: str | None = None) -> dict[str, Any]:
        """The `error` object of a refusal with this status and code."""
        found = self.expect(status).object().get("error")
        if not isinstance(found, dict):
            raise Failed(f"{self.request}: expected an `error` object, got {self.sketch()}")
        if code is not None and found.get("code") != code:
            raise Failed(f"{self.request}: expected the code {code}, got {found.get('code')}: {found.get('message')}")
        return found

    def sketch(self) -> str:
        """The beginning of the body, on one line."""
        text = " ".join(self.raw.decode("utf-8", "replace").split())
        return text if len(text) <= 240 else text[:240] + "…"


class Grid:
    """A server of the contract."""

    def __init__(self, base: str, token: str | None = None, patience: float = 1.0) -> None:
        parts = urlsplit(base if "://" in base else f"http://{base}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"`{base}` is not an address like http://127.0.0.1:8080")
        self.is_tls = parts.scheme == "https"
        self.host: str = parts.hostname
        self.port: int = parts.port or (443 if self.is_tls else 80)
        self.prefix = parts.path.rstrip("/")
        self.token = token
        self.patience = patience

    def with_token(self, token: str) -> Grid:
        """The same server, seen by the owner of another key."""
        other = Grid.__new__(Grid)
        other.__dict__.update(self.__dict__)
        other.token = token
        return other

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        limit: float = ANSWER,
    ) -> Reply:
        """One request on a connection of its own. `bytes` are sent as they are, everything else as JSON."""
        wanted = self.headers(headers)
        data: bytes | None = None
        if isinstance(body, bytes):
            data = body
        elif body is not None:
            data = json.dumps(body).encode("utf-8")
        if data is not None:
            wanted.setdefault("Content-Type", "application/json")
        what = f"{method} {path}"
        seconds = limit * self.patience
        connection = self.connection(seconds)
        try:
            connection.request(method, self.prefix + path, body=data, headers=wanted)
            answer = connection.getresponse()
            return Reply(what, answer.status, dict(answer.getheaders()), answer.read())
        except socket.timeout:
            raise Failed(f"{what}: expected an answer within {seconds:g} s, got none") from None
        except (OSError, http.client.HTTPException) as error:
            raise Failed(f"{what}: expected an answer, got {type(error).__name__}: {error}") from None
        finally:
            connection.close()

    def headers(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """What every request carries."""
        headers = {"Accept": "application/json", "User-Agent": "wharf-conformance"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        headers.update(more or {})
        return headers

    def connection(self, seconds: float) -> http.client.HTTPConnection:
        """A connection that is not yet open."""
        if self.is_tls:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self.host, self.port, timeout=seconds, context=context)
        return http.client.HTTPConnection(self.host, self.port, timeout=seconds)

    def socket(self) -> socket.socket:
        """A bare connection, for clients that misbehave."""
        connection = self.connection(ANSWER * self.patience)
        connection.connect()
        return connection.sock

    def head(self, method: str, path: str, length: int) -> bytes:
        """The head of a JSON request, for a bare connection."""
        lines = [f"{method} {self.prefix}{path} HTTP/1.1", f"Host: {self.host}:{self.port}"]
        lines += [f"{name}: {value}" for name, value in self.headers().items()]
        lines += ["Content-Type: application/json", f"Content-Length: {length}", "", ""]
        return "\r\n".join(lines).encode("ascii")

    def get(self, path: str) -> Reply:
        return self.request("GET", path)

    def post(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Reply:
        return self.request("POST", path, body, headers, limit=CREATE)

    def put(self, path: str, body: Any) -> Reply:
        return self.request("PUT", path, body)

    def delete(self, path: str) -> Reply:
        return self.request("DELETE", path)

    # --- waiting ---

    def eventually(self, probe: Callable[[], T], seconds: float = SOON) -> T:
        """Calls until it does not fail; then its value. After the deadline, the last failure and the time waited."""
        limit = seconds * self.patience
        started = time.monotonic()
        pause = FIRST_PAUSE
        while True:
            try:
                return probe()
            except Failed as failure:
                if time.monotonic() - started >= limit:
                    raise Failed(f"{failure} (waited {limit:g} s)") from None
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    # --- what the server offers ---

    def knock(self) -> None:
        """Raises `Unreachable` unless an HTTP server answers and lets us in."""
        address = f"{'https' if self.is_tls else 'http'}://{self.host}:{self.port}{self.prefix}"
        try:
            reply = self.request("GET", "/sessions/conformance", limit=10.0)
        except Failed as failure:
            raise Unreachable(f"no server answers at {address}: {failure}") from None
        if reply.status in (401, 403):
            how = "the key is not accepted" if self.token else "a key is needed: --token KEY"
            raise Unreachable(f"{address} answered {reply.status}; {how}")

    def offers(self, path: str) -> tuple[bool, str]:
        """Whether a GET of this path is answered with 200, and if not, why."""
        reply = self.get(path)
        if reply.status == 200:
            return True, ""
        if reply.status in (401, 403):
            return False, f"GET {path} needs an admin key"
        if reply.status in (404, 405, 501):
            return False, f"the server has no {path.split('?')[0]}"
        raise Failed(f"GET {path}: expected 200, got {reply.status} {reply.sketch()}")

    def need(self, path: str) -> None:
        """Skips the check unless the server offers this."""
        is_there, reason = self.offers(path)
        if not is_there:
            raise Skipped(reason)

    def need_fault(self, name: str) -> None:
        """Skips the check unless faults may be injected: asked without a session, the endpoint says 400."""
        path = f"/debug/{name}"
        status = self.post(path).status
        if status != 400:
            raise Skipped(f"POST {path} is not offered ({status}); `wharf up --enable-faults` offers it")
