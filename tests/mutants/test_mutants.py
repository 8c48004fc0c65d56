"""What `make mutants` changes, and that its list of explained mutants is about mutants that exist."""

from __future__ import annotations

import tomllib

from mutants.__main__ import ACCEPTED
from mutants.campaign import _code, all_mutants
from mutants.operators import mutants

SOURCE = '''
"""A docstring."""
LIMIT = 4
NAMES = frozenset({"a", "b"})

class Thing:
    def may(self, x: int, *, loud: bool = False) -> bool:
        """Another."""
        if x > LIMIT and not loud:
            raise ValueError("too much")
        return x in (1, 2)
'''


def test_each_kind_of_change_is_made_once_and_named() -> None:
    found = {mutant.name: mutant for mutant in mutants("m", SOURCE)}
    assert {
        "m.<module>: LIMIT = 4 => LIMIT = 5",
        "m.<module>: {'a', 'b'} => {'b'}",
        "m.Thing.may: x > LIMIT and (not loud) => x > LIMIT or not loud",
        "m.Thing.may: x > LIMIT and (not loud) => not loud",
        "m.Thing.may: x > LIMIT => x >= LIMIT",
        "m.Thing.may: not loud => loud",
        "m.Thing.may: raise ValueError('too much') => pass",
        "m.Thing.may: return x in (1, 2) => return None",
        "m.Thing.may: x in (1, 2) => x not in (1, 2)",
        "m.Thing.may: (1, 2) => (2,)",
    } <= found.keys()
    assert not any("docstring" in name or "Another" in name for name in found)
    assert found["m.<module>: LIMIT = 4 => LIMIT = 5"].where == ""
    assert found["m.Thing.may: not loud => loud"].where == "Thing.may"
    assert len({mutant.source for mutant in found.values()}) == len(found)


def test_the_changed_code_of_a_function_is_found_and_differs() -> None:
    mutant = next(one for one in mutants("m", SOURCE) if "raise" in one.name)
    original, changed = (_code(compile(text, "m", "exec"), "Thing.may") for text in (SOURCE, mutant.source))
    assert original.co_name == changed.co_name == "may"
    assert original.co_code != changed.co_code


def test_what_is_explained_exists_and_has_a_reason() -> None:
    reasons = tomllib.loads(ACCEPTED.read_text(encoding="utf-8"))
    names = [mutant.name for mutant in all_mutants()]
    assert len(set(names)) == len(names)
    assert reasons.keys() <= set(names)
    assert all(reason.endswith(".") for reason in reasons.values())
