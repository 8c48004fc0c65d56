"""What may happen: pure decisions about steps that plugins and models propose.

Rules here: no I/O, no clock, no trio, no sockets; time and configuration are handed in. Every path to an action goes
through `decide`, and only what `decide` gives back (canonical arguments, never the step's own) is run or shown.
"""

from __future__ import annotations

from .candidates import CandidateLimitError, CandidateStore
from .decide import Step, decide
from .decisions import Allow, Confirm, Decision, Deny, step_digest
from .ops import AdvertiseError, OpRegistry, canonical_op
from .overview import overview
from .provenance import Origin, lower
from .rates import Rate, Runs, parse_rate
from .rules import OpRule, PolicyRules
from .urls import CanonicalUrl, UrlError, canonical_url

__all__ = [
    "AdvertiseError",
    "Allow",
    "CandidateLimitError",
    "CandidateStore",
    "CanonicalUrl",
    "Confirm",
    "Decision",
    "Deny",
    "OpRegistry",
    "OpRule",
    "Origin",
    "PolicyRules",
    "Rate",
    "Runs",
    "Step",
    "UrlError",
    "canonical_op",
    "canonical_url",
    "decide",
    "lower",
    "overview",
    "parse_rate",
    "step_digest",
]
