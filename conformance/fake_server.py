"""A grid that keeps the contract in a few hundred lines, and breaks one rule of it on request.

Its own file because it is the other side of the tester: every check must pass here, and fail when the rule that it is
about is broken. It runs no browser; a session is a row, a slot a number. The names in `broken` are the selftest's table.

Invariant: with `broken` empty it is conformant; a name in it changes one rule and nothing else.
"""

from __future__ import annotations

import json
import re
import select
import socket
import sys
import threading
import time
import uuid
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable
from urllib.parse import parse_qs, urlsplit

TICK = 0.02
BODY_LIMIT = 1024 * 1024
FIELDS = {
    "data", "operation", "description", "pool", "browser", "priority", "isolation", "queue_timeout",
    "connect_timeout", "idle_timeout", "max_duration", "keep_alive", "launch",
}  # fmt: skip


def now() -> float:
    return time.time()


def text(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat().replace("+00:00", "Z")


class Refusal(Exception):
    """An error answer."""

    def __init__(self, status: int, code: str, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status = status
        self.body = {
            "code": code, "message": message, "advice": "Do otherwise.", "request_id": f"req_{uuid.uuid4().hex}", **more
        }  # fmt: skip
        self.headers: dict[str, str] = {}


class Session:
    """A row."""

    def __init__(self, number: int, wish: dict[str, Any], idle: float) -> None:
        self.id = f"ses_{uuid.uuid4().hex}"
        self.number = number
        self.operation = wish.get("operation") or "session"
        self.data = wish.get("data", {})
        self.priority = wish.get("priority") or 0
        self.idle = wish.get("idle_timeout", idle)
        self.connect = wish.get("connect_timeout", 30)
        self.longest = wish.get("max_duration")
        self.queue = wish.get("queue_timeout") or 300
        self.status = "queued"
        self.owner: str | None = None
        self.queued_at = now()
        self.touched = self.queued_at
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.reason: str | None = None
        self.is_hung_at: float | None = None
        self.is_seed = False

    def shape(self, position: int | None = None) -> dict[str, Any]:
        end = self.ended_at or now()
        body = {
            "id": self.id, "status": self.status, "created_at": text(self.queued_at), "data": self.data,
            "operation": self.operation, "priority": self.priority, "queued_at": text(self.queued_at),
            "started_at": text(self.started_at), "ended_at": text(self.ended_at), "reason": self.reason,
            "wait_time": (self.started_at or end) - self.queued_at,
            "run_time": None if self.started_at is None else end - self.started_at,
        }  # fmt: skip
        if position is not None:
            body["position"] = position
        return body


class Server(ThreadingHTTPServer):
    """Clients that leave are part of the test, not worth a traceback."""

    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class FakeGrid:
    """The state, one lock around it, and a clock that ends what time ends."""

    def __init__(self, broken: tuple[str, ...] = (), slots: int = 2, idle: float = 1.0, is_bare: bool = False) -> None:
        self.broken: set[str] = set(broken)
        self.slots = slots
        self.idle = idle
        self.is_bare = is_bare
        self.guard = threading.RLock()
        self.changed = threading.Condition(self.guard)
        self.sessions: dict[str, Session] = {}
        self.leaked = 0
        self.number = 0
        self.limits: dict[str | None, int] = {}
        self.locks: dict[str, dict[str, Any]] = {}
        self.by_key: dict[str, tuple[Any, Session]] = {}
        self.keys: dict[str, dict[str, Any]] = {}
        self.admin = self.new_key("admin", "admin")["token"]
        self.is_over = False
        handler = type("BoundHandler", (Handler,), {"grid": self})
        self.server = Server(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> FakeGrid:
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        threading.Thread(target=self.clock, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over = True
        self.server.shutdown()
        self.server.server_close()

    # --- rules ---

    def live(self) -> list[Session]:
        return [session for session in self.sessions.values() if session.status != "ended"]

    def active(self, operation: str | None = None) -> list[Session]:
        rows = [session for session in self.live() if session.status == "active"]
        return [session for session in rows if operation in (None, session.operation)]

    def waiting(self) -> list[Session]:
        rows = [session for session in self.live() if session.status == "queued"]
        sign = -1 if "serves-last-first" in self.broken else 1
        if "ignores-priority" in self.broken:
            return sorted(rows, key=lambda one: sign * one.number)
        return sorted(rows, key=lambda one: (-one.priority, sign * one.number))

    def free(self) -> int:
        most = self.slots if "pool-limit-ignored" in self.broken else min(self.slots, self.limits.get(None, self.slots))
        return max(0, most - len(self.active()) - self.leaked)

    def lock_on(self, operation: str) -> dict[str, Any] | None:
        for lock in self.locks.values():
            if not lock["operations"] or operation in lock["operations"]:
                return lock
        return None

    def may_run(self, session: Session) -> bool:
        if self.lock_on(session.operation) and "lock-places-waiters" not in self.broken:
            return False
        limit = self.limits.get(session.operation)
        is_full = limit is not None and len(self.active(session.operation)) >= limit
        return not is_full or "operation-limit-ignored" in self.broken

    def dispatch(self) -> None:
        for session in self.waiting():
            if self.free() == 0:
                break
            if self.may_run(session):
                session.status = "active"
                session.started_at = session.touched = now()
            elif "limit-blocks-others" in self.broken and session.operation in self.limits:
                break
        self.changed.notify_all()

    def submit(self, wish: dict[str, Any], owner: str | None) -> Session:
        session = Session(self.number, wish, self.idle)
        lock = self.lock_on(session.operation)
        if lock and "lock-admits" not in self.broken:
            message = f"the lock `{lock['name']}` is held by {lock['holder']}"
            shown = lock["name"] if "lock-hides-holder" in self.broken else public(lock)
            raise Refusal(409, "lock_held", message, lock=shown)
        key = self.keys.get(owner or "")
        if key and key["max_sessions"] is not None and "quota-ignored" not in self.broken:
            held = sum(one.owner == owner for one in self.live())
            if held >= key["max_sessions"]:
                raise Refusal(429, "quota_reached", "the key holds as many as it may")
        self.number += 1
        session.owner = owner
        self.sessions[session.id] = session
        self.dispatch()
        return session

    def end(self, session: Session, reason: str) -> None:
        if session.status == "ended":
            return
        swapped = {"idle_timeout": "idle-as-released", "killed": "kill-as-released", "cancelled": "cancel-as-released"}
        swapped["browser_crashed"] = "crash-as-released"
        if swapped.get(reason) in self.broken:
            reason = "released"
        session.status, session.ended_at, session.reason = "ended", now(), reason
        self.dispatch()

    def clock(self) -> None:
        while not self.is_over:
            time.sleep(TICK)
            with self.guard:
                for name in [name for name, lock in self.locks.items() if lock["until"] <= now()]:
                    if "lock-never-expires" not in self.broken:
                        del self.locks[name]
                for session in self.live():
                    self.expire(session)
                self.dispatch()

    def expire(self, session: Session) -> None:
        at = now()
        if session.status == "queued":
            if at - session.queued_at > session.queue and "no-queue-timeout" not in self.broken:
                self.end(session, "queue_timeout")
            return
        started = session.started_at or at
        is_idle = session.idle is not None and at - session.touched > session.idle
        if is_idle and not ("no-time-to-live" in self.broken and session.is_seed):
            self.end(session, "idle_timeout")
        elif session.longest is not None and at - started > session.longest and "no-max-duration" not in self.broken:
            self.end(session, "max_duration")
        elif session.connect is not None and at - started > session.connect and not session.is_seed:
            if "no-connect-timeout" not in self.broken:
                self.end(session, "connect_timeout")
        elif session.is_hung_at is not None and at > session.is_hung_at and "hang-unnoticed" not in self.broken:
            self.end(session, "browser_hung")

    def new_key(self, name: str, role: str, most: int | None = None) -> dict[str, Any]:
        key: dict[str, Any] = {
            "id": f"key_{uuid.uuid4().hex}",
            "name": name,
            "role": role,
            "max_sessions": most,
            "revoked_at": None,
        }
        key["token"] = f"whf_{uuid.uuid4().hex}_{uuid.uuid4().hex}{uuid.uuid4().hex}"
        self.keys[key["id"]] = key
        return key

    def pool(self) -> dict[str, Any]:
        names = {one.operation for one in self.live()} | {name for name in self.limits if name}
        waiting = self.waiting()
        rows = [
            {
                "operation": name,
                "running": len(self.active(name)),
                "queued": sum(one.operation == name for one in waiting),
                "limit": self.limits.get(name),
            }
            for name in sorted(names)
        ]
        most = min(self.slots, self.limits.get(None, self.slots))
        running = len(self.active()) + self.leaked
        return {
            "pool": "default", "max": self.slots, "limit": self.limits.get(None), "effective_max": most,
            "running": running, "queued": len(waiting), "available": max(0, most - running), "operations": rows,
        }  # fmt: skip


def public(lock: dict[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in lock.items() if name != "token"}
    shown["since"], shown["until"] = text(lock["since"]), text(lock["until"])
    return shown


Route = tuple[str, "re.Pattern[str]", Callable[..., tuple[int, Any]]]
ROUTES: list[Route] = []


def route(method: str, path: str) -> Callable[[Any], Any]:
    def register(handler: Any) -> Any:
        ROUTES.append((method, re.compile(path + "$"), handler))
        return handler

    return register


class Handler(BaseHTTPRequestHandler):
    """Reads a request, calls its route, writes the answer."""

    grid: FakeGrid
    protocol_version = "HTTP/1.1"
    # Head and body in one packet: in two, each answer would wait for the client's delayed acknowledgement.
    wbufsize = 64 * 1024

    def log_message(self, *_: object) -> None:
        pass

    def answer(self) -> None:
        parts = urlsplit(self.path)
        self.query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        headers: dict[str, str] = {}
        try:
            body = self.read_body()
            self.owner, self.role = self.authenticate()
            status, shown = self.find(parts.path)(self, body)
        except Refusal as refusal:
            status, shown, headers = refusal.status, {"error": refusal.body}, refusal.headers
            if "error-without-advice" in self.grid.broken:
                refusal.body.pop("advice")
        self.write(status, shown, headers)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

    def write(self, status: int, shown: Any, headers: dict[str, str]) -> None:
        data = b"" if shown is None else json.dumps(shown).encode("utf-8")
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if data:
            self.send_header("Content-Type", "application/json")
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        try:
            self.wfile.write(data)
            self.wfile.flush()
        except OSError:
            self.close_connection = True

    def read_body(self) -> bytes:
        length = int(self.headers.get("Content-Length") or 0)
        if length > BODY_LIMIT and "large-accepted" not in self.grid.broken:
            self.close_connection = True
            raise Refusal(413, "body_too_large", "too large")
        return self.rfile.read(length) if length else b""

    def authenticate(self) -> tuple[str | None, str]:
        shown = self.headers.get("Authorization")
        if shown is None:
            return None, "admin"
        for key in self.grid.keys.values():
            is_valid = key["revoked_at"] is None or "revoked-key-works" in self.grid.broken
            if shown == f"Bearer {key['token']}" and is_valid:
                return key["id"], key["role"]
        raise Refusal(401, "unauthorized", "the key is unknown or revoked")

    def find(self, path: str) -> Callable[..., tuple[int, Any]]:
        if self.grid.is_bare and not path.startswith(("/sessions", "/debug")):
            raise Refusal(404, "route_not_found", f"there is nothing at {path}")
        methods = []
        for method, pattern, handler in ROUTES:
            match = pattern.match(path)
            if match and method == self.command:
                names = match.groups()
                return lambda self, body: handler(self, body, *names)
            if match:
                methods.append(method)
        if not methods:
            raise Refusal(404, "route_not_found", f"there is nothing at {path}")
        refusal = Refusal(405, "method_not_allowed", f"{self.command} does not apply")
        if "no-allow" not in self.grid.broken:
            refusal.headers["Allow"] = ", ".join(methods)
        raise refusal

    def json(self, body: bytes) -> Any:
        kind = self.headers.get("Content-Type") or "application/json"
        if body and not kind.startswith("application/json"):
            raise Refusal(415, "unsupported_media_type", f"expected JSON, got {kind}")
        try:
            return json.loads(body.decode("utf-8")) if body else {}
        except ValueError:
            if "malformed-accepted" in self.grid.broken:
                return {}
            raise Refusal(400, "invalid_request", "the body is not JSON") from None

    def has_left(self) -> bool:
        if not select.select([self.connection], [], [], 0)[0]:
            return False
        try:
            return not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def seen(self, session: str) -> Session:
        found = self.grid.sessions.get(session)
        is_hidden = found is not None and self.role != "admin" and found.owner != self.owner
        if found is None or (is_hidden and "key-sees-all" not in self.grid.broken):
            raise Refusal(404, "session_not_found", f"there is no session {session}")
        return found

    def need_admin(self) -> None:
        if self.role != "admin":
            raise Refusal(403, "forbidden", "an admin key is needed")

    def wait(self, session: Session) -> Session:
        """Until it is active; a client that leaves meanwhile takes it along."""
        grid = self.grid
        while session.status == "queued":
            grid.changed.wait(TICK)
            if self.has_left():
                if "queued-client-stays" in grid.broken and session.status == "queued":
                    continue
                grid.end(session, "cancelled")
        # A launch takes a moment, in which clients leave too.
        for _ in range(3):
            grid.changed.wait(TICK)
            if self.has_left() and session.status == "active":
                if "create-leaks-slot" in grid.broken and grid.leaked == 0:
                    grid.leaked += 1
                grid.end(session, "cancelled")
        if session.reason == "queue_timeout":
            refusal = Refusal(503, "queue_timeout", "the wait was too long")
            if "no-retry-after" not in grid.broken:
                refusal.headers["Retry-After"] = "1"
            raise refusal
        if session.status == "ended":
            raise Refusal(503, "queue_cleared", f"it ended: {session.reason}")
        return session


# --- seed 000 ---


@route("POST", "/sessions")
def seed_create(self: Handler, body: bytes) -> tuple[int, Any]:
    grid = self.grid
    data = self.json(body)
    with grid.guard:
        wish = {"data": data, "connect_timeout": None}
        session = grid.submit(wish, self.owner)
        session.is_seed = True
        if "number-twice" in grid.broken and isinstance(data, dict) and data.get("number") == 7:
            twins = [one for one in grid.active() if isinstance(one.data, dict) and "number" in one.data]
            if twins and twins[0] is not session:
                grid.end(session, "released")
                return 201, {**seed_shape(self, session), "id": twins[0].id}
        shown = seed_shape(self, self.wait(session))
    if "create-without-created-at" in grid.broken:
        shown.pop("created_at")
    return 201, shown


def seed_shape(self: Handler, session: Session) -> dict[str, Any]:
    return {"id": session.id, "created_at": text(session.queued_at), "data": session.data, "status": session.status}


@route("GET", "/sessions/([^/]+)")
def seed_get(self: Handler, _: bytes, name: str) -> tuple[int, Any]:
    grid = self.grid
    with grid.guard:
        if "unknown-is-found" in grid.broken and name not in grid.sessions:
            return 200, {"id": name, "created_at": text(now()), "data": {}}
        session = self.seen(name)
        is_kept = session.reason == "released" and "deleted-is-found" in grid.broken
        is_kept = is_kept or (session.reason == "browser_crashed" and "crashed-is-found" in grid.broken)
        if session.status == "ended" and not is_kept:
            raise Refusal(404, "session_ended", "it has ended", reason=session.reason)
        if "look-is-no-activity" not in grid.broken:
            session.touched = now()
        shown = seed_shape(self, session)
    if "get-other-data" in grid.broken:
        shown["data"] = {**shown["data"], "more": 1}
    return 200, shown


@route("DELETE", "/sessions/([^/]+)")
def seed_delete(self: Handler, _: bytes, name: str) -> tuple[int, Any]:
    with self.grid.guard:
        self.grid.end(self.seen(name), "released")
    return 204, None


@route("POST", "/debug/(crash|hang)-worker")
def fault(self: Handler, _: bytes, kind: str) -> tuple[int, Any]:
    if "session_id" not in self.query:
        raise Refusal(400, "invalid_request", "`session_id` is missing")
    with self.grid.guard:
        if "fault-on-anybody" in self.grid.broken and self.query["session_id"] not in self.grid.sessions:
            return 200, None
        session = self.seen(self.query["session_id"])
        if kind == "crash":
            self.grid.end(session, "browser_crashed")
        else:
            session.is_hung_at = now() + 0.1
    return 200, None


# --- /v1/sessions ---


@route("POST", "/v1/sessions")
def create(self: Handler, body: bytes) -> tuple[int, Any]:
    grid = self.grid
    wish = self.json(body)
    unknown = set(wish) - FIELDS
    if unknown and "unknown-field-accepted" not in grid.broken:
        raise Refusal(400, "invalid_request", f"unknown field `{sorted(unknown)[0]}`")
    key = self.headers.get("Idempotency-Key")
    if key is not None and "idempotency-races" in grid.broken:
        time.sleep(0.05)
    with grid.guard:
        known = grid.by_key.get(key or "")
        if "idempotency-ignored" in grid.broken:
            known = None
        if "idempotency-races" in grid.broken and known and now() - known[1].queued_at < 0.04:
            known = None
        if known is not None:
            if known[0] != wish and "idempotency-ignores-body" not in grid.broken:
                raise Refusal(409, "idempotency_key_reused", "the key was used for another request")
            session = known[1]
        else:
            session = grid.submit(wish, self.owner)
            if key is not None:
                grid.by_key[key] = (wish, session)
        if "respond-async" in (self.headers.get("Prefer") or ""):
            return 202, session.shape(place(grid, session))
        return 201, self.wait(session).shape()


def place(grid: FakeGrid, session: Session) -> int | None:
    if session.status != "queued":
        return None
    waiting = grid.waiting()
    return 1 if "everybody-is-first" in grid.broken else waiting.index(session) + 1


@route("GET", "/v1/sessions")
def listing(self: Handler, _: bytes) -> tuple[int, Any]:
    with self.grid.guard:
        rows = [one for one in self.grid.live() if self.query.get("operation") in (None, one.operation)]
        sees_all = self.role == "admin" or "key-sees-all" in self.grid.broken
        return 200, {"sessions": [one.shape() for one in rows if sees_all or one.owner == self.owner]}


@route("GET", "/v1/sessions/history")
def history(self: Handler, _: bytes) -> tuple[int, Any]:
    with self.grid.guard:
        rows = [one for one in self.grid.sessions.values() if one.status == "ended"]
        rows = [] if "history-forgets" in self.grid.broken else sorted(rows, key=lambda one: -(one.ended_at or 0))
        return 200, {"sessions": [one.shape() for one in rows]}


@route("GET", "/v1/sessions/([^/]+)")
def get(self: Handler, _: bytes, name: str) -> tuple[int, Any]:
    if not re.match(r"ses_[0-9a-f]{32}$", name):
        raise Refusal(400, "invalid_id", f"`{name}` is not an id")
    with self.grid.guard:
        session = self.seen(name)
        if session.status == "ended":
            raise Refusal(404, "session_ended", f"it has ended: {session.reason}", reason=session.reason)
        return 200, session.shape(place(self.grid, session))


@route("DELETE", "/v1/sessions/([^/]+)")
def delete(self: Handler, _: bytes, name: str) -> tuple[int, Any]:
    with self.grid.guard:
        session = self.seen(name)
        if "second-end-counts" in self.grid.broken and session.status == "ended":
            session.ended_at = now()
        self.grid.end(session, "cancelled" if session.status == "queued" else "released")
    return 204, None


# --- pool, queue, limits ---


@route("GET", "/v1/pool")
def pool(self: Handler, _: bytes) -> tuple[int, Any]:
    with self.grid.guard:
        return 200, self.grid.pool()


@route("PUT", "/v1/pool/limits")
def set_limit(self: Handler, body: bytes) -> tuple[int, Any]:
    self.need_admin()
    wish = self.json(body)
    with self.grid.guard:
        name = wish.get("operation")
        is_raise = wish["max"] is not None and wish["max"] > self.grid.limits.get(name, 0) > 0
        if wish["max"] is None:
            self.grid.limits.pop(name, None)
        elif not (is_raise and "limit-cannot-be-raised" in self.grid.broken):
            self.grid.limits[name] = wish["max"]
        self.grid.dispatch()
        return 200, self.grid.pool()


@route("POST", "/v1/pool/cleanup")
def cleanup(self: Handler, body: bytes) -> tuple[int, Any]:
    self.need_admin()
    with self.grid.guard:
        ended = self.grid.active()
        for session in ended:
            self.grid.end(session, "killed")
        return 200, {"ended": [one.id for one in ended]}


@route("GET", "/v1/queue")
def queue(self: Handler, _: bytes) -> tuple[int, Any]:
    with self.grid.guard:
        rows = [{"session": one.id, "position": at} for at, one in enumerate(self.grid.waiting(), 1)]
        return 200, {"pool": "default", "queued": len(rows), "limit": 100, "waiting": rows}


@route("DELETE", "/v1/queue")
def clear(self: Handler, _: bytes) -> tuple[int, Any]:
    with self.grid.guard:
        wanted = None if "clears-everybody" in self.grid.broken else self.query.get("operation")
        ended = [one for one in self.grid.waiting() if wanted in (None, one.operation)]
        for session in ended:
            self.grid.end(session, "killed")
        return 200, {"ended": [one.id for one in ended]}


# --- locks ---


def covered(grid: FakeGrid, lock: dict[str, Any]) -> int:
    return sum(not lock["operations"] or one.operation in lock["operations"] for one in grid.active())


@route("GET", "/v1/locks")
def locks(self: Handler, _: bytes) -> tuple[int, Any]:
    with self.grid.guard:
        rows = [public(lock) for lock in self.grid.locks.values()]
        if "ghost-lock" in self.grid.broken and self.grid.number > 3:
            rows.append({"name": "ghost"})
        return 200, {"locks": rows}


@route("GET", "/v1/locks/([^/]+)")
def get_lock(self: Handler, _: bytes, name: str) -> tuple[int, Any]:
    with self.grid.guard:
        lock = held(self, name)
        shown = dict(public(lock), running=covered(self.grid, lock))
        if "lock-shows-token" in self.grid.broken:
            shown["token"] = lock["token"]
        return 200, shown


def held(self: Handler, name: str) -> dict[str, Any]:
    lock = self.grid.locks.get(name)
    if lock is None:
        raise Refusal(404, "lock_not_found", f"nobody holds `{name}`")
    return lock


@route("POST", "/v1/locks/([^/]+)")
def take(self: Handler, body: bytes, name: str) -> tuple[int, Any]:
    self.need_admin()
    grid, wish = self.grid, self.json(body)
    with grid.guard:
        if name in grid.locks and "lock-taken-twice" not in grid.broken:
            raise Refusal(409, "lock_held", "somebody holds it", lock=public(grid.locks[name]))
        lock = {
            "name": name, "holder": wish["holder"], "operations": wish.get("operations", []), "since": now(),
            "until": now() + wish.get("ttl", 7200), "token": f"lck_{uuid.uuid4().hex}",
        }  # fmt: skip
        shown_until = lock["until"]
        if "lock-expires-early" in grid.broken:
            lock["until"] -= 0.2
        grid.locks[name] = lock
        deadline = now() + (wish.get("drain") or 0)
        while "drain" in wish and covered(grid, lock) and "drain-answers-at-once" not in grid.broken:
            if now() >= deadline:
                if "drain-keeps-lock" not in grid.broken:
                    grid.locks.pop(name, None)
                raise Refusal(409, "lock_not_drained", "sessions still run")
            grid.changed.wait(TICK)
        shown = dict(public(lock), running=covered(grid, lock), token=lock["token"], until=text(shown_until))
        return 201, shown


@route("PUT", "/v1/locks/([^/]+)")
def renew(self: Handler, body: bytes, name: str) -> tuple[int, Any]:
    self.need_admin()
    wish = self.json(body)
    with self.grid.guard:
        lock = held(self, name)
        if wish["token"] != lock["token"]:
            raise Refusal(409, "lock_held", "the token is not its holder's")
        until = now() + wish["ttl"]
        if "renewal-is-forgotten" not in self.grid.broken:
            lock["until"] = until
        return 200, dict(public(lock), until=text(until))


@route("DELETE", "/v1/locks/([^/]+)")
def release(self: Handler, _: bytes, name: str) -> tuple[int, Any]:
    self.need_admin()
    with self.grid.guard:
        lock = held(self, name)
        if self.query.get("lock_token") != lock["token"] and "stranger-releases" not in self.grid.broken:
            raise Refusal(409, "lock_held", "the token is not its holder's")
        del self.grid.locks[name]
        self.grid.dispatch()
    return 204, None


@route("POST", "/v1/locks/([^/]+)/force-unlock")
def force(self: Handler, _: bytes, name: str) -> tuple[int, Any]:
    self.need_admin()
    with self.grid.guard:
        lock = held(self, name)
        if "force-is-asked-nicely" not in self.grid.broken or lock["until"] < now() + 60:
            del self.grid.locks[name]
        self.grid.dispatch()
        return 200, public(lock)


# --- keys ---


@route("GET", "/v1/keys")
def keys(self: Handler, _: bytes) -> tuple[int, Any]:
    self.need_admin()
    rows = self.grid.keys.values()
    return 200, {"keys": [{name: value for name, value in key.items() if name != "token"} for key in rows]}


@route("POST", "/v1/keys")
def create_key(self: Handler, body: bytes) -> tuple[int, Any]:
    self.need_admin()
    wish = self.json(body)
    with self.grid.guard:
        return 201, self.grid.new_key(wish["name"], wish.get("role", "client"), wish.get("max_sessions"))


@route("DELETE", "/v1/keys/([^/]+)")
def revoke(self: Handler, _: bytes, name: str) -> tuple[int, Any]:
    self.need_admin()
    with self.grid.guard:
        self.grid.keys[name]["revoked_at"] = text(now())
        for session in [one for one in self.grid.live() if one.owner == name]:
            if "revoked-sessions-live" not in self.grid.broken:
                self.grid.end(session, "policy")
    return 204, None


def main() -> None:
    """For looking at it by hand."""
    with FakeGrid() as grid:
        print(grid.url, "admin key", grid.admin)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
