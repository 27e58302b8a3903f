"""A template that was read once and can be rendered often."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from nstance.gotemplate import interpreter, lexer, parser
from nstance.gotemplate.limits import Limits
from nstance.gotemplate.parser import Use

_CACHED_TEXT = 1 << 16  # longer templates (userdata) are read anew, so that the cache stays small
_DEFAULTS = Limits()


class Template:
    """Immutable, and safe to share between tasks and threads."""

    __slots__ = ("_parsed", "_source")

    def __init__(self, text: str) -> None:
        """Raises TemplateError."""
        self._source = lexer.Source(text)
        self._parsed = parser.parse(self._source)

    @property
    def text(self) -> str:
        return self._source.text

    def render(
        self, data: Mapping[str, object], *, limits: Limits = _DEFAULTS, missing: Callable[[str], None] | None = None
    ) -> str:
        """The output. `missing` is told the path (`.Vars.zone`) of each key that is printed although the data lacks it,
        once per rendering; testing for a key (`if`, `default`) is not printing. Raises TemplateError."""
        return interpreter.render(self._parsed, data, source=self._source, limits=limits, missing=missing)

    def fields(self) -> frozenset[tuple[str, ...]]:
        """Every path from the root data that the template names, such as ("Instance", "ID")."""
        return frozenset(use.path for use in self._parsed.uses)

    def uses(self) -> Sequence[Use]:
        """The same with places, in the order of the text."""
        return self._parsed.uses


def parse(text: str) -> Template:
    """Raises TemplateError."""
    return _remembered(text) if len(text) <= _CACHED_TEXT else Template(text)


_remembered = lru_cache(maxsize=1024)(Template)


def render(template: str, data: Mapping[str, object]) -> str:
    """A template's output for some data, within the default limits. Raises TemplateError."""
    return parse(template).render(data)
