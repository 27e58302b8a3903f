"""What people write: the shard's configuration, its dynamic groups, templates, the operator's configuration."""

import functools

from fuzz.law import CORPUS, Broken, target
from nstance.config import dynamic, policy
from nstance.config.dynamic import DynamicGroups
from nstance.config.errors import ConfigError
from nstance.config.model.settings import Settings
from nstance.gotemplate import template
from nstance.gotemplate.errors import TemplateError
from nstance.gotemplate.limits import Limits
from nstance.model.ids import ShardId
from nstance.operator import config_file as operators
from nstance.server.config import configuration
from nstance.server.config.configuration import NoConfigurationError

SHARD = ShardId("east")
KEYS = (b'"groups"', b'"templates"', b'"args"', b'"vars"', b'"userdata"', b'"size"', b'"$schema"', b"//", b"/*", b"*/")
LIMITS = Limits(output=1 << 16)


@target("config", NoConfigurationError, words=KEYS)
def config(data: bytes) -> None:
    settings = configuration.parse(data, shard=SHARD, source="config.jsonc")
    configuration.resolve(settings, DynamicGroups())
    policy.make_policy(settings)
    configuration.timings(settings)


@functools.cache
def _settings() -> Settings:
    return configuration.parse(
        (CORPUS / "config" / "good-groups.jsonc").read_bytes(), shard=SHARD, source="config.jsonc"
    )


@target("groups", NoConfigurationError, ConfigError, words=KEYS)
def groups(data: bytes) -> None:
    found = dynamic.parse(data)
    configuration.resolve(_settings(), found)
    again = dynamic.parse(dynamic.dump(found))
    if again != found:
        raise Broken("groups do not survive being written")


ACTIONS = (
    b"{{",
    b"}}",
    b"{{-",
    b"range",
    b"end",
    b"if",
    b"else",
    b"with",
    b"printf",
    b"| ",
    b"$x :=",
    b".Vars.list",
    b"%d",
)
DATA = {
    "Instance": {"ID": "web-1", "IP4": "10.0.0.1", "Hostname": "h"},
    "Vars": {
        "zone": "a",
        "list": [1, 2.5, None, "x", {"k": "v"}],
        "number": 7,
        "nested": {"a": {"b": ["c"]}},
        "on": True,
    },
}


@target("template", TemplateError, words=ACTIONS)
def render(data: bytes) -> None:
    missing: list[str] = []
    made = template.Template(data.decode("utf-8", "replace"))
    made.fields()
    text = made.render(DATA, limits=LIMITS, missing=missing.append)
    if len(text.encode("utf-8", "surrogatepass")) > LIMITS.output:
        raise Broken("the output is longer than its limit")
    if "0x" in text and " object at " in text:
        raise Broken("a Python object is shown")


@target(
    "operator-config",
    operators.InvalidConfigError,
    words=(b"cluster_id: ", b"shards:\n", b"&a ", b"*a", b"<<: ", b"!!python/object ", b"? "),
)
def operator_config(data: bytes) -> None:
    operators.parse(data, source="config.yaml")
