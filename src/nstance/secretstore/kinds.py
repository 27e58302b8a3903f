"""From the configuration to a secret store. Those of clouds are imported only when they are configured."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from nstance.clock import Rng
from nstance.model.ids import ClusterId
from nstance.objects.port import ObjectStore
from nstance.secretstore import env, errors, file, port, sealed, sealing
from nstance.secretstore.keys import KeyClients


class StoreKind(Enum):
    OBJECT_STORAGE = "object-storage"
    FILE = "file"
    ENV = "env"
    AWS_SECRETS_MANAGER = "aws-secrets-manager"
    AWS_PARAMETER_STORE = "aws-parameter-store"
    GOOGLE_SECRET_MANAGER = "google-secret-manager"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backends:
    """What secret stores are built on."""

    objects: ObjectStore
    clients: KeyClients
    environment: Mapping[str, str]
    rng: Rng


def sealer(keyring: sealing.Keyring | None, *, insecure_dev: bool) -> sealing.Sealer:
    """Raises BadKeyError without a key, unless the server runs with --insecure-dev."""
    if keyring is not None:
        return keyring
    if insecure_dev:
        return sealing.Unsealed()
    raise errors.BadKeyError(
        "no encryption key: secrets are not stored in plain text; set NSTANCE_ENCRYPTION_KEY or configure "
        "cluster.secrets.encryption_key (for a throw-away cluster: --insecure-dev)"
    )


def cloud_prefix(prefix: str, cluster: ClusterId) -> str:
    """Of names in a cloud's secret store, which many clusters may share."""
    return prefix or f"nstance/{cluster}/"


def open_store(
    kind: str,
    backends: Backends,
    *,
    prefix: str,
    cluster: ClusterId,
    sealer: sealing.Sealer | None,
    refresh: sealed.Refresh | None = None,
) -> port.SecretStore:
    """`prefix`: of the object keys (`cluster/secret/`) or of names in a cloud's store; for `file` the directory; for `env`
    the prefix of the variables."""
    if kind == StoreKind.OBJECT_STORAGE.value:
        if sealer is None:
            raise errors.BadKeyError("secrets in object storage need an encryption key")
        return sealed.SealedStore(
            backends.objects, prefix=prefix, sealer=sealer, cluster=cluster, rng=backends.rng, refresh=refresh
        )
    if kind == StoreKind.FILE.value:
        if not prefix:
            raise errors.PermanentError("the secret store 'file' needs a directory as its prefix")
        return file.FileStore(Path(prefix))
    if kind == StoreKind.ENV.value:
        return env.EnvStore(backends.environment, prefix=prefix or env.DEFAULT_PREFIX)
    if kind == StoreKind.AWS_SECRETS_MANAGER.value:
        from nstance.secretstore.aws.secrets_manager import SecretsManagerStore

        return SecretsManagerStore(backends.clients.aws, prefix=cloud_prefix(prefix, cluster))
    if kind == StoreKind.AWS_PARAMETER_STORE.value:
        from nstance.secretstore.aws.parameter_store import ParameterStore

        return ParameterStore(backends.clients.aws, prefix=cloud_prefix(prefix, cluster))
    if kind == StoreKind.GOOGLE_SECRET_MANAGER.value:
        from nstance.secretstore.gcp.secret_manager import SecretManagerStore

        return SecretManagerStore(backends.clients.google, prefix=cloud_prefix(prefix, cluster))
    known = ", ".join(each.value for each in StoreKind)
    raise errors.PermanentError(f"expected a secret store of {known}, found {kind!r}")
