"""Checks between blocks: references, subnet pools, templates and provider rules.

They read the plain document instead of the validated model and skip values of the wrong type, so that one run reports a
misspelled key and a broken reference together.
"""

from collections.abc import Iterator, Mapping

from nstance.config import durations
from nstance.config.checks import provider_rules, template_fields
from nstance.config.checks.problems import ProblemCollector
from nstance.config.errors import quoted
from nstance.config.jsonc import Path
from nstance.config.merge import merge
from nstance.config.model import readiness, scalars, workload
from nstance.config.model.load_balancers import MEMBER_LISTS
from nstance.config.model.shard import GarbageCollection
from nstance.model import ids

Json = Mapping[str, object]

# Path of a name, what it refers to, and the object that must define it.
_REFERENCES = (
    ("groups.*.*.template", "template", ("templates",)),
    ("groups.*.*.subnet_pool", "subnet pool", ("shard", "subnet_pools")),
    ("groups.*.*.load_balancers.*", "load balancer", ("load_balancers",)),
    ("templates.*.subnet_pool", "subnet pool", ("shard", "subnet_pools")),
    ("shard.dynamic_subnet_pools.*", "subnet pool", ("shard", "subnet_pools")),
)


def check(document: Json, problems: ProblemCollector) -> None:
    infra = _object(_object(document, "shard"), "infra")
    provider = str(scalars.provider_name(infra.get("provider", "")))
    _check_references(document, problems)
    _check_subnets(document, provider, problems)
    _check_tenants(document, problems)
    _check_certificates(document, problems)
    _check_templates(document, provider, problems)
    _check_registration_timeouts(document, problems)
    _check_check_names(document, problems)
    _check_preferences(document, problems)
    if provider in provider_rules.RULES:
        _check_provider(document, provider, problems)


def count_groups(document: Json) -> int:
    return sum(len(groups) for groups in _object(document, "groups").values() if isinstance(groups, dict))


def each(value: object, pattern: str) -> Iterator[tuple[Path, object]]:
    """All values whose path matches a pattern such as `groups.*.*.template`."""
    matches: list[tuple[Path, object]] = [((), value)]
    for part in pattern.split("."):
        children: list[tuple[Path, object]] = []
        for path, parent in matches:
            if isinstance(parent, dict):
                chosen = parent.items() if part == "*" else [(part, parent[part])] if part in parent else ()
                children.extend(((*path, key), child) for key, child in chosen)
            elif isinstance(parent, list) and part == "*":
                children.extend(((*path, index), child) for index, child in enumerate(parent))
        matches = children
    return iter(matches)


def _object(parent: Json, *keys: str) -> Json:
    """The object at these keys, or an empty one."""
    value: object = parent
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _check_references(document: Json, problems: ProblemCollector) -> None:
    for pattern, noun, defined_in in _REFERENCES:
        known = _object(document, *defined_in)
        for path, name in each(document, pattern):
            if isinstance(name, str) and name and name not in known:
                message = f"expected the name of a {noun} in {'.'.join(defined_in)}, found {quoted(name)}"
                problems.add(path, message, word=name, candidates=known)
    certificates = [name for name in _object(document, "certificates") if name != workload.CA_TEMPLATE]
    known_certificates = frozenset(certificates)
    for path, file in each(document, "templates.*.files.*"):
        if isinstance(file, dict) and file.get("kind") == "certificate":
            name = file.get("template")
            if isinstance(name, str) and name and name not in known_certificates:
                message = f"expected the name of a certificate in certificates, found {quoted(name)}"
                problems.add((*path, "template"), message, word=name, candidates=certificates)


