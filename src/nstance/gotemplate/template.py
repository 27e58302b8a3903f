"""A parsed template, which can be rendered many times."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from nstance.gotemplate import interpreter, lexer, parser
from nstance.gotemplate.limits import Limits
from nstance.gotemplate.parser import FieldUse

_MAX_CACHED_CHARACTERS = 1 << 16  # longer templates (userdata) are parsed again, so that the cache stays small
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
        """The output. `missing` is called once with the path (`.Vars.zone`) of each missing key that is printed; testing a
        key (`if`, `default`) is not printing. Raises TemplateError."""
        return interpreter.render(self._parsed, data, source=self._source, limits=limits, missing=missing)

    def fields(self) -> frozenset[tuple[str, ...]]:
        """Every path of the root data that the template uses, such as ("Instance", "ID")."""
        return frozenset(use.path for use in self._parsed.uses)

    def uses(self) -> Sequence[FieldUse]:
        """The same with positions, in the order of the text."""
        return self._parsed.uses


def parse(text: str) -> Template:
    """Raises TemplateError."""
    return _parse_cached(text) if len(text) <= _MAX_CACHED_CHARACTERS else Template(text)


_parse_cached = lru_cache(maxsize=1024)(Template)


def render(template: str, data: Mapping[str, object]) -> str:
    """A template's output for some data, within the default limits. Raises TemplateError."""
    return parse(template).render(data)
