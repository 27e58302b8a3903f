"""The cluster's CA, the key that signs nonces, and encryption with a new key."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID

from nstance.admin import errors, output
from nstance.admin.cluster.storage import open_storage
from nstance.admin.options import Target
from nstance.authority import keyset, rotation
from nstance.objects import settle
from nstance.objects.port import Key
from nstance.pki import ca, fields


async def bundle(target: Target) -> bytes:
    """The CA certificates in PEM. Needs no key."""
    async with open_storage(target) as cluster:
        await cluster.cluster()
        stored = await settle.read(cluster.store, cluster.places.ca_certificate)
        if stored is None:
            raise errors.CommandError(
                f"there is no {cluster.places.ca_certificate}; start a server of the cluster first"
            )
        return stored.body


async def show(target: Target) -> list[output.Row]:
    """Newest first, with the one that signs."""
    async with open_storage(target) as cluster:
        authority = await cluster.authority()
        return _rows(authority.cas, cluster.clock.wall())


async def rotate(target: Target, *, life: float | None) -> list[output.Row]:
    """The new CA gets the subject and, by default, the lifetime of the current one."""
    async with open_storage(target) as cluster:
        current = (await cluster.authority()).cas[0].ca.certificate
        lifetime = (current.not_valid_after_utc - current.not_valid_before_utc).total_seconds() - ca.SERVER_BACKDATE
        cas = await rotation.rotate_ca(
            await cluster.vault(),
            cluster.places,
            clock=cluster.clock,
            subject=_subject(current.subject),
            life=lifetime if life is None else life,
        )
        return _without_random_values(target, _rows(cas, cluster.clock.wall()))


async def nonce_keys(target: Target) -> list[output.Row]:
    """Newest first, with the one that signs."""
    async with open_storage(target) as cluster:
        return _key_rows((await cluster.authority()).nonce_keys, cluster.clock.wall())


async def rotate_nonce_key(target: Target) -> list[output.Row]:
    async with open_storage(target) as cluster:
        await cluster.authority()  # fails early with a wrong --cluster-id or key
        found = await rotation.rotate_nonce_key(await cluster.vault(), cluster.places, clock=cluster.clock)
        return _without_random_values(target, _key_rows(found, cluster.clock.wall()))


def _without_random_values(target: Target, rows: list[output.Row]) -> list[output.Row]:
    """In a dry run the newest entry is not kept, so its number means nothing."""
    if not target.dry_run:
        return rows
    return [{**rows[0], **dict.fromkeys(("kid", "serial", "sha256") & rows[0].keys())}, *rows[1:]]


async def rekey(target: Target) -> Sequence[Key]:
    async with open_storage(target) as cluster:
        await cluster.authority()  # fails early with a wrong --cluster-id or key
        return await rotation.rekey(await cluster.vault(), cluster.places)


Dated = TypeVar("Dated", keyset.DatedCa, keyset.DatedKey)


def _uses(dated: Sequence[Dated], now: float, retired: str) -> Iterator[tuple[Dated, str]]:
    """Each with its use; newest first. `retired` is what those are good for that signed before."""
    signer = next((each for each in dated if each.signs_from <= now), dated[-1])
    for each in dated:
        yield each, "signs" if each is signer else "next" if each.signs_from > now else retired


def _key_rows(dated: Sequence[keyset.DatedKey], now: float) -> list[output.Row]:
    return [
        {"kid": key.kid, "use": use, "signs_from": output.timestamp(key.signs_from or None)}
        for key, use in _uses(dated, now, "accepted")
    ]


def _rows(cas: Sequence[keyset.DatedCa], now: float) -> list[output.Row]:
    return [_row(dated, use) for dated, use in _uses(cas, now, "trusted")]


def _row(dated: keyset.DatedCa, use: str) -> output.Row:
    certificate = dated.ca.certificate
    return {
        "subject": certificate.subject.rfc4514_string(),
        "use": use,
        "signs_from": output.timestamp(dated.signs_from or certificate.not_valid_before_utc.timestamp()),
        "expires": output.timestamp(dated.ca.expires),
        "serial": f"{certificate.serial_number:032x}",
        "sha256": certificate.fingerprint(hashes.SHA256()).hex(),
    }


def _subject(name: x509.Name) -> fields.Subject:
    def values(oid: x509.ObjectIdentifier) -> tuple[str, ...]:
        return tuple(str(attribute.value) for attribute in name.get_attributes_for_oid(oid))

    return fields.Subject(
        cn="".join(values(NameOID.COMMON_NAME)),
        organization=values(NameOID.ORGANIZATION_NAME),
        country=values(NameOID.COUNTRY_NAME),
        province=values(NameOID.STATE_OR_PROVINCE_NAME),
        locality=values(NameOID.LOCALITY_NAME),
        street=values(NameOID.STREET_ADDRESS),
        postal_code=values(NameOID.POSTAL_CODE),
    )
