"""What may happen: pure decisions about steps that plugins and models propose.

Rules here: no I/O, no clock, no trio, no sockets; time and configuration are handed in. Every path to an action goes
through `decide`, and only what `decide` gives back (canonical arguments, never the step's own) is run or shown.
"""

from __future__ import annotations

from .candidates import CandidateLimitError, CandidateStore
from .decide import Allow, Confirm, Decision, Deny, PolicyRules, Step, decide, step_digest
from .ops import AdvertiseError, OpRegistry, canonical_op
from .provenance import Origin, lower
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
    "Origin",
    "PolicyRules",
    "Step",
    "UrlError",
    "canonical_op",
    "canonical_url",
    "decide",
    "lower",
    "step_digest",
]
