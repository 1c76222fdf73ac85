"""Locks: what they keep out, who may give them back, how long they hold.

Its own file because a lock's rules are about one name and one token. Every lock here covers the tester's own operation
only, so that nobody else on the grid is held up.
"""

from __future__ import annotations

import threading
import time

from case import IDLE, OPERATION, OTHER, Case, instant
from check import WHARF, Failed, Skipped, check, ensure
from grid import Reply

# A token with the right spelling that was never given out.
STRANGER = "lck_" + "0" * 32
# A tester that is too slow to renew in time starts again.
TRIES = 3


@check("lock-refuses", WHARF)
def lock_refuses(case: Case) -> None:
    """While a lock is held, what it covers is refused with its holder's name; other work is not."""
    lock = case.lock(description="nightly run")
    refused = case.adopt(case.grid.post("/v1/sessions", case.wish()))
    error = refused.error(409, "lock_held")
    shown = error.get("lock") or {}
    ensure(shown.get("holder") == "conformance tester", refused.request, "the holder in `error.lock`", shown)
    ensure(
        "conformance tester" in str(error.get("message")), refused.request, "the holder's name", error.get("message")
    )
    ensure("token" not in shown, refused.request, "no token in anybody else's answer", shown)
    case.release(case.create(operation=OTHER)["id"])
    case.unlock(lock).expect(200, 204)
    case.create()


@check("lock-exclusive", WHARF)
def lock_exclusive(case: Case) -> None:
    """A held lock is nobody else's: a second taker and a stranger's release or renewal are refused."""
    lock = case.lock()
    name = lock["name"]
    case.take(name, holder="somebody else").error(409, "lock_held")
    case.unlock(lock, STRANGER).expect(403, 404, 409)
    case.grid.put(f"/v1/locks/{name}", {"token": STRANGER, "ttl": IDLE}).expect(403, 404, 409)
    seen = case.grid.get(f"/v1/locks/{name}").expect(200).object()
    ensure(seen.get("holder") == "conformance tester", f"GET /v1/locks/{name}", "its first holder", seen)
    ensure("token" not in seen, f"GET /v1/locks/{name}", "no token", seen)
    listed = case.grid.get("/v1/locks").expect(200).object().get("locks") or []
    ensure(name in [one.get("name") for one in listed], "GET /v1/locks", f"{name} among them", listed)
    case.unlock(lock).expect(200, 204)
    case.grid.get(f"/v1/locks/{name}").error(404, "lock_not_found")
    case.unlock(lock).expect(404)


@check("lock-waiters", WHARF)
def lock_waiters(case: Case) -> None:
    """A waiter under a lock is not placed while others are; releasing the lock serves it."""
    slot = case.fill(2)[0]
    covered = case.submit()["id"]
    other = case.submit(operation=OTHER)["id"]
    lock = case.lock()
    case.release(slot)
    done = case.served([covered, other])
    ensure(done == [other], "GET /v1/sessions/…", f"{other}, which the lock does not cover, to be served", done)
    case.becomes_active(other)
    case.is_queued(covered, "the lock covers it")
    case.release(other)
    case.unlock(lock).expect(200, 204)
    case.becomes_active(covered)


@check("lock-expiry", WHARF)
def lock_expiry(case: Case) -> None:
    """A lock that is not renewed ends at its time, and its waiters are served then and not before."""
    slot = case.fill(1)[0]
    waiter = case.submit()["id"]
    lock = case.lock(ttl=case.short)
    case.release(slot)
    body = case.becomes_active(waiter)
    where = f"GET /v1/sessions/{waiter}"
    # Both times are the server's.
    is_later = instant(where, body.get("started_at")) >= instant("POST /v1/locks/…", lock.get("until"))
    ensure(is_later, where, f"to start after the lock's end {lock.get('until')}", body.get("started_at"))
    case.grid.eventually(lambda: case.grid.get(f"/v1/locks/{lock['name']}").expect(404))


