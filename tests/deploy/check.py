"""Checks everything in deploy/ that can be checked without a cluster.

    python check.py               the checks, one line each
    python check.py --selftest    breaks one thing at a time in a copy, and expects exactly the checks that watch it to fail
    python check.py --list        what each check looks at
    python check.py NAME ...      only these

It needs the packages in requirements.txt, nginx, haproxy, and for one check Chromium's headless shell. No network.
"""

import argparse
import sys
import time
import traceback
from pathlib import Path

sys.dont_write_bytecode = True

import checks_compose  # noqa: E402
import checks_image  # noqa: E402
import checks_kubernetes  # noqa: E402
import checks_proxy  # noqa: E402
import checks_text  # noqa: E402
from tree import Tree  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


def all_checks():
    """Name to function, in order. A check yields one line per problem; its docstring says what it looks at."""
    modules = [checks_image, checks_compose, checks_proxy, checks_kubernetes, checks_text]
    return {name.replace("_", "-"): function for module in modules for name, function in module.CHECKS.items()}


def run(check, tree):
    """The problems of one check. One that breaks has found a problem, too."""
    try:
        return list(check(tree))
    except checks_image.CannotRun:
        raise
    except Exception as error:  # a file of another shape than expected
        where = traceback.extract_tb(error.__traceback__)[-1]
        return [f"could not be checked: {type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"]


def main():
    parser = argparse.ArgumentParser(description="Checks deploy/.")
    parser.add_argument("names", nargs="*", help="only these checks")
    parser.add_argument("--selftest", action="store_true", help="sees that every check can fail")
    parser.add_argument("--list", action="store_true", help="prints what each check looks at")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    arguments = parser.parse_args()
    checks = all_checks()
    if unknown := set(arguments.names) - set(checks):
        parser.error(f"no such check: {', '.join(sorted(unknown))}")
    if arguments.list:
        for name, check in checks.items():
            print(f"{name:22} {check.__doc__}")
        return 0
    if arguments.selftest:
        import selftest
        return selftest.main(arguments.root, checks, run)
    chosen = {name: check for name, check in checks.items() if not arguments.names or name in arguments.names}
    return report(chosen, arguments.root)


def report(checks, root):
    passed = failed = 0
    for name, check in checks.items():
        begun = time.monotonic()
        try:
            problems = run(check, Tree(root))
        except checks_image.CannotRun as reason:
            print(f"skip  {name}: {reason}")
            continue
        if problems:
            failed += 1
            for problem in problems:
                print(f"FAIL  {name}: {problem}")
        else:
            passed += 1
            print(f"ok    {name} ({time.monotonic() - begun:.1f} s)")
    if failed:
        print(f"deploy: {failed} of {passed + failed} checks failed")
        return 1
    print(f"deploy: {passed} checks passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
