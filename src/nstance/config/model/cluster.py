"""The `cluster` block: where shared state and secrets are stored."""

import re
from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from nstance.config.model import scalars
from nstance.config.model.scalars import Block, invalid

SecretsKind = Literal[
    "object-storage", "aws-secrets-manager", "aws-parameter-store", "google-secret-manager", "file", "env"
]
KeyKind = Literal[
    "env", "file", "aws-secrets-manager", "aws-parameter-store", "aws-kms", "google-secret-manager", "google-kms"
]
DEFAULT_KEY_VARIABLE = "NSTANCE_ENCRYPTION_KEY"
_CLOUD_PREFIX = re.compile(r"[A-Za-z0-9_./-]{0,200}")
# These hold only the user's own secrets: the cluster's CA stays sealed in object storage.
UNSEALED_STORES = ("file", "env")
# These also hold the encryption key, which the first server creates.
CLOUD_STORES = ("aws-secrets-manager", "aws-parameter-store", "google-secret-manager")


class ClusterStorage(Block):
    """Where the cluster's shared objects are stored. Default: `cluster/` in the shard's bucket."""

    provider: Literal["s3", "gcs", "file", "memory"] | None = None
    bucket: scalars.Text = ""
    region: scalars.Text = ""
    endpoint: scalars.Text = ""
    prefix: scalars.Prefix = "cluster/"

    rules = (
        (lambda s: s.provider in (None, "memory") or s.bucket, "a bucket for the storage provider, found none"),
        (
            lambda s: s.provider or not (s.bucket or s.region or s.endpoint),
            "a storage provider for the bucket, region or endpoint, found none",
        ),
    )


class EncryptionKey(Block):
    """Where the encryption key is stored; never the key itself."""

    provider: KeyKind = "env"
    source: scalars.Text = ""

    @model_validator(mode="before")
    @classmethod
    def _default_variable(cls, data: object) -> object:
        if isinstance(data, dict) and data.get("provider", "env") == "env" and not data.get("source"):
            return {**data, "source": DEFAULT_KEY_VARIABLE}
        return data

    rules = ((lambda key: key.source, "a source (the file or the secret that holds the key), found none"),)


class Secrets(Block):
    provider: SecretsKind = "object-storage"
    prefix: scalars.Text = "secret/"
    region: scalars.Text = Field(default="", description="of Secrets Manager, Parameter Store and KMS")
    project_id: scalars.Text = ""
    encryption_key: EncryptionKey | None = None
    old_encryption_keys: tuple[EncryptionKey, ...] = ()
    cache_ttl: scalars.Duration = 300.0

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_other_stores(cls, data: object) -> object:
        if isinstance(data, dict) and data.get("provider") in CLOUD_STORES:
            return {"prefix": "", **data}  # nstance/<cluster>/
        if not isinstance(data, dict) or data.get("provider") not in UNSEALED_STORES:
            return data
        prefix = "" if data["provider"] == "env" else cls.model_fields["prefix"].default
        return {"prefix": prefix, "encryption_key": {"source": DEFAULT_KEY_VARIABLE}, **data}

    @model_validator(mode="after")
    def _has_the_right_key(self) -> Self:
        if self.provider == "object-storage":
            if self.encryption_key is None:
                raise invalid("expected an encryption_key for secrets in object storage, found none")
            scalars.key_prefix(self.prefix)
        elif self.provider in UNSEALED_STORES:
            if self.encryption_key is None:
                raise invalid("expected an encryption_key to seal the cluster's CA with, found none")
        elif self.encryption_key is not None or self.old_encryption_keys:
            raise invalid(f'expected no encryption key: the store "{self.provider}" encrypts secrets itself; remove it')
        elif not _CLOUD_PREFIX.fullmatch(self.prefix):
            raise invalid(
                'expected a prefix of names such as "nstance/prod/": letters, digits, "_", ".", "-" and "/", '
                "at most 200 characters"
            )
        if self.provider == "google-secret-manager" and not self.project_id:
            raise invalid("expected a project_id for google-secret-manager, found none")
        return self


class ClusterConfig(Block):
    id: scalars.ClusterId
    storage: ClusterStorage = ClusterStorage()
    secrets: Secrets = Secrets(encryption_key=EncryptionKey(source=DEFAULT_KEY_VARIABLE))
    leader_election: Mapping[str, object] = Field(default_factory=dict, description="accepted, unused")
