"""What one block says about another: references, pools, templates, provider rules.

These checks read the plain document, not the validated model, and pass over what has the wrong type: so a file with a
misspelt key and a broken reference hears of both at once.
"""

from collections.abc import Iterator, Mapping

from nstance.config import blocks, durations, readiness, rules, templating, workload
from nstance.config.errors import quoted
from nstance.config.findings import Findings
from nstance.config.jsonc import Path
from nstance.config.merge import merge
from nstance.model import ids

Json = Mapping[str, object]

# Where a name stands, what it names, and where that must be defined.
_REFERENCES = (
    ("groups.*.*.template", "template", ("templates",)),
    ("groups.*.*.subnet_pool", "subnet pool", ("shard", "subnet_pools")),
    ("groups.*.*.load_balancers.*", "load balancer", ("load_balancers",)),
    ("templates.*.subnet_pool", "subnet pool", ("shard", "subnet_pools")),
    ("shard.dynamic_subnet_pools.*", "subnet pool", ("shard", "subnet_pools")),
)


def check(document: Json, findings: Findings) -> None:
    infra = _object(_object(document, "shard"), "infra")
    provider = str(infra.get("provider", "")).replace("mock", "memory")
    _check_references(document, findings)
    _check_subnets(document, provider, findings)
    _check_tenants(document, findings)
    _check_certificates(document, findings)
    _check_templates(document, provider, findings)
    _check_registration_timeouts(document, findings)
    _check_names_of_checks(document, findings)
    if provider in rules.RULES:
        _check_provider(document, provider, findings)


def count_groups(document: Json) -> int:
    return sum(len(groups) for groups in _object(document, "groups").values() if isinstance(groups, dict))


def each(value: object, pattern: str) -> Iterator[tuple[Path, object]]:
    """All values whose path fits a pattern such as `groups.*.*.template`."""
    found: list[tuple[Path, object]] = [((), value)]
    for part in pattern.split("."):
        below: list[tuple[Path, object]] = []
        for path, parent in found:
            if isinstance(parent, dict):
                chosen = parent.items() if part == "*" else [(part, parent[part])] if part in parent else ()
                below.extend(((*path, key), child) for key, child in chosen)
            elif isinstance(parent, list) and part == "*":
                below.extend(((*path, index), child) for index, child in enumerate(parent))
        found = below
    return iter(found)


def _object(parent: Json, *keys: str) -> Json:
    """The object at these keys, or an empty one."""
    value: object = parent
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _check_references(document: Json, findings: Findings) -> None:
    for pattern, noun, home in _REFERENCES:
        known = _object(document, *home)
        for path, name in each(document, pattern):
            if isinstance(name, str) and name and name not in known:
                message = f"expected the name of a {noun} in {'.'.join(home)}, found {quoted(name)}"
                findings.add(path, message, word=name, candidates=known)
    certificates = [name for name in _object(document, "certificates") if name != workload.CA]
    known_certificates = frozenset(certificates)
    for path, file in each(document, "templates.*.files.*"):
        if isinstance(file, dict) and file.get("kind") == "certificate":
            name = file.get("template")
            if isinstance(name, str) and name and name not in known_certificates:
                message = f"expected the name of a certificate in certificates, found {quoted(name)}"
                findings.add((*path, "template"), message, word=name, candidates=certificates)


def _check_subnets(document: Json, provider: str, findings: Findings) -> None:
    pools = _object(document, "shard", "subnet_pools")
    owners: dict[str, str] = {}
    for path, subnet in each(document, "shard.subnet_pools.*.*"):
        if isinstance(subnet, str):
            if subnet in owners:
                findings.add(
                    path, f"expected a subnet in one pool only, found {quoted(subnet)} also in {owners[subnet]}"
                )
            owners[subnet] = str(path[2])
    if provider not in rules.RULES:
        return
    local = rules.RULES[provider].local
    if not local:
        for name, subnets in pools.items():
            if subnets == []:
                findings.add(("shard", "subnet_pools", name), "expected at least one subnet in the pool")
    if len(pools) == 1 or (local and not pools):
        return
    templates = _object(document, "templates")
    for path, group in each(document, "groups.*.*"):
        if isinstance(group, dict) and not group.get("subnet_pool"):
            template = templates.get(str(group.get("template")))
            if isinstance(template, dict) and not template.get("subnet_pool"):
                count = "none" if not pools else f"{len(pools)} to choose from"
                findings.add(
                    (*path, "subnet_pool"),
                    f"expected a subnet pool here or in the template: the shard has {count}, so none can be assumed",
                )


def _check_tenants(document: Json, findings: Findings) -> None:
    tenants = _object(document, "tenants")
    if ids.DEFAULT_TENANT in tenants:
        findings.add(
            ("tenants", ids.DEFAULT_TENANT), "expected other tenants only: this one always exists", at_key=True
        )
    known = (ids.DEFAULT_TENANT, *tenants)
    for tenant in _object(document, "groups"):
        if tenant != ids.DEFAULT_TENANT and tenant not in tenants:
            message = f"expected a tenant from tenants, or {ids.DEFAULT_TENANT}, found {quoted(tenant)}"
            findings.add(("groups", tenant), message, word=tenant, candidates=known, at_key=True)


