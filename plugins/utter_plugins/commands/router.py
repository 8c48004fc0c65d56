"""From what was said to a plan: word for word, then sentences with slots, then the nearest phrase.

Rules here: a router is built once from what is taught and never changes; what the user taught goes before what ships
with the plugin; every step says provenance "user", because the words are the user's, and the runner lowers it where
they are not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from utter_protocol.methods import PlannedStep, PlanResult

from .align import NumberSlot
from .choices import Choice, is_fixed, plausible
from .expand import MAX_FILLED, Breadth, write_out
from .nearest import Entry, NearestPhrases, Verdict
from .phrases import TextList, fill
from .sentences import Match, Sentences, is_template, parse
from .spoken import MAX_CHARS, MAX_WORDS, normalise, normalise_text
from .vocabulary import LEADING_FILLERS, TRAILING_FILLERS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .expand import Filled
    from .phrases import Phrase, SlotList
    from .spoken import Spoken

    _Words = tuple[str | NumberSlot, ...]

MAX_HINTS = 2_000
# A phrase this near goes before a sentence whose free text would swallow anything, and the user's own before any that
# ships with the plugin.
_SURE = 0.9
_MIN_HINT_WORDS = 2
# Sentences that ship with the plugin have many variants; those that can be near need few of them.
_MAX_SHIPPED = 1_500


class Router:
    """Plans for one set of phrases.

    Args:
        own: what the user taught, the most important first.
        lists: the values of the slots in it.
        shipped: what goes after it.
        shipped_lists: the values of the slots in that.

    Raises:
        PhraseError: a sentence cannot be parsed, or names a list that does not exist.
    """

    def __init__(
        self,
        own: Sequence[Phrase],
        lists: Mapping[str, SlotList],
        shipped: Sequence[Phrase] = (),
        shipped_lists: Mapping[str, SlotList] | None = None,
    ) -> None:
        self._exact: dict[bool, dict[str, Phrase]] = {True: {}, False: {}}
        self._hints: dict[str, None] = {}
        self._sentences: dict[bool, Sentences] = {}
        entries: dict[_Words, Entry] = {}
        for is_own, phrases, values in ((True, own, lists), (False, shipped, shipped_lists or {})):
            spoken_values = {name: _normalised(slot) for name, slot in values.items()}
            templates: list[Phrase] = []
            for phrase in phrases:
                with_slots = tuple(say for say in phrase.say if is_template(say))
                for say in phrase.say:
                    if say in with_slots:
                        self._write_out(phrase, say, values, spoken_values, entries)
                    elif text := normalise_text(say):
                        self._exact[is_own].setdefault(text, phrase)
                        self._hints.setdefault(say.strip(), None)
                        words = tuple(text.split())
                        entries.setdefault(words, _entry(phrase, words, {}))
                if with_slots:
                    templates.append(replace(phrase, say=with_slots))
            self._sentences[is_own] = Sentences(templates, values)
        self._nearest = NearestPhrases(list(entries.values()))
        self._fixed = [entry for entry in entries.values() if is_fixed(entry)]

    def plan(self, utterance: str) -> PlanResult:
        """Plan for an utterance. No steps means that it was not understood; `detail` says why."""
        if len(utterance) > MAX_CHARS:
            return PlanResult(detail=f"The sentence is longer than {MAX_CHARS} characters.")
        spoken = normalise(utterance)
        if len(spoken.words) > MAX_WORDS:
            return PlanResult(detail=f"The sentence has more than {MAX_WORDS} words.")
        core = _core(spoken)
        if not core.words:
            return PlanResult(detail="Nothing was said that could be a command.")
        return self._plan((spoken, core) if core.words != spoken.words else (spoken,))

    def choices(self, utterance: str) -> list[Choice]:
        """What an utterance that was not understood may have meant, each with its plan; a model may choose among them.

        Every choice is a sentence that was taught, and what it does is what was taught. None of them says the opposite
        of the utterance, or another number. At most `choices.MAX_CHOICES`; none for what `plan` would not look at.
        """
        spoken = normalise(utterance[: MAX_CHARS + 1])
        core = _core(spoken)
        if len(utterance) > MAX_CHARS or len(spoken.words) > MAX_WORDS or not core.words:
            return []
        found: dict[str, Choice] = {}
        for text, entry, numbers in plausible(core.tokens, (self._fixed, self._nearest.like(core.tokens))):
            phrase, slots = entry.payload
            found[text] = Choice(text, _result(phrase, {**slots, **_numbers(numbers)}, text, 0.0))
        return list(found.values())

    def hints(self) -> list[str]:
        """Phrases that a recogniser may expect, as they are written; the user's own first."""
        return list(self._hints)[:MAX_HINTS]

    def _plan(self, heard: Sequence[Spoken]) -> PlanResult:
        """Plan for an utterance, as it was said and, last, without the courtesies around it."""
        found = self._exactly(heard, own=True)
        if found and not found.wildcard:
            return _result(found.phrase, found.slots, heard[-1].text, 1.0)
        verdict = self._nearest.find(heard[-1].tokens)
        sure = verdict.best is not None and verdict.best.score >= _SURE
        if verdict.best and sure and verdict.best.entry.preferred:
            return _near_result(verdict)
        shipped = self._exactly(heard, own=False)
        free = found or shipped
        if shipped and not shipped.wildcard:
            free = shipped
        elif sure:
            free = None
        return _result(free.phrase, free.slots, heard[-1].text, 1.0) if free else _near_result(verdict)

    def _exactly(self, heard: Sequence[Spoken], *, own: bool) -> Match | None:
        """The phrase that was said word for word, slots filled; one without free text if there is one."""
        free: Match | None = None
        for spoken in heard:
            phrase = self._exact[own].get(spoken.text)
            if phrase:
                return Match(phrase, {}, wildcard=False, literal=len(spoken.text))
            match = self._sentences[own].match(spoken)
            if match and not match.wildcard:
                return match
            free = free or match
        return free

    def _write_out(
        self,
        phrase: Phrase,
        say: str,
        lists: Mapping[str, SlotList],
        spoken_lists: Mapping[str, SlotList],
        entries: dict[_Words, Entry],
    ) -> None:
        most = MAX_FILLED if phrase.own else _MAX_SHIPPED
        for sentence in write_out(parse(say, phrase, lists).expression, spoken_lists, most=most):
            words = sentence.words
            if words and not sentence.open:
                entries.setdefault(words, _entry(phrase, words, sentence.slots))
        self._show(phrase, say, lists)

    def _show(self, phrase: Phrase, say: str, lists: Mapping[str, SlotList]) -> None:
        """Offer hints: of the user's sentences every form, of those that ship with the plugin the first one."""
        expression = parse(say, phrase, lists, written=True).expression
        if phrase.own:
            sentences = write_out(expression, lists, written=True)
        else:
            named = {name: _first_names(values) for name, values in lists.items()}
            sentences = write_out(expression, named, written=True, breadths=(Breadth.FIRST,))
            if say != phrase.say[0] and any(sentence.slots for sentence in sentences):
                return
        for sentence in sentences:
            self._hint(sentence)

    def _hint(self, sentence: Filled) -> None:
        """Offer a sentence up to its first number: which number is said is not to be guessed."""
        text: list[str] = []
        for part in sentence.parts:
            if isinstance(part, NumberSlot):
                break
            text.append(part)
        hint = " ".join("".join(text).split())
        whole = len(text) == len(sentence.parts) and not sentence.open
        if hint and (whole or len(hint.split()) >= _MIN_HINT_WORDS):
            self._hints.setdefault(hint, None)