def _check_subnets(document: Json, provider: str, problems: ProblemCollector) -> None:
    pools = _object(document, "shard", "subnet_pools")
    owners: dict[str, str] = {}
    for path, subnet in each(document, "shard.subnet_pools.*.*"):
        if isinstance(subnet, str):
            if subnet in owners:
                problems.add(
                    path, f"expected a subnet in one pool only, found {quoted(subnet)} also in {owners[subnet]}"
                )
            owners[subnet] = str(path[2])
    if provider not in provider_rules.RULES:
        return
    local = provider_rules.RULES[provider].local
    if not local:
        for name, subnets in pools.items():
            if subnets == []:
                problems.add(("shard", "subnet_pools", name), "expected at least one subnet in the pool")
    if len(pools) == 1 or (not provider_rules.needs_subnets(provider) and not pools):
        return
    templates = _object(document, "templates")
    for path, group in each(document, "groups.*.*"):
        if isinstance(group, dict) and not group.get("subnet_pool"):
            template = templates.get(str(group.get("template")))
            if isinstance(template, dict) and not template.get("subnet_pool"):
                count = f"{len(pools)} pools" if pools else "no pool"
                problems.add(
                    (*path, "subnet_pool"),
                    f"expected a subnet_pool in the group or its template: there is no default, the shard has {count}",
                )


def _check_tenants(document: Json, problems: ProblemCollector) -> None:
    tenants = _object(document, "tenants")
    if ids.DEFAULT_TENANT in tenants:
        problems.add(
            ("tenants", ids.DEFAULT_TENANT),
            "expected only other tenants: this one always exists; remove it",
            at_key=True,
        )
    known = (ids.DEFAULT_TENANT, *tenants)
    for tenant in _object(document, "groups"):
        if tenant != ids.DEFAULT_TENANT and tenant not in tenants:
            message = f"expected a tenant from tenants, or {ids.DEFAULT_TENANT}, found {quoted(tenant)}"
            problems.add(("groups", tenant), message, word=tenant, candidates=known, at_key=True)


def _check_certificates(document: Json, problems: ProblemCollector) -> None:
    for name, certificate in _object(document, "certificates").items():
        path = ("certificates", name)
        if not isinstance(certificate, dict):
            continue
        if name == workload.CA_TEMPLATE:
            for key in ("kind", "dns", "ip", "uri"):
                if key in certificate:
                    message = "expected only a subject and a ttl for the cluster's CA certificate; remove the key"
                    problems.add((*path, key), message, at_key=True)
        elif "kind" not in certificate:
            problems.add((*path, "kind"), 'expected "server", "client" or a list of both, found none')
        visible = template_fields.FOR_CA if name == workload.CA_TEMPLATE else template_fields.FIELDS
        for place, text in template_fields.strings(path, certificate):
            template_fields.check(place, text, problems, fields=visible, images=_object(document, "images"))
        for place, uri in each(certificate, "uri.*"):
            if isinstance(uri, str) and uri.lower().startswith("nstance:"):
                message = "expected a scheme other than nstance://, which is reserved for Nstance"
                problems.add((*path, *place), message)


def _check_templates(document: Json, provider: str, problems: ProblemCollector) -> None:
    images = _object(document, "images")
    local = provider in provider_rules.RULES and provider_rules.RULES[provider].local
    # A local provider ignores arguments and userdata, so the images that they name need not exist.
    checked_images = None if local else images
    for pattern in ("defaults.args", "templates.*.args", "groups.*.*.args"):
        for path, args in each(document, pattern):
            for place, text in template_fields.strings(path, args):
                template_fields.check(place, text, problems, images=checked_images)
    for pattern in ("defaults.userdata", "templates.*.userdata"):
        for path, userdata in each(document, pattern):
            if isinstance(userdata, dict) and userdata.get("source", "inline") == "inline":
                content = userdata.get("content")
                if isinstance(content, str):
                    visible = template_fields.FOR_USERDATA
                    template_fields.check((*path, "content"), content, problems, fields=visible, images=checked_images)
    for path, file in each(document, "templates.*.files.*"):
        if isinstance(file, dict) and (kind := file.get("kind")) not in ("certificate", "secret"):
            key = "source" if kind == "storage" else "template"
            for place, text in template_fields.strings((*path, key), file.get(key)):
                template_fields.check(place, text, problems, images=images)


