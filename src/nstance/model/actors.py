"""Who asked, as messages of the history name them: an operator, and the person for whom it asked.

The trap: a message may quote what an agent or a provider said. That must name nobody, or a VM could write into the audit
that a person did something.
"""

import re

_ACTOR = r"opr-[0-9a-z]{26}(?: for [A-Za-z0-9@._+:/-]+)?"
_ACTORS = rf"{_ACTOR}(?:, {_ACTOR})*"
_ANYWHERE = re.compile(rf"\bby ({_ACTORS})")
_AT_THE_END = re.compile(rf"\(by ({_ACTORS})\)$")  # of changes of settings, whose values operators choose


def named(message: str) -> list[tuple[str, str]]:
    """The operators that a message names as those who asked, each with its person."""
    last = _AT_THE_END.search(message)
    found = [actor for match in ([last] if last else _ANYWHERE.finditer(message)) for actor in match[1].split(", ")]
    return [(operator, person) for operator, _, person in (each.partition(" for ") for each in found)]


def unnamed(text: str) -> str:
    """Foreign text, for a message: it names nobody."""
    return text.replace("by opr-", "by 'opr-")
