"""A configuration's text becomes settings, or an error that names everything that is wrong with it.

Order matters: the text is measured before it is read, groups and template actions are counted before anything looks at
them, so that a hostile or mistaken file costs little.
"""

from pydantic import ValidationError

from nstance.config import checks, jsonc, legacy, messages, rules_beside, settings
from nstance.config.errors import ConfigError, Problem, quoted
from nstance.config.findings import Findings
from nstance.config.settings import Settings
from nstance.model import ids

MAX_ACTIONS = 100_000  # in all templates of a document: each one costs time to read


def locate(text: str | bytes, findings: Findings, *, source: str) -> tuple[Problem, ...]:
    """What was found in a configuration that is valid, with its places in the text."""
    document, _ = jsonc.examine(text, source=source)
    assert isinstance(document.value, dict)
    _, origins = legacy.translate(document.value, Findings())
    return findings.problems(document, source=source, origins=origins)


def load(text: str | bytes, *, shard: ids.ShardId | None = None, source: str = "config") -> Settings:
    """Raises ConfigError with all problems. `shard` is the one that this process serves."""
    document, faults = jsonc.examine(text, source=source)
    if not isinstance(document.value, dict):
        raise ConfigError((Problem(source, 1, 1, "expected an object in braces"),))
    findings = Findings()
    today, origins = legacy.translate(document.value, findings)
    if (count := document.text.count("{{")) > MAX_ACTIONS:
        raise ConfigError(
            (Problem(source, 1, 1, f"expected at most {MAX_ACTIONS:,} template actions, found {count:,}"),)
        )
    if (count := checks.count_groups(today)) > settings.MAX_GROUPS:
        message = f"expected at most {settings.MAX_GROUPS:,} groups in a shard, found {count:,}"
        raise ConfigError((Problem("groups", *document.position_of(("groups",)), message),))
    validated = None
    try:
        validated = settings.Document.model_validate(today)
    except ValidationError as error:
        messages.collect(error, settings.Document, today, findings)
        rules_beside.collect(error, settings.Document, today, findings)
    checks.check(today, findings)
    if validated is not None and shard is not None and validated.shard.id not in (None, shard):
        given = quoted(validated.shard.id)
        findings.add(("shard", "id"), f"expected the shard that this server serves, {quoted(shard)}, found {given}")
    findings.raise_any(document, source=source, origins=origins, faults=faults)
    assert validated is not None
    if shard is not None:
        validated = validated.model_copy(update={"shard": validated.shard.model_copy(update={"id": shard})})
    return settings.settings(validated)
