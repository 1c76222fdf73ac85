"""The last check: when all others are through, the grid is as it was before the first.

Its own file because it compares two moments and belongs to no single rule: a slot, a lock, a limit or a key that stays
behind is a fault of the server or of this tester, and either must be seen.
"""

from __future__ import annotations

from typing import Any

from case import OPERATION, OTHER, Case
from check import WHARF, Skipped, check, ensure
from grid import Grid

Snapshot = dict[str, Any]


def snapshot(grid: Grid) -> Snapshot:
    """What runs, waits and is set, as far as this server tells us."""
    seen: Snapshot = {}
    pool = grid.get("/v1/pool")
    if pool.status == 200:
        body = pool.object()
        seen["running"] = body.get("running")
        seen["queued"] = body.get("queued")
        seen["limit"] = body.get("limit")
        rows = [row for row in body.get("operations", []) if row.get("limit") is not None]
        seen["operation limits"] = {row.get("operation"): row.get("limit") for row in rows}
    locks = grid.get("/v1/locks")
    if locks.status == 200:
        seen["locks"] = sorted(str(lock.get("name")) for lock in locks.object().get("locks", []))
    keys = grid.get("/v1/keys")
    if keys.status == 200:
        valid = [key for key in keys.object().get("keys", []) if not key.get("revoked_at")]
        seen["keys"] = sorted(str(key.get("id")) for key in valid)
    for operation in (OPERATION, OTHER):
        listed = grid.get(f"/v1/sessions?operation={operation}")
        if listed.status == 200:
            found = listed.object().get("sessions", [])
            seen[f"sessions of {operation}"] = sorted(str(one.get("id")) for one in found)
    return seen


@check("nothing-left", WHARF)
def nothing_left(case: Case) -> None:
    """At the end the pool, the queue, locks, limits and keys are as they were at the start."""
    before = case.start
    if not before:
        raise Skipped("the server has neither /v1/pool nor /v1/sessions to look at")

    def probe() -> None:
        now = snapshot(case.grid)
        changed = {name: value for name, value in now.items() if value != before.get(name)}
        wanted = {name: before.get(name) for name in changed}
        ensure(not changed, "at the end", f"{wanted} as at the start", changed)

    case.grid.eventually(probe)
