"""Rotating keys while everything runs.

Each step is one conditional write: a crash leaves the old state or the new one, and running the command again continues
where it stopped.
"""

import itertools
import math
from collections.abc import Sequence

from nstance.authority import errors, keyset
from nstance.authority.open import Places
from nstance.authority.vault import Vault
from nstance.clock import Clock
from nstance.objects import settle
from nstance.objects.port import Key, Stored
from nstance.pki import ca, fields, keys
from nstance.secretstore import errors as secrets

CA_NOTICE = 86400.0  # seconds from publishing a CA to signing with it: agents pass it on to workloads
CA_RETENTION = 366 * 86400.0  # then the last certificate of a replaced CA has expired
NONCE_NOTICE = 900.0  # servers read keys every five minutes, and may miss one reading
LONGEST_NONCE = 86400.0


async def rotate_ca(
    vault: Vault,
    places: Places,
    *,
    clock: Clock,
    subject: fields.Subject | None = None,
    life: float = ca.CA_LIFE,
) -> list[keyset.DatedCa]:
    """Returns all CAs. Old ones stay trusted until their last certificate has expired."""
    held = await vault.read(places.sealed_ca)
    if held is None:
        raise errors.NotFoundError(f"there is no CA at {places.sealed_ca} to rotate")
    now = clock.wall()
    cas = keyset.load_cas(held.plain, cluster=vault.cluster, name=places.sealed_ca)
    if cas[0].signs_from > now:
        raise errors.ConflictError(f"the last rotation takes effect in {cas[0].signs_from - now:.0f} s; wait for it")
    made = ca.new_ca(vault.cluster, now=now, rng=vault.rng, subject=subject, life=life)
    # An old CA is needed until its successor has signed for as long as certificates live.
    kept = [cas[0], *(old for newer, old in itertools.pairwise(cas) if now < newer.signs_from + CA_RETENTION)]
    cas = [keyset.DatedCa(made, math.ceil(now + CA_NOTICE)), *kept]
    await vault.replace(places.sealed_ca, keyset.dump_cas(vault.cluster, cas), seen=held)
    await settle.put(vault.store, places.ca_certificate, "".join(dated.ca.pem for dated in cas).encode())
    return cas


async def rotate_nonce_key(vault: Vault, places: Places, *, clock: Clock) -> list[keyset.DatedKey]:
    """Returns the new key and the previous one. Raises ConflictError while nonces of a third key may still be valid."""
    held = await vault.read(places.nonce_key)
    if held is None:
        raise errors.NotFoundError(f"there is no {places.nonce_key} to rotate")
    now = clock.wall()
    nonce_keys = keyset.load_nonce_keys(held.plain, cluster=vault.cluster, name=places.nonce_key)
    free = nonce_keys[0].signs_from + LONGEST_NONCE
    if len(nonce_keys) > 1 and now < free:
        raise errors.ConflictError(f"nonces of the key before the last are valid for another {free - now:.0f} s; wait")
    nonce_keys = [keyset.DatedKey(keys.generate(vault.rng), math.ceil(now + NONCE_NOTICE)), nonce_keys[0]]
    await vault.replace(places.nonce_key, keyset.dump_nonce_keys(vault.cluster, nonce_keys), seen=held)
    return nonce_keys


async def rekey(vault: Vault, places: Places) -> Sequence[Key]:
    """Encrypt all sealed objects with the current encryption key. Returns the keys of the changed objects."""
    changed: list[Key] = []
    for key in [places.sealed_ca, *await settle.list_keys(vault.store, places.secret_prefix)]:
        try:
            if await _reseal(vault, key):
                changed.append(key)
        except secrets.DecryptionError as error:
            raise errors.UnreadableError(
                f"{error} ({len(changed)} objects were sealed again before this one)"
            ) from error
    return changed


async def _reseal(vault: Vault, key: Key) -> bool:
    """Returns whether it was sealed with another key."""
    is_old = False

    def edit(found: Stored | None) -> bytes | None:
        nonlocal is_old
        is_old = found is not None and not vault.sealer.is_current(found.body)
        if found is None or not is_old:
            return None
        plain = vault.sealer.open(found.body, cluster=vault.cluster, name=key)
        return vault.sealer.seal(plain, cluster=vault.cluster, name=key, rng=vault.rng)

    await settle.change(vault.store, key, edit)
    return is_old
