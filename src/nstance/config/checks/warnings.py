"""Finds settings that are valid but probably a mistake.

Undefined vars are found by rendering each template with sample values: a var that would render empty is reported, a var
that is only tested (`if`, `default`) is not.
"""

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence

from nstance import gotemplate
from nstance.config import overrides
from nstance.config.checks import provider_rules, template_fields
from nstance.config.checks.problems import ProblemCollector
from nstance.config.dynamic import DynamicGroups
from nstance.config.jsonc import Path
from nstance.config.model.settings import Settings
from nstance.config.model.workload import CertificateFile, SecretFile
from nstance.config.resolve import Resolved
from nstance.model import durations
from nstance.model.ids import GroupKey

_MAX_NAMED_GROUPS = 3  # in one message
_SPOT_NOTICE_SECONDS = {"aws": 120.0, "gcp": 30.0}  # from an interruption notice to the end of the VM

Groups = Mapping[GroupKey, Resolved]


def find_warnings(settings: Settings, groups: Groups, dynamic: DynamicGroups) -> ProblemCollector:
    """`groups`: all groups, resolved from the settings and the dynamic groups that are known."""
    problems = ProblemCollector()
    _find_undefined(settings, groups, problems)
    _find_unpriced(settings, groups, problems)
    for key, resolved in groups.items():
        path: Path = ("groups", key.tenant, key.name)
        static = key in settings.groups
        if static:
            for each in overrides.list_overrides(dynamic.groups.get(key), resolved.file):
                if each.hides_file:
                    problems.add((*path, *each.field.split(".", 1)), overrides.describe(key, each))
        _check_limits(settings, resolved, path, problems, prefix="" if static else f"group {key}: ")
    return problems


def _find_undefined(settings: Settings, groups: Groups, problems: ProblemCollector) -> None:
    missing_in: dict[tuple[Path, str], list[GroupKey]] = {}
    rendered: dict[tuple[str, frozenset[str]], list[tuple[Path, str]]] = {}
    for key, resolved in groups.items():
        values = sample(settings, resolved)
        kind = resolved.group.template, frozenset(resolved.vars)  # groups with the same key lack the same vars
        if kind not in rendered:
            texts = _texts(settings, resolved)
            rendered[kind] = [(path, name) for path, text in texts for name in undefined(text, values)]
        own = settings.groups[key].args if key in settings.groups else {}
        texts = template_fields.strings(("groups", key.tenant, key.name, "args"), own)
        found = [(path, name) for path, text in texts for name in undefined(text, values)]
        for place in (*rendered[kind], *found):
            missing_in.setdefault(place, []).append(key)
    for (path, name), keys in missing_in.items():
        problems.add(path, f"var {name} is not defined for {_named(keys)}: it renders empty; set it in vars")


def _named(keys: Sequence[GroupKey]) -> str:
    more = f" and {len(keys) - _MAX_NAMED_GROUPS} more" if len(keys) > _MAX_NAMED_GROUPS else ""
    return ", ".join(map(str, keys[:_MAX_NAMED_GROUPS])) + more


def _find_unpriced(settings: Settings, groups: Groups, problems: ProblemCollector) -> None:
    if settings.shard.prices is None:
        return
    prices = settings.shard.prices.make()
    missing: dict[str, list[GroupKey]] = {}
    for key, resolved in groups.items():
        group = resolved.group
        for market, kind in itertools.product(group.markets or ("",), group.instance_types or ("",)):
            if prices.of(market, kind) is None:
                name = " ".join(filter(None, (market, kind))) or "instances without a type"
                missing.setdefault(name, []).append(key)
    for name, keys in missing.items():
        problems.add(
            ("shard", "prices", "hourly"), f"no price for {name} of {_named(keys)}: what they cost is not known"
        )


def undefined(text: str, values: Mapping[str, object]) -> list[str]:
    """The vars that a template prints and that are not set."""
    if "{{" not in text:
        return []
    missing: dict[str, None] = {}
    # With real values it may render; vars missed before the failure still count.
    with contextlib.suppress(gotemplate.TemplateError):
        gotemplate.parse(text).render(values, missing=lambda path: missing.update({path: None}))
    return [path.removeprefix(".Vars.") for path in missing if path.startswith(".Vars.")]


def sample(settings: Settings, resolved: Resolved) -> dict[str, object]:
    """The data of a group's templates, with placeholders for what only an instance has."""
    placeholders = {root: dict.fromkeys(names or (), "sample") for root, names in template_fields.FOR_USERDATA.items()}
    return {
        **placeholders,
        "Vars": dict(resolved.vars),
        "Image": dict.fromkeys(settings.images, "sample"),
        "Nonce": "sample",
    }


def _texts(settings: Settings, resolved: Resolved) -> Iterator[tuple[Path, str]]:
    """The template's strings with their paths: arguments, userdata, files and certificates of these files."""
    name = resolved.group.template
    template = settings.templates[name]
    yield from template_fields.strings(("defaults", "args"), settings.defaults.args)
    yield from template_fields.strings(("templates", name, "args"), template.args)
    if resolved.userdata is not None and not provider_rules.RULES[settings.shard.infra.provider].local:
        parent: Path = ("templates", name) if template.userdata is not None else ("defaults",)
        if resolved.userdata.source == "inline":
            yield (*parent, "userdata", "content"), resolved.userdata.content
    for file, spec in template.files.items():
        match spec:
            case SecretFile():
                continue
            case CertificateFile():
                certificate = settings.certificates[spec.template].model_dump(mode="json")
                yield from template_fields.strings(("certificates", spec.template), certificate)
            case _:
                yield from template_fields.strings(("templates", name, "files", file), spec.model_dump(mode="json"))


def _check_limits(
    settings: Settings, resolved: Resolved, path: Path, problems: ProblemCollector, *, prefix: str
) -> None:
    group = resolved.group
    size = group.size
    if 0 < size <= group.max_unavailable:
        message = (
            f"max_unavailable {group.max_unavailable} of size {size}: all instances may be unavailable at the same time"
        )
        problems.add((*path, "update", "max_unavailable"), prefix + message)
    if 0 < size <= group.canary:
        message = f"canary {group.canary} of size {size}: all instances are replaced before the rollout pauses"
        problems.add((*path, "update", "canary"), prefix + message)
    notice = _SPOT_NOTICE_SECONDS.get(settings.shard.infra.provider)
    if notice is not None and _is_spot(resolved.args) and group.drain_timeout > notice:
        timeout, most = durations.format(group.drain_timeout), durations.format(notice)
        message = f"drain_timeout {timeout} of spot instances: the provider stops the VM {most} after its notice"
        problems.add((*path, "drain_timeout"), prefix + message)


def _is_spot(args: Mapping[str, object]) -> bool:
    """Whether the arguments of AWS (`InstanceMarketOptions`) or Google (`Scheduling`) ask for a spot VM."""
    match args:
        case {"InstanceMarketOptions": {"MarketType": "spot"}}:
            return True
        case {"Scheduling": {"ProvisioningModel": "SPOT"} | {"Preemptible": True}}:
            return True
        case _:
            return False
