"""Who is served when: order, priority, limits, and clients that leave.

Its own file because all of these need a pool that is full, and prove that somebody is *not* served by somebody else who
is: a waiter that must wait is looked at after another one, whose turn it was, has become active.
"""

from __future__ import annotations

import json
import socket
import time

from case import OPERATION, OTHER, Case
from check import WHARF, check, ensure
from grid import Grid

WAITERS = 5
# Points in time, spread over a create and beyond, at which a client leaves.
LEAVERS = 8


@check("queue-order", WHARF)
def queue_order(case: Case) -> None:
    """Five waiters on a full pool have the positions 1 to 5 and are served in that order."""
    slot = case.fill(WAITERS)[0]
    waiters: list[str] = []
    for place in range(1, WAITERS + 1):
        body = case.submit()
        where = f"POST /v1/sessions (waiter {place})"
        ensure(body.get("status") == "queued", where, "queued on a full pool", body.get("status"))
        ensure(body.get("position") == place, where, f"position {place}", body.get("position"))
        waiters.append(body["id"])
    listed = case.grid.get("/v1/queue").expect(200).object().get("waiting") or []
    order = [waiter.get("session") for waiter in listed]
    ensure(order == waiters, "GET /v1/queue", f"the order of arrival {waiters}", order)
    while waiters:
        case.release(slot)
        done = case.served(waiters)
        ensure(done == waiters[:1], "GET /v1/sessions/…", f"{waiters[0]} to be served next", done)
        slot = waiters.pop(0)
        case.becomes_active(slot)
        places = [case.is_queued(waiter, "one slot was freed").get("position") for waiter in waiters]
        ensure(places == list(range(1, len(waiters) + 1)), "GET /v1/sessions/…", "positions from 1", places)


@check("queue-priority", WHARF)
def queue_priority(case: Case) -> None:
    """A higher priority is served before an older waiter, a lower one after."""
    slot = case.fill(3)[0]
    low = case.submit(priority=-5)["id"]
    plain = case.submit()["id"]
    high = case.submit(priority=50)["id"]
    place = case.session(high).get("position")
    ensure(place == 1, f"GET /v1/sessions/{high}", "position 1 for the highest priority", place)
    line = [high, plain, low]
    while line:
        case.release(slot)
        done = case.served(line)
        ensure(done == line[:1], "GET /v1/sessions/…", f"{line[0]} (by priority) to be served next", done)
        slot = line.pop(0)
        case.becomes_active(slot)


@check("queue-cleared", WHARF)
def queue_cleared(case: Case) -> None:
    """An operator's clearing of the queue sends away whom it names, as `killed`, and nobody else."""
    case.fill(2)
    stays = case.submit()["id"]
    goes = case.submit(operation=OTHER)["id"]
    reply = case.grid.delete(f"/v1/queue?operation={OTHER}").expect(200)
    ended = reply.object().get("ended")
    ensure(ended == [goes], reply.request, f"`ended` [{goes}]", ended)
    case.ends_as(goes, "killed")
    case.is_queued(stays, "it has another operation")


@check("limit-operation", WHARF)
def limit_operation(case: Case) -> None:
    """An operation at its limit waits, others pass by, and raising the limit serves it at once."""
    case.need_free(2)
    case.limit(1, OPERATION)
    case.becomes_active(case.submit()["id"])
    waiter = case.submit()["id"]
    other = case.submit(operation=OTHER)["id"]
    case.becomes_active(other)
    case.is_queued(waiter, f"the limit of {OPERATION} is 1")
    rows = [row for row in case.pool().get("operations", []) if row.get("operation") == OPERATION]
    found = [(row.get("running"), row.get("queued"), row.get("limit")) for row in rows]
    ensure(found == [(1, 1, 1)], "GET /v1/pool", f"{OPERATION} with (running, queued, limit) (1, 1, 1)", found)
    # On a pool of two slots the raised limit is of no use while the other session has one.
    case.release(other)
    case.limit(2, OPERATION)
    case.becomes_active(waiter)


@check("limit-pool", WHARF)
def limit_pool(case: Case) -> None:
    """A pool at its limit queues although slots are free, and raising the limit serves at once."""
    case.need_free(2)
    before = case.pool()
    case.limit(before["running"] + 1)
    shown = case.pool()
    ensure(shown.get("available") == 1, "GET /v1/pool", "`available` 1 under the limit", shown.get("available"))
    case.becomes_active(case.submit()["id"])
    waiter = case.submit()
    ensure(waiter.get("status") == "queued", "POST /v1/sessions", "queued at the pool's limit", waiter.get("status"))
    case.limit(before["running"] + 2)
    case.becomes_active(waiter["id"])


def ask(case: Case, operation: str) -> socket.socket:
    """A client that has sent its whole request for a session."""
    body = json.dumps(case.wish(operation=operation, connect_timeout=case.short)).encode("ascii")
    client = case.grid.socket()
    client.sendall(case.grid.head("POST", "/v1/sessions", len(body)) + body)
    return client


def live(grid: Grid, operation: str) -> list[str]:
    """The sessions of an operation that have not ended."""
    path = f"/v1/sessions?operation={operation}&limit=1000"
    return [session["id"] for session in grid.get(path).expect(200).object().get("sessions", [])]


def none_live(grid: Grid, operation: str) -> None:
    left = live(grid, operation)
    ensure(not left, f"GET /v1/sessions?operation={operation}", "nothing of clients that left", left)


@check("cancel-queued", WHARF)
def cancel_queued(case: Case) -> None:
    """A client that leaves while it waits is out of the queue, and no session is made for it."""
    case.fill(1)
    client = ask(case, OTHER)
    try:

        def one() -> str:
            waiting = live(case.grid, OTHER)
            ensure(len(waiting) == 1, f"GET /v1/sessions?operation={OTHER}", "the waiting client", waiting)
            return waiting[0]

        waiter = case.grid.eventually(one)
        case.defer(lambda: case.grid.delete(f"/v1/sessions/{waiter}").expect(204, 404))
        case.is_queued(waiter, "the pool is full")
    finally:
        client.close()
    case.ends_as(waiter, "cancelled")
    listed = case.grid.get("/v1/queue").expect(200).object().get("waiting") or []
    ensure(not listed, "GET /v1/queue", "nobody waiting", listed)


@check("cancel-create", WHARF)
def cancel_create(case: Case) -> None:
    """Clients that leave during a create, at any moment of it, leak no slot."""
    case.need_free(1)
    free = case.pool()["available"]
    began = time.monotonic()
    case.release(case.create()["id"])
    usual = time.monotonic() - began
    case.defer(lambda: clear(case, OTHER))
    for number in range(LEAVERS):
        client = ask(case, OTHER)
        # Not a wait for anything: the moment is what is tried.
        time.sleep(usual * 2 * number / LEAVERS)
        client.close()
    # What was answered in full before its client left lives until its connect timeout.
    case.grid.eventually(lambda: none_live(case.grid, OTHER))

    def all_free() -> None:
        now = case.pool()["available"]
        ensure(now == free, "GET /v1/pool", f"`available` {free} after all clients left", now)

    case.grid.eventually(all_free)
    case.becomes_active(case.submit()["id"])


def clear(case: Case, operation: str) -> None:
    for session in live(case.grid, operation):
        case.grid.delete(f"/v1/sessions/{session}").expect(204, 404)