def _entry(phrase: Phrase, words: _Words, slots: Mapping[str, Any]) -> Entry:
    meaning = msgspec.json.encode([(step.op, fill(step.args, slots)) for step in phrase.steps])
    return Entry(words, meaning, preferred=phrase.own, payload=(phrase, slots))


def _normalised(values: SlotList) -> SlotList:
    if not isinstance(values, TextList):
        return values
    return TextList(tuple((text, value) for said, value in values.values if (text := normalise_text(said))))


def _first_names(values: SlotList) -> SlotList:
    """The first name of each value."""
    if not isinstance(values, TextList):
        return values
    names: dict[Any, str] = {}
    for said, value in values.values:
        names.setdefault(str(value), said)
    return TextList(tuple((said, value) for value, said in names.items()))


def _core(spoken: Spoken) -> Spoken:
    """The utterance without the courtesies around it ("could you ... please")."""
    words = tuple(spoken.tokens)
    first, last = 0, len(words)
    while lead := next((lead for lead in LEADING_FILLERS if words[first : min(first + len(lead), last)] == lead), None):
        first += len(lead)
    while tail := next((tail for tail in TRAILING_FILLERS if words[max(last - len(tail), first) : last] == tail), None):
        last -= len(tail)
    return spoken.part(first, last)


def _result(phrase: Phrase, slots: Mapping[str, Any], matched: str, score: float) -> PlanResult:
    steps = [
        PlannedStep(op=step.op, args=fill(step.args, slots), provenance="user", confirm=step.confirm)
        for step in phrase.steps
    ]
    return PlanResult(steps=steps, matched=matched, score=round(score, 3))


def _near_result(verdict: Verdict) -> PlanResult:
    best = verdict.best
    if best is None:
        score = round(verdict.closest.score, 3) if verdict.closest else None
        return PlanResult(detail=verdict.why, score=score)
    phrase, slots = best.entry.payload
    return _result(phrase, {**slots, **_numbers(best.numbers)}, best.entry.text, best.score)


def _numbers(said: Mapping[str, str]) -> dict[str, float | int]:
    return {name: float(value) if "." in value else int(value) for name, value in said.items()}
