"""Defects of what is used without a cloud: load balancers by webhook and file, and VMs that shut down in order."""

from sim.mutants.mutant import Mutant

LISTS = ("tests/contracts/test_load_balancers.py",)
SERVER = ("tests/component/test_server_member_lists.py",)

ON_PREM: tuple[Mutant, ...] = (
    Mutant(
        "a-shutdown-is-looked-at-rarely",
        "nstance.core.health",
        "    delays = SHUTDOWN_CHECK_DELAYS_SECONDS if is_shutdown else CHECK_DELAYS_SECONDS\n",
        "    delays = CHECK_DELAYS_SECONDS\n",
        "the replacement of a VM that was shut down comes a second later",
        tests=("tests/unit/core/test_core_health.py",),
    ),
    Mutant(
        "an-unreadable-list-is-empty",
        "nstance.providers.member_lists.entries",
        '        raise errors.UnavailableError(f"{expected}, found no list of members")\n',
        "        entries = []\n",
        "all members seem to be gone, and others are forgotten",
        tests=LISTS,
    ),
    Mutant(
        "a-list-without-its-lock",
        "nstance.providers.member_lists.files",
        "            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "            pass\n",
        "changes at the same time are lost",
        tests=LISTS,
    ),
    Mutant(
        "a-signature-without-time",
        "nstance.providers.member_lists.webhooks",
        '    signed = f"{timestamp}.{method}.{path}.".encode() + body\n',
        '    signed = f"{method}.{path}.".encode() + body\n',
        "a recorded call can be sent again at any time",
        tests=LISTS,
    ),
    Mutant(
        "a-refused-secret-is-kept",
        "nstance.providers.member_lists.webhooks",
        "            self._secrets.pop(webhook.secret, None)  # it may have been rotated\n",
        "            pass\n",
        "a rotated secret is not used for minutes",
        tests=LISTS,
    ),
    Mutant(
        "old-addresses-stay",
        "nstance.providers.member_lists.lists",
        "    return all(entry.get(key, value) == value for key, value in expected.items())\n",
        "    return True\n",
        "a member keeps an address that its instance no longer has",
        tests=LISTS,
    ),
    Mutant(
        "webhooks-without-a-cloud-are-forgotten",
        "nstance.server.cloud.configured_balancers",
        "    usable = (*MEMBER_LISTS, kind) if of_cloud else MEMBER_LISTS\n",
        "    usable = (*MEMBER_LISTS, kind) if of_cloud else ()\n",
        "on-prem nothing is registered",
        tests=("tests/component/test_server_member_lists.py", "tests/unit/server/test_configured_balancers.py"),
    ),
)
