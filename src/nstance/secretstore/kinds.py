"""From the configuration to a secret store."""

from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from nstance.clock import Rng
from nstance.model.ids import ClusterId
from nstance.objects.port import ObjectStore
from nstance.secretstore import env, errors, file, port, sealed, sealing


class StoreKind(Enum):
    OBJECT_STORAGE = "object-storage"
    FILE = "file"
    ENV = "env"
    AWS_SECRETS_MANAGER = "aws-secrets-manager"
    AWS_PARAMETER_STORE = "aws-parameter-store"
    GOOGLE_SECRET_MANAGER = "google-secret-manager"


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


def open_store(
    kind: str,
    *,
    objects: ObjectStore,
    prefix: str,
    sealer: sealing.Sealer | None,
    cluster: ClusterId,
    rng: Rng,
    environment: Mapping[str, str],
) -> port.SecretStore:
    """`prefix`: of the object keys (`cluster/secret/`); for `file` the directory; for `env` the prefix of the variables."""
    if kind == StoreKind.OBJECT_STORAGE.value:
        if sealer is None:
            raise errors.BadKeyError("secrets in object storage need an encryption key")
        return sealed.SealedStore(objects, prefix=prefix, sealer=sealer, cluster=cluster, rng=rng)
    if kind == StoreKind.FILE.value:
        if not prefix:
            raise errors.PermanentError("the secret store 'file' needs a directory as its prefix")
        return file.FileStore(Path(prefix))
    if kind == StoreKind.ENV.value:
        return env.EnvStore(environment, prefix=prefix or env.DEFAULT_PREFIX)
    if kind in {known.value for known in StoreKind}:
        raise errors.PermanentError(
            f"the secret store {kind!r} is not built yet; use 'object-storage', 'file' or 'env'"
        )
    raise errors.PermanentError(f"expected a secret store of {', '.join(k.value for k in StoreKind)}, found {kind!r}")
