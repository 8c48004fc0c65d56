"""Sentences with slots: matches an utterance against templates with hassil.

Rules here: a template that hassil cannot parse, or that names a list that does not exist, is refused with its place;
literal text is normalised before it is parsed, so that templates and utterances are written alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .phrases import AnyWords, NumberList, PhraseError, TextList, WebAddress
from .spoken import ADDRESS, normalise_template, normalise_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hassil.expression import Expression, ListReference, Sentence
    from hassil.recognize import RecognizeResult

    from .phrases import Phrase, SlotList
    from .spoken import Spoken

SYNTAX = frozenset("[](){}<>|;")


@dataclass(frozen=True)
class Match:
    """A phrase whose template matched.

    Attributes:
        phrase: the phrase.
        slots: what was said in its slots.
        wildcard: some of it was free text.
        literal: how many characters of the template's own text matched.
    """

    phrase: Phrase
    slots: Mapping[str, Any]
    wildcard: bool
    literal: int


def is_template(say: str) -> bool:
    """Whether a sentence has template syntax."""
    return not SYNTAX.isdisjoint(say)


def parse(say: str, phrase: Phrase, lists: Mapping[str, SlotList], *, written: bool = False) -> Sentence:
    """Parse a sentence template.

    Args:
        say: the template.
        phrase: whose it is.
        lists: the lists that slots may name.
        written: keep the writing, for sentences that are shown.

    Raises:
        PhraseError: its syntax is wrong, or it names an unknown list.
    """
    from hassil.parse_expression import parse_sentence  # noqa: PLC0415 - hassil takes 0.1 s to import
    from hassil.parser import ParseError  # noqa: PLC0415 - likewise

    try:
        sentence = parse_sentence(say if written else normalise_template(say), keep_text=True)
    except (ParseError, ValueError, IndexError) as error:
        raise PhraseError(
            f"{phrase.where} (phrase {say!r}): the sentence cannot be read; check its brackets ({error})."
        ) from error
    for reference in _references(sentence):
        if not reference.is_inline_range and reference.list_name not in lists:
            known = ", ".join(sorted(lists))
            raise PhraseError(f"{phrase.where} (phrase {say!r}): no list {reference.list_name!r}; there is {known}.")
    if _rules(sentence.expression):
        raise PhraseError(f"{phrase.where} (phrase {say!r}): <rules> are not supported; write (a|b) or {{slot}}.")
    return sentence


class Sentences:
    """A fixed set of templates."""

    def __init__(self, phrases: Iterable[Phrase], lists: Mapping[str, SlotList]) -> None:
        from hassil.intents import Intent, IntentData, Intents  # noqa: PLC0415 - hassil takes 0.1 s to import

        self._phrases = list(phrases)
        data = []
        for index, phrase in enumerate(self._phrases):
            for say in phrase.say:
                parse(say, phrase, lists)
            data.append(
                IntentData(sentence_texts=[normalise_template(say) for say in phrase.say], metadata={"phrase": index})
            )
        self._intents = Intents(
            language="en",
            intents={"phrase": Intent("phrase", data)},
            slot_lists={name: _slot_list(name, values) for name, values in lists.items()},
        )

    def match(self, spoken: Spoken) -> Match | None:
        """The best template for an utterance: without free text first, then the one with the most own text."""
        from hassil.recognize import recognize_all  # noqa: PLC0415 - hassil takes 0.1 s to import

        if not spoken.words or not self._phrases:
            return None
        best: Match | None = None
        for result in recognize_all(spoken.text, self._intents, language="en"):
            match = self._match(result, spoken)
            if match and (best is None or (best.wildcard, -best.literal) > (match.wildcard, -match.literal)):
                best = match
        return best

    def _match(self, result: RecognizeResult, spoken: Spoken) -> Match | None:
        slots: dict[str, Any] = {}
        for entity in result.entities_list:
            start, end = entity.text_span or (0, 0)
            if entity.value == ADDRESS:
                slots[entity.name] = spoken.address(start, end)
            elif entity.is_wildcard:
                # What was written, not how it was normalised: "What's New", not "what is new".
                slots[entity.name] = spoken.original(start, end) or entity.text
            elif isinstance(entity.value, float) and entity.value.is_integer():
                slots[entity.name] = int(entity.value)
            else:
                slots[entity.name] = entity.value
        metadata = result.intent_metadata or {}
        wildcard = any(entity.is_wildcard for entity in result.entities_list)
        return Match(self._phrases[metadata["phrase"]], slots, wildcard, result.text_chunks_matched)


def _slot_list(name: str, values: SlotList) -> Any:
    from hassil.intents import RangeSlotList, TextSlotList, WildcardSlotList  # noqa: PLC0415 - see above

    if isinstance(values, TextList):
        pairs = [(text, value) for said, value in values.values if (text := normalise_text(said))]
        return TextSlotList.from_tuples(pairs, allow_template=False, name=name)
    if isinstance(values, NumberList):
        return RangeSlotList(name=name, start=values.low, stop=values.high, step=values.step, words=False)
    if isinstance(values, WebAddress):
        return TextSlotList.from_tuples([(ADDRESS, ADDRESS)], allow_template=False, name=name)
    if isinstance(values, AnyWords):
        return WildcardSlotList(name=name)
    raise TypeError(f"{name} is no slot list: {values!r}")


def _references(sentence: Sentence) -> Sequence[ListReference]:
    from hassil.expression import Group, ListReference  # noqa: PLC0415 - see above

    if isinstance(sentence.expression, ListReference):
        return [sentence.expression]
    return list(sentence.expression.list_references()) if isinstance(sentence.expression, Group) else []


def _rules(expression: Expression) -> bool:
    from hassil.expression import Group, RuleReference  # noqa: PLC0415 - see above

    if isinstance(expression, Group):
        return any(_rules(item) for item in expression.items)
    return isinstance(expression, RuleReference)
