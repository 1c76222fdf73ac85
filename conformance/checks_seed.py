"""The contract of the smallest server: `/sessions`, one session per worker, a time to live, crash recovery.

Its own file because these seven hold for every server of this family, not only for Wharf; they use `/sessions` and
`/debug/crash-worker` and look at Wharf's own API only to see without touching.

Invariant: no check here needs more than seed 000's document promises.
"""

from __future__ import annotations

import threading
import time
import uuid
from typing import Any

from case import Body, Case, instant
from check import SEED, Failed, check, ensure
from grid import CREATE, Reply

PARALLEL = 10
# How often a check that was too slow for its own timing starts again.
TRIES = 3


def post(case: Case, data: Any) -> Reply:
    """POST /sessions; the session will be gone."""
    return case.adopt(case.grid.post("/sessions", data), "/sessions")


def made(case: Case, data: Any) -> Body:
    return post(case, data).expect(200, 201).object()


@check("create-session", SEED)
def create_session(case: Case) -> None:
    """POST /sessions answers with id, created_at and the data it was given."""
    data = {"conformance": uuid.uuid4().hex, "nested": [1, None, "ü"]}
    body = made(case, data)
    where = "POST /sessions"
    ensure(isinstance(body.get("id"), str) and bool(body["id"]), where, "an `id`", body.get("id"))
    instant(f"{where}, `created_at`", body.get("created_at"))
    ensure(body.get("data") == data, where, f"`data` as it was sent, {data}", body.get("data"))


@check("get-session", SEED)
def get_session(case: Case) -> None:
    """GET /sessions/{id} answers with the same session."""
    body = made(case, {"conformance": uuid.uuid4().hex})
    seen = case.grid.get(f"/sessions/{body['id']}").expect(200).object()
    for field in ("id", "created_at", "data"):
        where = f"GET /sessions/{body['id']}"
        ensure(seen.get(field) == body.get(field), where, f"`{field}` {body.get(field)}", seen.get(field))


@check("delete-session", SEED)
def delete_session(case: Case) -> None:
    """DELETE answers 204, and then GET answers 404."""
    session = made(case, {})["id"]
    case.grid.delete(f"/sessions/{session}").expect(204)
    case.grid.get(f"/sessions/{session}").expect(404)


@check("unknown-session", SEED)
def unknown_session(case: Case) -> None:
    """GET and DELETE of an id that never was answer 404."""
    for session in (str(uuid.uuid4()), f"ses_{uuid.uuid4().hex}"):
        case.grid.get(f"/sessions/{session}").expect(404)
        case.grid.delete(f"/sessions/{session}").expect(404)


@check("parallel-creates", SEED)
def parallel_creates(case: Case) -> None:
    """Ten creates at once all succeed, with ten ids; on a smaller pool they take turns."""
    ids: list[str] = []
    problems: list[str] = []

    def client(number: int) -> None:
        try:
            reply = case.grid.post("/sessions", {"number": number})
            body = reply.expect(200, 201).object()
            ids.append(str(body.get("id")))
            path = f"/sessions/{body.get('id')}"
            try:
                ensure(body.get("data") == {"number": number}, reply.request, f"number {number}", body.get("data"))
                seen = case.grid.get(path).expect(200).object()
                ensure(seen.get("data") == {"number": number}, f"GET {path}", f"number {number}", seen.get("data"))
            finally:
                # At once, so that the next in line is served: the pool may have fewer than ten slots.
                case.grid.delete(path).expect(204)
        except Failed as failure:
            problems.append(str(failure))

    clients = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(PARALLEL)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    ensure(len(set(ids)) == len(ids), "POST /sessions", f"{len(ids)} different ids", f"{len(set(ids))}")
    if problems:
        raise Failed(f"{problems[0]} ({len(problems)} of {PARALLEL} clients failed)")


@check("time-to-live", SEED)
def time_to_live(case: Case) -> None:
    """A session that nobody looks at is gone after the idle timeout, and not before."""
    can_watch, _ = case.grid.offers("/v1/sessions?limit=1")
    if not can_watch:
        unseen(case)
        return
    for _ in range(TRIES):
        if watched(case):
            return
    seconds = case.options.idle_timeout
    raise Failed(
        f"GET /sessions/…: expected 200 within {seconds:g} s, got there too late {TRIES} times; the tester was too slow"
    )


def unseen(case: Case) -> None:
    """On a bare server every look is activity, so there can be only one, after the time."""
    session = made(case, {})["id"]
    time.sleep(case.options.idle_timeout + case.options.margin * case.grid.patience)
    case.grid.get(f"/sessions/{session}").expect(404)


def watched(case: Case) -> bool:
    """Looks at it once, which keeps it, then watches where watching does not. False: we were too slow ourselves."""
    idle = case.options.idle_timeout
    began = time.monotonic()
    session = made(case, {})["id"]
    path, watch = f"/sessions/{session}", f"/v1/sessions/{session}"
    time.sleep(idle * 0.4)
    looked = time.monotonic()
    reply = case.grid.get(path)
    if reply.status == 404 and time.monotonic() - began >= idle:
        return False
    reply.expect(200)
    gone: dict[str, float | None] = {"at": None}

    def probe() -> None:
        case.grid.get(watch).expect(404)
        gone["at"] = time.monotonic()

    case.grid.eventually(probe, (idle + case.options.margin * case.grid.patience) / case.grid.patience)
    lasted = (gone["at"] or looked) - looked
    # A tenth for clocks that are not one: the server's deadline is checked, not its precision.
    ensure(lasted >= idle * 0.9, f"GET {watch}", f"200 for {idle:g} s after GET {path}", f"404 after {lasted:.1f} s")
    case.grid.get(path).expect(404)
    return True


@check("crash-recovery", SEED)
def crash_recovery(case: Case) -> None:
    """A session whose worker is killed becomes 404, and new sessions are served."""
    case.grid.need_fault("crash-worker")
    session = made(case, {})["id"]
    case.grid.post(f"/debug/crash-worker?session_id={session}").expect(200, 202, 204)
    case.grid.eventually(lambda: case.grid.get(f"/sessions/{session}").expect(404))
    # The worker comes back after a pause of its own; a server may answer 502 or 503 until then.
    again = case.grid.eventually(lambda: made(case, {"after": "crash"}), CREATE)
    case.grid.get(f"/sessions/{again['id']}").expect(200)