@check("lock-renewal", WHARF)
def lock_renewal(case: Case) -> None:
    """A renewed lock holds beyond its first time."""
    for _ in range(TRIES):
        if renewed(case):
            return
    raise Failed(f"PUT /v1/locks/…: expected a renewal in time, got too late {TRIES} times; the tester was too slow")


def renewed(case: Case) -> bool:
    """False: we were too slow ourselves."""
    began = time.monotonic()
    ttl = 2 * case.short
    lock = case.lock(ttl=ttl)
    path = f"/v1/locks/{lock['name']}"
    reply = case.grid.put(path, {"token": lock["token"], "ttl": IDLE})
    if reply.status == 404 and time.monotonic() - began >= ttl:
        return False
    until = reply.expect(200).object().get("until")
    gained = (instant(reply.request, until) - instant(path, lock.get("until"))).total_seconds()
    ensure(gained > IDLE / 2, reply.request, f"`until` about {IDLE} s later", f"{gained:g} s later")
    # Its first time must have passed for the proof.
    time.sleep(max(0.0, began + ttl + case.short - time.monotonic()))
    case.grid.get(path).expect(200)
    case.adopt(case.grid.post("/v1/sessions", case.wish())).error(409, "lock_held")
    case.unlock(lock).expect(200, 204)
    return True


@check("lock-drain", WHARF)
def lock_drain(case: Case) -> None:
    """A lock with `drain` is answered when what it covers has ended, and keeps new work out meanwhile."""
    case.grid.need("/v1/locks")
    session = case.create()["id"]
    name = case.lock_name()
    answers: list[Reply] = []
    problems: list[Exception] = []
    times: list[float] = []

    def taker() -> None:
        try:
            answers.append(case.take(name, drain=IDLE))
        except (Failed, Skipped) as problem:
            problems.append(problem)
        times.append(time.monotonic())

    thread = threading.Thread(target=taker, daemon=True)
    thread.start()

    def held() -> None:
        seen = case.grid.get(f"/v1/locks/{name}").expect(200).object()
        ensure(seen.get("running") == 1, f"GET /v1/locks/{name}", "`running` 1", seen.get("running"))

    try:
        case.grid.eventually(held)
    except Failed:
        if problems:
            raise problems[0] from None
        raise
    case.adopt(case.grid.post("/v1/sessions", case.wish())).error(409, "lock_held")
    released = time.monotonic()
    case.release(session)
    thread.join(90 * case.grid.patience)
    if problems:
        raise problems[0]
    ensure(bool(answers), f"POST /v1/locks/{name}", "an answer after the drain", "none")
    body = answers[0].expect(201).object()
    ensure(times[0] > released, answers[0].request, "an answer only after the session ended", "one before")
    ensure(body.get("running") == 0, answers[0].request, "`running` 0", body.get("running"))
    case.unlock(body).expect(200, 204)


@check("lock-drain-timeout", WHARF)
def lock_drain_timeout(case: Case) -> None:
    """A drain that takes too long is 409 `lock_not_drained`, and the lock is given back."""
    case.grid.need("/v1/locks")
    session = case.create()["id"]
    name = case.lock_name()
    case.take(name, drain=case.short).error(409, "lock_not_drained")
    case.grid.eventually(lambda: case.grid.get(f"/v1/locks/{name}").expect(404))
    ensure(case.session(session).get("status") == "active", f"GET /v1/sessions/{session}", "active", "ended by a lock")
    case.release(session)
    case.create()


@check("lock-force", WHARF)
def lock_force(case: Case) -> None:
    """An operator can take a lock away; its holder's token is worth nothing then."""
    lock = case.lock(operations=[OPERATION])
    case.grid.post(f"/v1/locks/{lock['name']}/force-unlock").expect(200, 204)
    case.grid.get(f"/v1/locks/{lock['name']}").expect(404)
    case.unlock(lock).expect(404)
    case.create()
