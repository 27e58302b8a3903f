"""Loads a configuration: text to `Settings`, or an error that lists all problems.

Order matters: sizes and counts are checked before the parts are parsed, so that a hostile or broken file costs little.
"""

from pydantic import ValidationError

from nstance.config import jsonc, legacy
from nstance.config.checks import references, revalidation, validation_errors
from nstance.config.checks.problems import ProblemCollector
from nstance.config.errors import ConfigError, Problem, quoted
from nstance.config.model import settings
from nstance.config.model.settings import Settings
from nstance.model import ids

MAX_ACTIONS = 100_000  # `{{`, in all templates of a document


def locate(text: str | bytes, problems: ProblemCollector, *, source: str) -> tuple[Problem, ...]:
    """Gives the problems (warnings) of a valid configuration their places in the text."""
    document, _ = jsonc.examine(text, source=source)
    assert isinstance(document.value, dict)
    _, origins = legacy.translate(document.value, ProblemCollector())
    return problems.locate(document, source=source, origins=origins)


def load(text: str | bytes, *, shard: ids.ShardId | None = None, source: str = "config") -> Settings:
    """Raises ConfigError with all problems. `shard`: the one that this process serves."""
    document, faults = jsonc.examine(text, source=source)
    if not isinstance(document.value, dict):
        raise ConfigError((Problem(source, 1, 1, "expected an object in braces"),))
    problems = ProblemCollector()
    translated, origins = legacy.translate(document.value, problems)
    if (count := document.text.count("{{")) > MAX_ACTIONS:
        message = f"expected at most {MAX_ACTIONS:,} template actions, found {count:,}"
        raise ConfigError((Problem(source, 1, 1, message),))
    if (count := references.count_groups(translated)) > settings.MAX_GROUPS:
        message = f"expected at most {settings.MAX_GROUPS:,} groups in a shard, found {count:,}"
        raise ConfigError((Problem("groups", *document.position_of(("groups",)), message),))
    validated = None
    try:
        validated = settings.Document.model_validate(translated)
    except ValidationError as error:
        validation_errors.collect(error, settings.Document, translated, problems)
        revalidation.collect(error, settings.Document, translated, problems)
    references.check(translated, problems)
    if validated is not None and shard is not None and validated.shard.id not in (None, shard):
        message = f"expected {quoted(shard)}, the shard that this server serves, found {quoted(validated.shard.id)}"
        problems.add(("shard", "id"), message)
    problems.raise_any(document, source=source, origins=origins, faults=faults)
    assert validated is not None
    if shard is not None:
        validated = validated.model_copy(update={"shard": validated.shard.model_copy(update={"id": shard})})
    return settings.make_settings(validated)
