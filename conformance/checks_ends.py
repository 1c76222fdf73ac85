"""Why sessions end: each reason is brought about, and must be told by the 404 and by the history.

Its own file because the list of reasons is closed and this is its proof from outside; a reason that no client can bring
about (`out_of_memory`, `worker_lost`, …) is the end-to-end tests' matter.
"""

from __future__ import annotations

from case import Body, Case
from check import WHARF, Skipped, check, ensure

# A hang is noticed by missed probes: two of them, five seconds apart, with the default settings.
HANG = 60.0


def lasted(record: Body, least: float, field: str) -> None:
    """By the server's own clock, it did not end before its time."""
    found = record.get(field)
    is_enough = isinstance(found, (int, float)) and found >= least * 0.9
    ensure(is_enough, "GET /v1/sessions/history", f"`{field}` of at least {least:g} s", found)


@check("reason-released", WHARF)
def reason_released(case: Case) -> None:
    """DELETE ends a session as `released`, and a second DELETE changes nothing."""
    case.grid.need("/v1/sessions?limit=1")
    session = case.create()["id"]
    case.release(session)
    first = case.ends_as(session, "released")
    case.release(session)
    again = case.ends_as(session, "released")
    ensure(first.get("ended_at") == again.get("ended_at"), "DELETE twice", "one end", [first, again])


@check("reason-idle-timeout", WHARF)
def reason_idle_timeout(case: Case) -> None:
    """A session without traffic ends as `idle_timeout`."""
    case.grid.need("/v1/sessions?limit=1")
    record = case.ends_as(case.create(idle_timeout=case.short)["id"], "idle_timeout")
    lasted(record, case.short, "run_time")


@check("reason-max-duration", WHARF)
def reason_max_duration(case: Case) -> None:
    """A session at its longest life ends as `max_duration`."""
    case.grid.need("/v1/sessions?limit=1")
    record = case.ends_as(case.create(max_duration=case.short)["id"], "max_duration")
    lasted(record, case.short, "run_time")


@check("reason-connect-timeout", WHARF)
def reason_connect_timeout(case: Case) -> None:
    """A session that nobody attaches to ends as `connect_timeout`."""
    case.grid.need("/v1/sessions?limit=1")
    record = case.ends_as(case.create(connect_timeout=case.short)["id"], "connect_timeout")
    lasted(record, case.short, "run_time")


@check("reason-queue-timeout", WHARF)
def reason_queue_timeout(case: Case) -> None:
    """A wait that is too long ends as `queue_timeout`; whoever waits for the answer gets 503 and Retry-After."""
    case.fill(2)
    record = case.ends_as(case.submit(queue_timeout=case.short)["id"], "queue_timeout")
    lasted(record, case.short, "wait_time")
    reply = case.adopt(case.grid.post("/v1/sessions", case.wish(queue_timeout=case.short)))
    reply.error(503, "queue_timeout")
    after = reply.headers.get("retry-after", "")
    ensure(after.isdigit() and int(after) >= 1, reply.request, "Retry-After in whole seconds", after or "none")


@check("reason-cancelled", WHARF)
def reason_cancelled(case: Case) -> None:
    """DELETE of a session that waits ends it as `cancelled`."""
    case.fill(1)
    waiter = case.submit()["id"]
    case.is_queued(waiter, "the pool is full")
    case.release(waiter)
    case.ends_as(waiter, "cancelled")


@check("reason-killed", WHARF)
def reason_killed(case: Case) -> None:
    """An operator's clean-up ends sessions as `killed` and names them."""
    case.need_free(1)
    if case.pool()["running"] > 0:
        raise Skipped("others use the pool, and a clean-up would end their sessions too")
    session = case.create()["id"]
    reply = case.grid.post("/v1/pool/cleanup", {"max_age": 0})
    if reply.status in (401, 403, 404, 405):
        raise Skipped(f"POST /v1/pool/cleanup answers {reply.status}: not offered, or not to this key")
    ended = reply.expect(200).object().get("ended")
    ensure(ended == [session], reply.request, f"`ended` [{session}]", ended)
    case.ends_as(session, "killed")


@check("reason-browser-crashed", WHARF)
def reason_browser_crashed(case: Case) -> None:
    """A session whose browser dies ends as `browser_crashed`."""
    case.grid.need("/v1/sessions?limit=1")
    case.grid.need_fault("crash-worker")
    session = case.create()["id"]
    case.grid.post(f"/debug/crash-worker?session_id={session}").expect(200, 202, 204)
    case.ends_as(session, "browser_crashed")


@check("reason-browser-hung", WHARF)
def reason_browser_hung(case: Case) -> None:
    """A session whose browser no longer answers probes ends as `browser_hung`."""
    case.grid.need("/v1/sessions?limit=1")
    case.grid.need_fault("hang-worker")
    session = case.create()["id"]
    case.grid.post(f"/debug/hang-worker?session_id={session}").expect(200, 202, 204)
    case.ends_as(session, "browser_hung", HANG)
