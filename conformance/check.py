"""What a check is: a name, a group, a sentence, a function; and the two ways in which one does not pass.

Its own file because every file of checks registers here and the runner reads nothing else.

Invariant: a check either returns, raises `Failed` with one line that names request, expected and got, or raises
`Skipped` with the reason why this server cannot be asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable

if TYPE_CHECKING:
    from case import Case

SEED = "seed"
WHARF = "wharf"
GROUPS = (SEED, WHARF)


class Failed(Exception):
    """The server broke the rule."""


class Skipped(Exception):
    """The server does not offer what the check needs."""


@dataclass(frozen=True)
class Check:
    """One rule of the contract, and how it is tried."""

    name: str
    group: str
    about: str
    run: Callable[[Case], None]


CHECKS: dict[str, Check] = {}


def check(name: str, group: str) -> Callable[[Callable[[Case], None]], Callable[[Case], None]]:
    """Registers a function; the first line of its docstring is what `--list` prints."""

    def register(run: Callable[[Case], None]) -> Callable[[Case], None]:
        assert group in GROUPS and name not in CHECKS, name
        about = (run.__doc__ or "").strip().splitlines()[0]
        CHECKS[name] = Check(name, group, about, run)
        return run

    return register


def ensure(condition: bool, where: str, expected: str, got: object) -> None:
    """Fails with the one line that a person needs."""
    if not condition:
        raise Failed(f"{where}: expected {expected}, got {got}")
