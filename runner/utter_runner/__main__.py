"""`python -m utter_runner` is `utter-runner`."""

import sys

from utter_runner.main import main

sys.exit(main())