def _check_registration_timeouts(document: Json, problems: ProblemCollector) -> None:
    interval = _seconds(_object(document, "shard", "garbage_collection").get("interval"))
    if interval is None:
        interval = GarbageCollection().interval
    for path, text in each(document, "templates.*.registration_timeout"):
        if (timeout := _seconds(text)) is not None and timeout <= interval:
            message = "expected a registration_timeout longer than the shard's garbage_collection.interval"
            problems.add(path, message)


def _check_check_names(document: Json, problems: ProblemCollector) -> None:
    for path, _ in each(document, "templates.*.checks.*"):
        if not readiness.is_name(str(path[-1])):
            message = (
                "expected a check's name of letters, digits, dots, hyphens and underscores (at most 64), "
                f"found {quoted(str(path[-1]))}"
            )
            problems.add(path, message, at_key=True)


def _check_preferences(document: Json, problems: ProblemCollector) -> None:
    templates = _object(document, "templates")
    for path, group in each(document, "groups.*.*"):
        if not isinstance(group, dict) or _object(group, "update").get("max_surge") != 0:
            continue
        if (group.get("prefer") or _object(templates, str(group.get("template"))).get("prefer")) == "strict":
            message = (
                "expected max_surge above 0 with prefer strict: a better offer is tried before an instance is removed"
            )
            problems.add((*path, "update", "max_surge"), message)


def _seconds(text: object) -> float | None:
    """None for a value that the validator reports."""
    try:
        return durations.parse(text) if isinstance(text, str) else None
    except ValueError:
        return None


def _check_provider(document: Json, provider: str, problems: ProblemCollector) -> None:
    options = _object(document, "shard", "infra", "options")
    provider_rules.check_options(provider, options, ("shard", "infra", "options"), problems)
    provider_rules.check_zone(provider, _object(document, "shard", "infra"), ("shard", "infra", "zone"), problems)
    network = _object(document, "shard").get("leader_network")
    if isinstance(network, dict):
        provider_rules.check_leader_network(provider, network, ("shard", "leader_network"), problems)
    if provider_rules.RULES[provider].local:
        return
    for pattern in ("defaults.args", "templates.*.args", "groups.*.*.args"):
        for path, args in each(document, pattern):
            if isinstance(args, dict):
                provider_rules.check_args(provider, args, path, problems)
    for pattern in ("defaults.userdata", "templates.*.userdata"):
        for path, userdata in each(document, pattern):
            if isinstance(userdata, dict):
                provider_rules.check_userdata(provider, userdata, path, problems)
    _check_merged_args(document, provider, problems)
    for pattern in ("templates.*.markets", "groups.*.*.markets"):
        for path, _ in each(document, pattern):
            provider_rules.check_markets(provider, path, problems)
    balancers = _object(document, "load_balancers")
    for path, name in each(document, "groups.*.*.load_balancers.*"):
        other = scalars.provider_name(_object(balancers, str(name)).get("provider"))
        if isinstance(other, str) and other not in (provider, *MEMBER_LISTS):
            problems.add(path, f"expected a load balancer of the provider {provider}, found one of {quoted(other)}")


def _check_merged_args(document: Json, provider: str, problems: ProblemCollector) -> None:
    defaults = _object(document, "defaults", "args")
    templates = _object(document, "templates")
    unused = set(templates)
    for path, group in each(document, "groups.*.*"):
        name = str(group.get("template")) if isinstance(group, dict) else ""
        if isinstance(group, dict) and name in templates:
            unused.discard(name)
            merged = merge(defaults, _object(templates, name, "args"), _object(group, "args"))
            types = _types(group) or _types(_object(templates, name))
            provider_rules.check_merged(provider, merged, types, path, problems)
    for name in sorted(unused):
        merged = merge(defaults, _object(templates, name, "args"))
        types = _types(_object(templates, name))
        provider_rules.check_merged(provider, merged, types, ("templates", name), problems)


def _types(block: Json) -> dict[Path, str]:
    return provider_rules.list_types(block.get("instance_type"), block.get("instance_types"))