def _check_certificates(document: Json, findings: Findings) -> None:
    for name, certificate in _object(document, "certificates").items():
        path = ("certificates", name)
        if not isinstance(certificate, dict):
            continue
        if name == workload.CA:
            for key in ("kind", "dns", "ip", "uri"):
                if key in certificate:
                    message = "expected only a subject and a ttl: this one shapes the cluster's own authority"
                    findings.add((*path, key), message, at_key=True)
        elif "kind" not in certificate:
            findings.add((*path, "kind"), 'expected "server", "client" or a list of both, found none')
        visible = templating.FOR_CA if name == workload.CA else templating.FIELDS
        for place, text in templating.strings(path, certificate):
            templating.check(place, text, findings, fields=visible, images=_object(document, "images"))
        for place, uri in each(certificate, "uri.*"):
            if isinstance(uri, str) and uri.lower().startswith("nstance:"):
                message = "expected any scheme but nstance://, which identifies Nstance's own parts"
                findings.add((*path, *place), message)


def _check_templates(document: Json, provider: str, findings: Findings) -> None:
    images = _object(document, "images")
    local = provider in rules.RULES and rules.RULES[provider].local
    # A local provider takes no arguments and no userdata: what they would look up need not exist.
    looked_up = None if local else images
    for pattern in ("defaults.args", "templates.*.args", "groups.*.*.args"):
        for path, args in each(document, pattern):
            for place, text in templating.strings(path, args):
                templating.check(place, text, findings, images=looked_up)
    for pattern in ("defaults.userdata", "templates.*.userdata"):
        for path, userdata in each(document, pattern):
            if isinstance(userdata, dict) and userdata.get("source", "inline") == "inline":
                content = userdata.get("content")
                if isinstance(content, str):
                    visible = templating.FOR_USERDATA
                    templating.check((*path, "content"), content, findings, fields=visible, images=looked_up)
    for path, file in each(document, "templates.*.files.*"):
        if isinstance(file, dict) and (kind := file.get("kind")) not in ("certificate", "secret"):
            key = "source" if kind == "storage" else "template"
            for place, text in templating.strings((*path, key), file.get(key)):
                templating.check(place, text, findings, images=images)


def _check_registration_timeouts(document: Json, findings: Findings) -> None:
    interval = _seconds(_object(document, "shard", "garbage_collection").get("interval"))
    if interval is None:
        interval = blocks.GarbageCollection().interval
    for path, text in each(document, "templates.*.registration_timeout"):
        if (timeout := _seconds(text)) is not None and timeout <= interval:
            message = "expected a registration_timeout longer than the shard's garbage_collection.interval"
            findings.add(path, message)


def _check_names_of_checks(document: Json, findings: Findings) -> None:
    for path, _ in each(document, "templates.*.checks.*"):
        if not readiness.is_name(str(path[-1])):
            message = (
                "expected a check's name of letters, digits, dots, hyphens and underscores (at most 64), "
                f"found {quoted(str(path[-1]))}"
            )
            findings.add(path, message, at_key=True)


def _seconds(text: object) -> float | None:
    """None for what the validator complains about."""
    try:
        return durations.parse(text) if isinstance(text, str) else None
    except ValueError:
        return None


def _check_provider(document: Json, provider: str, findings: Findings) -> None:
    options = _object(document, "shard", "infra", "options")
    rules.check_options(provider, options, ("shard", "infra", "options"), findings)
    network = _object(document, "shard").get("leader_network")
    if isinstance(network, dict):
        rules.check_leader_network(provider, network, ("shard", "leader_network"), findings)
    if rules.RULES[provider].local:
        return
    for pattern in ("defaults.args", "templates.*.args", "groups.*.*.args"):
        for path, args in each(document, pattern):
            if isinstance(args, dict):
                rules.check_args(provider, args, path, findings)
    _check_merged_args(document, provider, findings)
    balancers = _object(document, "load_balancers")
    for path, name in each(document, "groups.*.*.load_balancers.*"):
        theirs = _object(balancers, str(name)).get("provider")
        if isinstance(theirs, str) and theirs != provider:
            findings.add(path, f"expected a load balancer of the provider {provider}, found one of {quoted(theirs)}")


def _check_merged_args(document: Json, provider: str, findings: Findings) -> None:
    defaults = _object(document, "defaults", "args")
    templates = _object(document, "templates")
    unused = set(templates)
    for path, group in each(document, "groups.*.*"):
        name = str(group.get("template")) if isinstance(group, dict) else ""
        if isinstance(group, dict) and name in templates:
            unused.discard(name)
            merged = merge(defaults, _object(templates, name, "args"), _object(group, "args"))
            kind = group.get("instance_type") or _object(templates, name).get("instance_type") or ""
            rules.check_merged(provider, merged, str(kind), path, findings)
    for name in sorted(unused):
        merged = merge(defaults, _object(templates, name, "args"))
        kind = str(_object(templates, name).get("instance_type") or "")
        rules.check_merged(provider, merged, kind, ("templates", name), findings)
