"""What is printed: a line per check, a line per failure, the count; or one JSON document.

Its own file because people and machines read it: the closing line has one form and stands alone, and nothing is
coloured or drawn that the terminal cannot show.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from typing import TextIO

PASSED = "passed"
FAILED = "failed"
SKIPPED = "skipped"

MARKS = {PASSED: "✓", FAILED: "✗", SKIPPED: "–"}
PLAIN_MARKS = {PASSED: "ok", FAILED: "FAIL", SKIPPED: "skip"}
COLOURS = {PASSED: "\x1b[32m", FAILED: "\x1b[31m", SKIPPED: "\x1b[33m"}
RESET = "\x1b[0m"


@dataclass
class Result:
    """What came of one check."""

    name: str
    group: str
    outcome: str
    seconds: float
    message: str = ""


def closing(results: list[Result]) -> str:
    """The last line."""
    count = {outcome: sum(result.outcome == outcome for result in results) for outcome in MARKS}
    return f"{count[PASSED]} passed, {count[FAILED]} failed, {count[SKIPPED]} skipped"


class Report:
    """Prints results as they come."""

    def __init__(self, is_json: bool = False, is_quiet: bool = False, out: TextIO | None = None) -> None:
        self.out = out or sys.stdout
        self.is_json = is_json
        self.is_quiet = is_quiet
        encoding = (getattr(self.out, "encoding", None) or "ascii").lower().replace("-", "")
        self.marks = MARKS if encoding.startswith("utf8") else PLAIN_MARKS
        is_terminal = hasattr(self.out, "isatty") and self.out.isatty()
        self.is_coloured = is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.width = 0

    def begin(self, names: list[str]) -> None:
        """All names, for the columns."""
        self.width = max((len(name) for name in names), default=0)

    def result(self, result: Result) -> None:
        """One check is through."""
        if self.is_json or (self.is_quiet and result.outcome != FAILED):
            return
        mark = self.marks[result.outcome]
        mark = mark.ljust(4) if self.marks is PLAIN_MARKS else mark
        if self.is_coloured:
            mark = f"{COLOURS[result.outcome]}{mark}{RESET}"
        line = f"{mark} {result.name.ljust(self.width)} {result.seconds:7.2f} s"
        if result.outcome == SKIPPED:
            line += f"  skipped: {result.message}"
        self.line(line)
        if result.outcome == FAILED:
            self.line(f"      {result.message}")

    def end(self, results: list[Result]) -> None:
        """The count, alone on the last line."""
        if self.is_json:
            document = {
                "results": [asdict(result) for result in results],
                "passed": sum(result.outcome == PASSED for result in results),
                "failed": sum(result.outcome == FAILED for result in results),
                "skipped": sum(result.outcome == SKIPPED for result in results),
            }
            self.line(json.dumps(document, indent=2))
            print(closing(results), file=sys.stderr)
        else:
            self.line(closing(results))

    def line(self, text: str) -> None:
        """One line, whatever the output can spell."""
        encoding = getattr(self.out, "encoding", None) or "utf-8"
        print(text.encode(encoding, "backslashreplace").decode(encoding), file=self.out, flush=True)
