"""The `agent` block: where instances get the agent from if their image has none, or another version."""

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

from nstance.config import storage_keys
from nstance.config.errors import quoted
from nstance.config.model import scalars
from nstance.config.model.scalars import Block, invalid

ARCHITECTURES = ("amd64", "arm64")
ARCH_PLACEHOLDER = "{arch}"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_HEX = {"type": "string", "pattern": "^[0-9a-f]{64}$"}


def _by_arch(value: object) -> object:
    """One checksum stands for both architectures."""
    return dict.fromkeys(ARCHITECTURES, value) if isinstance(value, str) else value


def _url(value: str) -> str:
    if value and not value.startswith(("https://", "http://")):
        raise invalid(f"expected a URL that starts with https:// or http://, found {quoted(value)}")
    return value


Checksum = Annotated[
    str, AfterValidator(scalars.matching(_SHA256, "a SHA-256 checksum of 64 hexadecimal digits")), WithJsonSchema(_HEX)
]


class AgentSource(Block):
    """`{arch}` in the URL or the object's key becomes amd64 or arm64."""

    url: Annotated[scalars.Text, AfterValidator(_url)] = ""
    object: Annotated[scalars.Text, AfterValidator(storage_keys.check_users_own)] = ""
    sha256: Annotated[
        Mapping[Literal["amd64", "arm64"], Checksum],
        BeforeValidator(_by_arch, json_schema_input_type=Checksum | Mapping[Literal["amd64", "arm64"], Checksum]),
    ] = {}
    version: scalars.Text = ""

    rules = (
        (lambda a: not (a.url and a.object), "a url or an object, found both"),
        (lambda a: not a.sha256 or a.place, "a url or an object for the sha256, found neither"),
        (
            lambda a: ARCH_PLACEHOLDER not in a.place or len(set(a.sha256.values())) in (0, len(a.sha256)),
            'one sha256 per architecture, such as {"amd64": …, "arm64": …}, for a place with {arch}',
        ),
    )

    @property
    def place(self) -> str:
        return self.url or self.object

    def checksum_for(self, arch: str) -> str:
        return next((checksum for name, checksum in self.sha256.items() if name == arch), "")

    def place_for(self, arch: str) -> str:
        return self.place.replace(ARCH_PLACEHOLDER, arch)
