"""What is allowed in a configuration and yet is probably a mistake.

Undefined vars are found by rendering each template with values that stand for those of an instance: what a VM would get
empty is what is reported, and a var that is only tested for (`if`, `default`) is not.
"""

import contextlib
from collections.abc import Iterator, Mapping

from nstance import gotemplate
from nstance.config import overrides, rules, templating
from nstance.config.dynamic import DynamicGroups
from nstance.config.findings import Findings
from nstance.config.jsonc import Path
from nstance.config.resolve import Resolved
from nstance.config.settings import Settings
from nstance.config.workload import CertificateFile, SecretFile
from nstance.model import durations
from nstance.model.ids import GroupKey

SHOWN = 3  # groups that one message names
_NOTICE_SECONDS = {"aws": 120.0, "gcp": 30.0}  # from a spot notice to the end of the VM

Groups = Mapping[GroupKey, Resolved]


def find(settings: Settings, groups: Groups, dynamic: DynamicGroups) -> Findings:
    """`groups`: resolved from the settings and the dynamic groups, as far as these are known."""
    findings = Findings()
    _find_undefined(settings, groups, findings)
    for key, resolved in groups.items():
        path: Path = ("groups", key.tenant, key.name)
        static = key in settings.groups
        if static:
            for each in overrides.overrides(dynamic.groups.get(key), resolved.file):
                if each.hides_file:
                    findings.add((*path, *each.field.split(".", 1)), overrides.warning(key, each))
        _check_limits(settings, resolved, path, findings, named="" if static else f"group {key}: ")
    return findings


# ---- vars


def _find_undefined(settings: Settings, groups: Groups, findings: Findings) -> None:
    lacking: dict[tuple[Path, str], list[GroupKey]] = {}
    rendered: dict[tuple[str, frozenset[str]], list[tuple[Path, str]]] = {}
    for key, resolved in groups.items():
        values = sample(settings, resolved)
        kind = resolved.group.template, frozenset(resolved.vars)  # groups of one kind lack the same
        if kind not in rendered:
            texts = _texts(settings, resolved)
            rendered[kind] = [(path, name) for path, text in texts for name in undefined(text, values)]
        own = settings.groups[key].args if key in settings.groups else {}
        texts = templating.strings(("groups", key.tenant, key.name, "args"), own)
        found = [(path, name) for path, text in texts for name in undefined(text, values)]
        for place in (*rendered[kind], *found):
            lacking.setdefault(place, []).append(key)
    for (path, name), keys in lacking.items():
        more = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
        named = ", ".join(map(str, keys[:SHOWN])) + more
        findings.add(path, f"the var {name} is not defined for {named}: it is rendered empty")


def undefined(text: str, values: Mapping[str, object]) -> list[str]:
    """The vars that a template prints although nobody has set them."""
    if "{{" not in text:
        return []
    missing: dict[str, None] = {}
    # With an instance's own values it may well render; what was missed until it failed counts.
    with contextlib.suppress(gotemplate.TemplateError):
        gotemplate.parse(text).render(values, missing=lambda path: missing.update({path: None}))
    return [path.removeprefix(".Vars.") for path in missing if path.startswith(".Vars.")]


def sample(settings: Settings, resolved: Resolved) -> dict[str, object]:
    """What the templates of a group see, with words in the place of what only an instance has."""
    seen = {root: dict.fromkeys(names or (), "sample") for root, names in templating.FIELDS.items()}
    return {
        **seen,
        "Vars": dict(resolved.vars),
        "Image": dict.fromkeys(settings.images, "sample"),
        "Nonce": "sample",
    }


def _texts(settings: Settings, resolved: Resolved) -> Iterator[tuple[Path, str]]:
    """The template's strings with their places: arguments, userdata, files and the certificates that these name."""
    name = resolved.group.template
    template = settings.templates[name]
    yield from templating.strings(("defaults", "args"), settings.defaults.args)
    yield from templating.strings(("templates", name, "args"), template.args)
    if resolved.userdata is not None and not rules.RULES[settings.shard.infra.provider].local:
        home: Path = ("templates", name) if template.userdata is not None else ("defaults",)
        if resolved.userdata.source == "inline":
            yield (*home, "userdata", "content"), resolved.userdata.content
    for file, spec in template.files.items():
        match spec:
            case SecretFile():
                continue
            case CertificateFile():
                told = settings.certificates[spec.template].model_dump(mode="json")
                yield from templating.strings(("certificates", spec.template), told)
            case _:
                yield from templating.strings(("templates", name, "files", file), spec.model_dump(mode="json"))


# ---- limits


def _check_limits(settings: Settings, resolved: Resolved, path: Path, findings: Findings, *, named: str) -> None:
    group = resolved.group
    size = group.size
    if 0 < size <= group.max_unavailable:
        message = f"max_unavailable {group.max_unavailable} of size {size}: all instances may be gone at the same time"
        findings.add((*path, "update", "max_unavailable"), named + message)
    if 0 < size <= group.canary:
        message = f"canary {group.canary} of size {size}: all instances are replaced before the rollout pauses"
        findings.add((*path, "update", "canary"), named + message)
    notice = _NOTICE_SECONDS.get(settings.shard.infra.provider)
    if notice is not None and _is_spot(resolved.args) and group.drain_timeout > notice:
        timeout, most = durations.format(group.drain_timeout), durations.format(notice)
        message = f"drain_timeout {timeout} of spot instances: the provider takes the VM {most} after its notice"
        findings.add((*path, "drain_timeout"), named + message)


def _is_spot(args: Mapping[str, object]) -> bool:
    """By the arguments of AWS (`InstanceMarketOptions`) and Google (`Scheduling`)."""
    match args:
        case {"InstanceMarketOptions": {"MarketType": "spot"}}:
            return True
        case {"Scheduling": {"ProvisioningModel": "SPOT"} | {"Preemptible": True}}:
            return True
        case _:
            return False
