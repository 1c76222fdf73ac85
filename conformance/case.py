"""One check at work: the sessions, locks and limits it makes, and how all of them go when it is over.

Its own file because cleaning up is not a check's business: whatever is made through a `Case` is undone, also when the
check fails half-way.

Invariant: after `close` the pool runs and queues what it did before, or the check has failed and says what is left.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Callable

from check import Failed, Skipped, ensure
from grid import CREATE, SOON, Grid, Reply

# Fixed names, so that a grid's statistics do not grow with every run.
OPERATION = "conformance"
OTHER = "conformance_other"
# Long enough for any check, however slow; each check releases its sessions itself.
IDLE = 600

TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)$")

Body = dict[str, Any]


@dataclass
class Options:
    """What the command line says about the server."""

    idle_timeout: float = 60.0
    margin: float = 7.0
    fill: int = 32
    # A timeout that a check waits for. Not shorter on Wharf, where a lock lives for a second at least.
    short: float = 1.0


class Case:
    """What a check gets: the server, and ways to make things that will be gone afterwards."""

    def __init__(self, grid: Grid, options: Options, start: Body | None = None) -> None:
        self.grid = grid
        self.options = options
        self.short = options.short
        # How the grid was before the first check.
        self.start: Body = start or {}
        self._undo: list[Callable[[], None]] = []
        self._before = self._counts()

    # --- the end ---

    def defer(self, undo: Callable[[], Any]) -> None:
        """Calls this at the end, the last one first."""
        self._undo.append(undo)

    def close(self) -> None:
        """Undoes everything, then waits until the pool is as it was."""
        problems: list[str] = []
        while self._undo:
            try:
                self._undo.pop()()
            except Failed as failure:
                problems.append(f"clean-up: {failure}")
        if self._before is not None:
            try:
                self.grid.eventually(self._at_rest)
            except Failed as failure:
                problems.append(str(failure))
        if problems:
            raise Failed("; ".join(problems))

    def _counts(self) -> tuple[int, int] | None:
        reply = self.grid.get("/v1/pool")
        if reply.status != 200:
            return None
        pool = reply.object()
        return pool.get("running", 0), pool.get("queued", 0)

    def _at_rest(self) -> None:
        now = self._counts()
        ensure(now == self._before, "GET /v1/pool", f"{self._before} (running, queued) as before", now)

    # --- sessions ---

    def wish(self, **fields: Any) -> Body:
        """A session that stays until it is released: nobody will attach to it."""
        wish: Body = {
            "operation": OPERATION,
            "description": "made by the conformance tester",
            "connect_timeout": None,
            "idle_timeout": IDLE,
        }
        wish.update(fields)
        return wish

    def adopt(self, reply: Reply, root: str = "/v1/sessions", grid: Grid | None = None) -> Reply:
        """Sees to it that the session of this answer, if it is one, will be gone."""
        if reply.status in (200, 201, 202):
            try:
                session = reply.object().get("id")
            except Failed:
                session = None
            if isinstance(session, str) and session:
                asker = grid or self.grid
                self.defer(lambda: asker.delete(f"{root}/{session}").expect(200, 204, 404))
        return reply

    def create(self, **fields: Any) -> Body:
        """A session that is active."""
        return self.adopt(self.grid.post("/v1/sessions", self.wish(**fields))).expect(201).object()

    def submit(self, **fields: Any) -> Body:
        """A session that is answered at once, whatever it has to wait for."""
        reply = self.grid.post("/v1/sessions", self.wish(**fields), {"Prefer": "respond-async"})
        return self.adopt(reply).expect(202).object()

    def session(self, session: str) -> Body:
        return self.grid.get(f"/v1/sessions/{session}").expect(200).object()

    def release(self, session: str) -> None:
        self.grid.delete(f"/v1/sessions/{session}").expect(204)

    def becomes_active(self, session: str) -> Body:
        """Waits until it is."""

        def probe() -> Body:
            body = self.session(session)
            ensure(body.get("status") == "active", f"GET /v1/sessions/{session}", "active", body.get("status"))
            return body

        return self.grid.eventually(probe, CREATE)

    def is_queued(self, session: str, why: str) -> Body:
        """Fails unless it waits."""
        body = self.session(session)
        ensure(body.get("status") == "queued", f"GET /v1/sessions/{session}", f"queued ({why})", body.get("status"))
        return body

    def served(self, waiting: list[str]) -> list[str]:
        """Waits until one of them waits no longer; whichever do not."""

        def probe() -> list[str]:
            done = [one for one in waiting if self.session(one).get("status") != "queued"]
            ensure(bool(done), "GET /v1/sessions/…", "a waiter to be served after a slot was freed", "none")
            return done

        return self.grid.eventually(probe)

    def ends_as(self, session: str, reason: str, seconds: float = SOON) -> Body:
        """Waits for the end; the reason must be told by the 404 and by the history, whose record is returned."""
        path = f"/v1/sessions/{session}"
        ended = self.grid.eventually(lambda: self.grid.get(path).expect(404), seconds)
        error = ended.error(404, "session_ended")
        ensure(error.get("reason") == reason, f"GET {path}", f"the reason {reason}", error.get("reason"))
        return self.grid.eventually(lambda: self.remembered(session, reason))

    def remembered(self, session: str, reason: str) -> Body:
        """The history's record."""
        path = "/v1/sessions/history?limit=1000"
        records = self.grid.get(path).expect(200).object().get("sessions") or []
        found = [record for record in records if record.get("id") == session]
        ensure(len(found) == 1, f"GET {path}", f"one record of {session}", len(found))
        ensure(found[0].get("reason") == reason, f"GET {path}", f"{session} as {reason}", found[0].get("reason"))
        ensure(bool(found[0].get("ended_at")), f"GET {path}", f"`ended_at` of {session}", found[0].get("ended_at"))
        record: Body = found[0]
        return record

    # --- the pool ---

    def pool(self) -> Body:
        return self.grid.get("/v1/pool").expect(200).object()

    def need_free(self, slots: int) -> None:
        """Skips unless so many slots are free."""
        self.grid.need("/v1/pool")
        free = self.pool().get("available", 0)
        if free < slots:
            raise Skipped(f"needs {slots} free slots, the pool has {free}")

    def fill(self, waiters: int) -> list[str]:
        """Takes every free slot; the sessions that hold them. Skips where that is impossible or too much."""
        self.need_free(1)
        self.grid.need("/v1/queue")
        queue = self.grid.get("/v1/queue").expect(200).object()
        if queue.get("queued", 0) > 0:
            raise Skipped(f"{queue['queued']} sessions of others are waiting")
        if queue.get("limit", 0) < waiters:
            raise Skipped(f"needs {waiters} places in the queue, there are {queue.get('limit')}")
        holders: list[str] = []
        # Twice: a browser that was still closing at the first look has given its slot back by the second.
        for _ in range(3):
            free = self.pool().get("available", 0)
            if free == 0 and holders:
                return holders
            if len(holders) + free > self.options.fill:
                raise Skipped(f"the pool has {len(holders) + free} free slots, more than --fill {self.options.fill}")
            new = [self.submit()["id"] for _ in range(free)]
            for session in new:
                self.becomes_active(session)
            holders += new
        raise Failed(
            f"GET /v1/pool: expected `available` 0 with {len(holders)} more sessions, got {self.pool()['available']}"
        )

    def limit(self, maximum: int | None, operation: str | None = None) -> None:
        """Sets a limit; what was there comes back at the end."""
        before = self.limit_now(operation)
        self.defer(lambda: self._put_limit(before, operation).expect(200, 204))
        reply = self._put_limit(maximum, operation)
        if reply.status in (401, 403):
            raise Skipped("PUT /v1/pool/limits needs an admin key")
        if reply.status in (404, 405):
            raise Skipped("the server has no /v1/pool/limits")
        reply.expect(200, 204)

    def limit_now(self, operation: str | None) -> int | None:
        pool = self.pool()
        if operation is None:
            return pool.get("limit")
        rows = [row for row in pool.get("operations", []) if row.get("operation") == operation]
        return rows[0].get("limit") if rows else None

    def _put_limit(self, maximum: int | None, operation: str | None) -> Reply:
        body: Body = {"max": maximum}
        if operation is not None:
            body["operation"] = operation
        return self.grid.put("/v1/pool/limits", body)

    # --- locks ---

    def lock_name(self) -> str:
        """A name that nobody else uses."""
        name = f"conformance-{secrets.token_hex(4)}"
        self.defer(lambda: self.grid.post(f"/v1/locks/{name}/force-unlock").expect(200, 204, 403, 404))
        return name

    def take(self, name: str, **fields: Any) -> Reply:
        """Asks for a lock that covers our own operation only."""
        wish: Body = {"holder": "conformance tester", "operations": [OPERATION], "ttl": IDLE}
        wish.update(fields)
        reply = self.grid.post(f"/v1/locks/{name}", wish)
        if reply.status == 403:
            raise Skipped("POST /v1/locks needs an admin key")
        return reply

    def lock(self, **fields: Any) -> Body:
        """A lock that is ours, with its token."""
        self.grid.need("/v1/locks")
        name = self.lock_name()
        body = self.take(name, **fields).expect(201).object()
        ensure(bool(body.get("token")), f"POST /v1/locks/{name}", "a `token`", body)
        return body

    def unlock(self, lock: Body, token: str | None = None) -> Reply:
        shown = lock["token"] if token is None else token
        return self.grid.delete(f"/v1/locks/{lock['name']}?lock_token={shown}")


def instant(where: str, text: object) -> datetime:
    """A time as the server writes it (RFC 3339)."""
    parts = TIME.match(str(text))
    if parts is None:
        raise Failed(f"{where}: expected a time like 2025-01-31T12:00:00Z, got {text}")
    second, fraction, zone = parts.groups()
    # Python before 3.11 reads six digits of a second and no Z.
    fraction = (fraction or "")[:6].ljust(6, "0")
    return datetime.fromisoformat(f"{second}.{fraction}{'+00:00' if zone == 'Z' else zone}")
