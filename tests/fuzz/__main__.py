"""Mutated frames against the codec, the peer and the SDK; see `make fuzz`.

    PYTHONPATH=tests python -m fuzz [--seed N] [--start FRAME] [--frames 1000000]

The seed is printed. The same seed makes the same frames.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import traceback

from fuzz.campaign import Campaign, Failure


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description="Mutated frames against all that reads frames.")
    parser.add_argument("--seed", type=int, default=random.randrange(2**24), help="what the frames are made from")
    parser.add_argument("--start", type=int, default=0, help="the first frame")
    parser.add_argument("--frames", type=int, default=1_000_000, help="how many frames")
    args = parser.parse_args()
    # Junk and what far ends report are warnings, and there are many; errors fail a stream.
    logging.getLogger("utter_runner").setLevel(logging.ERROR)
    print(f"seed {args.seed}", flush=True)
    campaign = Campaign(args.seed, args.start, args.frames, lambda line: print(line, flush=True))
    failed = False
    try:
        campaign.run()
    except Failure:
        failed = True
        traceback.print_exc(file=sys.stdout)
    print("\n".join(campaign.summary()))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
