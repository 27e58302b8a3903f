"""Load balancers of the configuration: those of a cloud, and lists of members that work with every provider."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, StrictInt

from nstance.config.errors import quoted
from nstance.config.model import scalars
from nstance.config.model.scalars import Block, invalid


def _url(value: str) -> str:
    parts = urlsplit(value)
    is_local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.username or parts.fragment:
        raise invalid("expected a URL such as https://lb.internal/members, without a password")
    if parts.scheme == "http" and not is_local:
        raise invalid(f"expected https: only this machine is reached without TLS, found {quoted(parts.scheme)}")
    return value


MEMBER_LISTS = ("webhook", "file")  # load balancers that work with every provider
_WEBHOOK_KEYS = frozenset({"url", "secret", "auth", "ca_file", "timeout"})


class LoadBalancer(Block):
    provider: Annotated[
        Literal["aws", "gcp", "memory", "webhook", "file"],
        BeforeValidator(
            scalars.provider_name,
            json_schema_input_type=Literal["aws", "gcp", "google", "memory", "webhook", "file"],
        ),
    ]
    target_group_arns: tuple[scalars.NonEmptyText, ...] = ()
    instance_group_name: scalars.Text = ""
    url: Annotated[str, AfterValidator(_url)] | None = Field(default=None, description="of a webhook")
    secret: scalars.UserSecret | None = None
    auth: Literal["hmac", "token"] = "hmac"
    ca_file: scalars.Text = ""
    timeout: Annotated[scalars.Period, Field(le=60.0)] = 5.0
    path: scalars.Text = Field(default="", description="of a file with the members")
    port: Annotated[StrictInt, Field(ge=0, le=65_535)] = Field(default=0, description="of the members")

    rules = (
        (
            lambda b: b.provider != "webhook" or (b.url and not b.path),
            "a url, and no path, for a webhook",
        ),
        (
            lambda b: b.provider != "file" or (b.path.startswith("/") and not b.path.endswith("/")),
            "an absolute path for a file of members",
        ),
        (
            lambda b: b.provider == "webhook" or not _WEBHOOK_KEYS & b.model_fields_set,
            "no url, secret, auth, ca_file or timeout, because this is no webhook",
        ),
        (
            lambda b: b.provider in MEMBER_LISTS or not (b.path or b.port),
            "no path and no port, because the provider keeps the members",
        ),
        (
            lambda b: b.provider not in MEMBER_LISTS or not (b.target_group_arns or b.instance_group_name),
            "no target_group_arns and no instance_group_name for a webhook or a file",
        ),
        (
            lambda b: b.provider != "aws" or (b.target_group_arns and not b.instance_group_name),
            "target_group_arns, and no instance_group_name, for the provider aws",
        ),
        (
            lambda b: b.provider != "gcp" or (b.instance_group_name and not b.target_group_arns),
            "an instance_group_name, and no target_group_arns, for the provider gcp",
        ),
        (
            lambda b: b.provider != "memory" or not (b.target_group_arns or b.instance_group_name),
            "only the key provider: a load balancer of the provider memory has no other keys",
        ),
    )
