"""Mutants of the policy against its tests; see `make mutants`.

    PYTHONPATH=tests python -m mutants [--jobs 1] [--only EXPRESSION] [--list]

It fails for a mutant that no test notices and that `accepted.toml` does not explain, and for an explanation of a mutant
that is noticed or does not exist.
"""

from __future__ import annotations

import argparse
import sys
import time
import tomllib
from pathlib import Path

from mutants.campaign import all_mutants, run

ACCEPTED = Path(__file__).with_name("accepted.toml")


def main() -> int:
    parser = argparse.ArgumentParser(prog="mutants", description="Whether the tests notice every change of a rule.")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    parser.add_argument("--only", default="", help="only mutants in whose name this regular expression is found")
    parser.add_argument("--list", action="store_true", help="only list them")
    args = parser.parse_args()
    chosen = all_mutants(args.only)
    if args.list:
        print("\n".join(mutant.name for mutant in chosen))
        return 0
    reasons: dict[str, str] = tomllib.loads(ACCEPTED.read_text(encoding="utf-8"))
    began = time.monotonic()
    survivors = run(chosen, args.jobs, lambda line: print(line, flush=True))
    names = {mutant.name for mutant in survivors}
    unexplained = [mutant for mutant in survivors if mutant.name not in reasons]
    stale = [] if args.only else sorted(reasons.keys() - names)
    for mutant in unexplained:
        print(f"neither noticed nor explained: {mutant.name} ({mutant.module}.py:{mutant.line})")
    for name in stale:
        print(f"explained, but noticed or gone: {name}")
    noticed = len(chosen) - len(survivors)
    print(
        f"{len(chosen)} mutants, {noticed} noticed, {len(survivors) - len(unexplained)} explained, "
        f"{len(unexplained)} not noticed; {time.monotonic() - began:.0f} s"
    )
    return int(bool(unexplained or stale))


if __name__ == "__main__":
    sys.exit(main())
