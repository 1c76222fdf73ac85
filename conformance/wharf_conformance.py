#!/usr/bin/env python3
"""Does this server keep the contract? A tester for Wharf and for every server of seed 000's `/sessions`.

Run it against a server that nobody else uses:

    python3 conformance/wharf_conformance.py http://127.0.0.1:8080

Its own program, in another language than Wharf, because a contract that only its own implementation's tests can read is
none. Python's standard library and nothing else, so that it runs wherever there is a Python 3.9.

Invariant: the result depends on the server, not on the machine's speed: everything is waited for until it is so, with a
deadline that `--patience` stretches. Exit status: 0 all passed or skipped, 1 something failed, 2 wrong usage or no
server.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

# The order in which they run: first what everything else is built on.
import checks_seed  # noqa: F401
import checks_requests  # noqa: F401
import checks_ends  # noqa: F401
import checks_queue  # noqa: F401
import checks_locks  # noqa: F401
import rest
from case import Case, Options
from check import CHECKS, GROUPS, Check, Failed, Skipped
from grid import Grid, Unreachable
from report import FAILED, PASSED, SKIPPED, Report, Result

NOT_USABLE = 2
INTERRUPTED = 130


def attempt(check: Check, grid: Grid, options: Options, start: rest.Snapshot) -> Result:
    """Runs one check and undoes what it did."""
    began = time.monotonic()
    outcome, message = PASSED, ""
    case: Case | None = None
    try:
        try:
            case = Case(grid, options, start)
            check.run(case)
        except Skipped as reason:
            outcome, message = SKIPPED, str(reason)
        except Failed as failure:
            outcome, message = FAILED, str(failure)
        except (KeyError, TypeError, AttributeError, IndexError, ValueError) as surprise:
            # The checks read answers as the contract says they are; one of another shape breaks it.
            outcome, message = FAILED, f"an answer of another shape: {type(surprise).__name__}: {surprise}"
    finally:
        if case is not None:
            try:
                case.close()
            except Failed as failure:
                # What broke first is told; a rule that held but left something behind has failed too.
                if outcome != FAILED:
                    outcome, message = FAILED, str(failure)
    return Result(check.name, check.group, outcome, round(time.monotonic() - began, 3), message)


def run(grid: Grid, options: Options, checks: Sequence[Check], report: Report) -> list[Result]:
    """Runs them one after the other."""
    start = rest.snapshot(grid)
    report.begin([check.name for check in checks])
    results: list[Result] = []
    for check in checks:
        results.append(attempt(check, grid, options, start))
        report.result(results[-1])
    report.end(results)
    return results


def select(only: str | None, skip: str | None) -> list[Check]:
    """The checks that these lists of names and groups leave; `ValueError` for a name that is none."""

    def named(words: str) -> list[str]:
        names: list[str] = []
        for word in (word.strip() for word in words.split(",") if word.strip()):
            if word in GROUPS:
                names += [check.name for check in CHECKS.values() if check.group == word]
            elif word in CHECKS:
                names.append(word)
            else:
                raise ValueError(f"there is no check or group `{word}`; --list shows what there is")
        return names

    wanted = list(CHECKS) if only is None else named(only)
    unwanted = [] if skip is None else named(skip)
    return [check for check in CHECKS.values() if check.name in wanted and check.name not in unwanted]


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="wharf_conformance.py",
        description="Tests a server against the contract of Wharf, or of seed 000's /sessions.",
        epilog="Exit status: 0 all passed or skipped, 1 something failed, 2 wrong usage or no server.",
    )
    parser.add_argument("url", nargs="?", help="the server, e.g. http://127.0.0.1:8080")
    parser.add_argument("--token", metavar="KEY", help="an API key; an admin key allows all checks")
    parser.add_argument("--only", metavar="NAME,…", help="only these checks or groups (seed, wharf)")
    parser.add_argument("--skip", metavar="NAME,…", help="all but these checks or groups")
    parser.add_argument("--list", action="store_true", help="print the checks and what each is about")
    parser.add_argument(
        "--idle-timeout", type=positive, default=60.0, metavar="SECONDS", help="the server's own (default 60)"
    )
    parser.add_argument(
        "--margin", type=positive, default=7.0, metavar="SECONDS", help="how late the server may notice it (default 7)"
    )
    parser.add_argument(
        "--fill", type=int, default=32, metavar="SLOTS", help="skip checks that must take more slots (default 32)"
    )
    parser.add_argument(
        "--patience", type=positive, default=1.0, metavar="FACTOR", help="multiplies every deadline (default 1)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of lines")
    parser.add_argument("--quiet", action="store_true", help="print failures and the count only")
    return parser


def positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text}")
    return number


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments()
    asked = parser.parse_args(argv)
    try:
        checks = select(asked.only, asked.skip)
        if asked.list:
            listed = Report()
            width = max(len(name) for name in CHECKS)
            for check in checks:
                listed.line(f"{check.group:5}  {check.name.ljust(width)}  {check.about}")
            return 0
        if asked.url is None:
            parser.error("which server? e.g. http://127.0.0.1:8080")
        grid = Grid(asked.url, asked.token, asked.patience)
    except ValueError as error:
        parser.error(str(error))
    options = Options(idle_timeout=asked.idle_timeout, margin=asked.margin, fill=asked.fill)
    try:
        grid.knock()
        results = run(grid, options, checks, Report(asked.json, asked.quiet))
    except Unreachable as error:
        print(f"wharf_conformance.py: {error}", file=sys.stderr)
        return NOT_USABLE
    except Failed as failure:
        print(f"wharf_conformance.py: the server stopped answering: {failure}", file=sys.stderr)
        return NOT_USABLE
    except KeyboardInterrupt:
        print("wharf_conformance.py: interrupted; what was made has been undone", file=sys.stderr)
        return INTERRUPTED
    return 1 if any(result.outcome == FAILED for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
