"""`utter doctor`: the state that takes effect, and for everything that is wrong the one thing that mends it.

Rules here: a check is one function in one of these modules, registered by `check` (registry.py); it looks through
`Look` and `Outside`, changes nothing, and has as many findings as it needs. What all checks want is asked once.
"""
