"""Hostile steps through the gate, against what the policy promises; see `make properties`.

    PYTHONPATH=tests python -m attack [--seed N] [--start STEP] [--steps 300000]

The seed is printed. The same seed makes the same steps. Without node, addresses are read by one reader only, and the
last line says so.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import random
import sys
import traceback

from attack.campaign import Campaign, Failure
from attack.other_reader import NODE, OtherReader


def main() -> int:
    parser = argparse.ArgumentParser(prog="attack", description="Hostile steps against the gate.")
    parser.add_argument("--seed", type=int, default=random.randrange(2**24), help="what the steps are made from")
    parser.add_argument("--start", type=int, default=0, help="the first step")
    parser.add_argument("--steps", type=int, default=300_000, help="how many steps")
    args = parser.parse_args()
    logging.getLogger("utter_runner").setLevel(logging.ERROR)
    print(f"seed {args.seed}", flush=True)
    failed = False
    with contextlib.ExitStack() as stack:
        reader = None if NODE is None else stack.enter_context(OtherReader())
        campaign = Campaign(args.seed, args.start, args.steps, reader, lambda line: print(line, flush=True))
        try:
            campaign.run()
        except Failure:
            failed = True
            traceback.print_exc(file=sys.stdout)
    print("\n".join(campaign.summary()))
    if NODE is None:
        print("node is not installed: no second program read the addresses")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
