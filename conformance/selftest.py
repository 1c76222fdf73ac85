"""The tester's own test: a check that cannot fail is worth nothing.

    python3 conformance/selftest.py

Every check passes against a conformant server (`fake_server.py`), and for every check there is a server that breaks one
rule, at which exactly that check fails. Its own file, and run by Wharf's tests, because it judges Wharf and must
be judged itself.

Invariant: every check is made to fail by at least one entry of `RULES`.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import unittest
from concurrent.futures import ProcessPoolExecutor

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import wharf_conformance as tester  # noqa: E402
from case import Options  # noqa: E402
from check import CHECKS, Failed  # noqa: E402
from fake_server import FakeGrid  # noqa: E402
from grid import Grid  # noqa: E402
from report import FAILED, PASSED, SKIPPED, Report, Result, closing  # noqa: E402

# A broken rule is seen when a deadline passes: short ones, since the fake needs milliseconds.
PATIENCE = float(os.environ.get("SELFTEST_PATIENCE", "0.2"))
IDLE = 1.0
SHORT = 0.3
AT_ONCE = 12
TESTER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "wharf_conformance.py")

# What is broken, and which checks must fail; no other may.
RULES: dict[str, tuple[str, ...]] = {
    "create-without-created-at": ("create-session", "get-session"),
    "get-other-data": ("get-session", "parallel-creates"),
    "deleted-is-found": ("delete-session",),
    "unknown-is-found": ("unknown-session",),
    "number-twice": ("parallel-creates",),
    "no-time-to-live": ("time-to-live",),
    "look-is-no-activity": ("time-to-live",),
    "crashed-is-found": ("crash-recovery",),
    "error-without-advice": ("error-body", "malformed-json", "unknown-field", "oversized-body", "wrong-method"),
    "malformed-accepted": ("malformed-json",),
    "unknown-field-accepted": ("unknown-field",),
    "large-accepted": ("oversized-body",),
    "no-allow": ("wrong-method",),
    "fault-on-anybody": ("fault-arguments",),
    "idempotency-ignored": ("idempotent-create",),
    "idempotency-races": ("idempotent-create",),
    "idempotency-ignores-body": ("idempotent-create",),
    "key-sees-all": ("key-sees-its-own",),
    "quota-ignored": ("key-sees-its-own",),
    "revoked-key-works": ("key-revoked",),
    "revoked-sessions-live": ("key-revoked",),
    "second-end-counts": ("reason-released",),
    "idle-as-released": ("reason-idle-timeout",),
    "no-max-duration": ("reason-max-duration",),
    "no-connect-timeout": ("reason-connect-timeout", "cancel-create"),
    "no-queue-timeout": ("reason-queue-timeout",),
    "no-retry-after": ("reason-queue-timeout",),
    "cancel-as-released": ("reason-cancelled", "cancel-queued"),
    "kill-as-released": ("reason-killed", "queue-cleared"),
    "crash-as-released": ("reason-browser-crashed",),
    "hang-unnoticed": ("reason-browser-hung",),
    "history-forgets": (
        "key-revoked", "reason-released", "reason-idle-timeout", "reason-max-duration", "reason-connect-timeout",
        "reason-queue-timeout", "reason-cancelled", "reason-killed", "reason-browser-crashed", "reason-browser-hung",
        "cancel-queued", "queue-cleared",
    ),
    "serves-last-first": ("queue-order",),
    "everybody-is-first": ("queue-order",),
    "ignores-priority": ("queue-priority",),
    "clears-everybody": ("queue-cleared",),
    "operation-limit-ignored": ("limit-operation",),
    "limit-blocks-others": ("limit-operation",),
    "limit-cannot-be-raised": ("limit-operation", "limit-pool"),
    "pool-limit-ignored": ("limit-pool",),
    "queued-client-stays": ("cancel-queued",),
    "create-leaks-slot": ("cancel-create", "nothing-left"),
    "lock-admits": ("lock-refuses", "lock-renewal", "lock-drain"),
    "lock-hides-holder": ("lock-refuses",),
    "lock-taken-twice": ("lock-exclusive",),
    "lock-shows-token": ("lock-exclusive",),
    "stranger-releases": ("lock-exclusive",),
    "lock-places-waiters": ("lock-waiters", "lock-expiry"),
    "lock-never-expires": ("lock-expiry",),
    "lock-expires-early": ("lock-expiry",),
    "renewal-is-forgotten": ("lock-renewal",),
    "drain-answers-at-once": ("lock-drain", "lock-drain-timeout"),
    "drain-keeps-lock": ("lock-drain-timeout",),
    "force-is-asked-nicely": ("lock-force", "nothing-left"),
    "ghost-lock": ("nothing-left",),
}  # fmt: skip


def outcome(grid: FakeGrid, only: str = "seed,wharf") -> dict[str, Result]:
    """What the tester says of a server."""
    report = Report(out=io.StringIO())
    options = Options(idle_timeout=grid.idle, margin=3.0, short=SHORT)
    client = Grid(grid.url, grid.admin, PATIENCE)
    results = tester.run(client, options, tester.select(only, None), report)
    return {result.name: result for result in results}


def judge(rule: str) -> dict[str, Result]:
    """What the tester says of a server that breaks this rule."""
    with FakeGrid((rule,), idle=IDLE) as grid:
        return outcome(grid)


class Conformant(unittest.TestCase):
    def test_everything_passes_on_a_conformant_server(self) -> None:
        with FakeGrid(idle=IDLE) as grid:
            results = outcome(grid)
        bad = {name: result.message for name, result in results.items() if result.outcome != PASSED}
        self.assertEqual(bad, {})

    def test_one_slot_is_enough_where_two_are_not_needed(self) -> None:
        with FakeGrid(slots=1, idle=IDLE) as grid:
            results = outcome(grid)
        other = {name: result.outcome for name, result in results.items() if result.outcome != PASSED}
        self.assertEqual(other, {"limit-operation": SKIPPED, "limit-pool": SKIPPED})

    def test_bare_seed_server_passes_its_group_and_skips_the_other(self) -> None:
        with FakeGrid(idle=IDLE, is_bare=True) as grid:
            results = outcome(grid)
        for name, result in results.items():
            is_ours = CHECKS[name].group == "seed" or name == "fault-arguments"
            self.assertEqual(result.outcome, PASSED if is_ours else SKIPPED, f"{name}: {result.message}")


class Broken(unittest.TestCase):
    """One server per broken rule."""

    def test_each_broken_rule_fails_exactly_its_check(self) -> None:
        # Processes, because tester and server are threads that wait for each other; spawned, because they are.
        with ProcessPoolExecutor(AT_ONCE, multiprocessing.get_context("spawn")) as pool:
            for rule, results in zip(RULES, pool.map(judge, RULES)):
                with self.subTest(rule):
                    failed = {name: result.message for name, result in results.items() if result.outcome == FAILED}
                    self.assertEqual(set(failed), set(RULES[rule]), json.dumps(failed, indent=1))
                    for message in failed.values():
                        self.assertRegex(message, r"expected .*got |another shape")
                        self.assertNotIn("\n", message)

    def test_bare_server_without_time_to_live_fails(self) -> None:
        with FakeGrid(("no-time-to-live",), idle=IDLE, is_bare=True) as grid:
            results = outcome(grid, "seed")
        failed = [name for name, result in results.items() if result.outcome == FAILED]
        self.assertEqual(failed, ["time-to-live"])

    def test_no_check_is_without_a_rule_that_fails_it(self) -> None:
        reached = {name for names in RULES.values() for name in names}
        self.assertEqual(set(CHECKS) - reached, set())


class CommandLine(unittest.TestCase):
    """The program as people call it."""

    def call(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-B", TESTER, *arguments]
        return subprocess.run(
            command, capture_output=True, encoding="utf-8", env={**os.environ, **environment}, timeout=120, check=False
        )

    def test_closing_line_stands_alone_and_exit_status_tells(self) -> None:
        with FakeGrid(idle=IDLE) as grid:
            good = self.call(grid.url, "--only", "create-session,key-revoked", PYTHONIOENCODING="utf-8")
        self.assertEqual(good.returncode, 0, good)
        self.assertEqual(good.stdout.splitlines()[-1], "1 passed, 0 failed, 1 skipped")
        self.assertIn("✓ create-session", good.stdout)
        self.assertIn("skipped: needs an admin key", good.stdout)
        with FakeGrid(("unknown-is-found",), idle=IDLE) as grid:
            bad = self.call(grid.url, "--only", "unknown-session", "--quiet", PYTHONIOENCODING="ascii")
        self.assertEqual(bad.returncode, 1, bad)
        first, second, last = bad.stdout.splitlines()
        self.assertTrue(first.startswith("FAIL unknown-session"), first)
        self.assertIn("expected 404, got 200", second)
        self.assertEqual(last, "0 passed, 1 failed, 0 skipped")
        self.assertNotIn("\x1b", good.stdout + bad.stdout)

    def test_json_is_one_document(self) -> None:
        with FakeGrid(idle=IDLE) as grid:
            result = self.call(grid.url, "--only", "get-session", "--json")
        document = json.loads(result.stdout)
        self.assertEqual((document["passed"], document["failed"], document["skipped"]), (1, 0, 0))
        self.assertEqual(document["results"][0]["name"], "get-session")

    def test_list_names_every_check(self) -> None:
        lines = self.call("--list").stdout.splitlines()
        self.assertEqual([line.split()[1] for line in lines], list(CHECKS))

    def test_wrong_usage_and_no_server_are_2(self) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            nobody = f"http://127.0.0.1:{unused.getsockname()[1]}"
            calls: list[tuple[str, ...]] = [
                (nobody,), (), ("ftp://x",), (nobody, "--only", "no-such"), (nobody, "--patience", "0"),
            ]  # fmt: skip
            for arguments in calls:
                with self.subTest(arguments):
                    result = self.call(*arguments)
                    self.assertEqual(result.returncode, 2, result)
                    self.assertTrue(result.stderr.strip())

    def test_wrong_key_is_2(self) -> None:
        with FakeGrid(idle=IDLE) as grid:
            result = self.call(grid.url, "--token", "nonsense")
        self.assertEqual(result.returncode, 2, result)
        self.assertIn("401", result.stderr)


class Parts(unittest.TestCase):
    def test_eventually_tells_the_last_failure_and_the_wait(self) -> None:
        def probe() -> None:
            raise Failed("GET /x: expected 1, got 2")

        with self.assertRaisesRegex(Failed, r"expected 1, got 2 \(waited 0.01 s\)"):
            Grid("http://127.0.0.1:1", patience=0.01).eventually(probe, 1.0)

    def test_closing_counts(self) -> None:
        results = [Result("a", "seed", PASSED, 0), Result("b", "seed", SKIPPED, 0), Result("c", "seed", FAILED, 0)]
        self.assertEqual(closing(results), "1 passed, 1 failed, 1 skipped")


if __name__ == "__main__":
    unittest.main()
