"""Defects in who may do what, and in the chain that shows what was done."""

from sim.mutants.mutant import Mutant

ROLES = ("tests/component/test_roles.py",)
HTTP = ("tests/component/test_http_roles.py",)
AUDIT = ("tests/component/test_admin_audit.py",)

ACCESS: tuple[Mutant, ...] = (
    Mutant(
        "ids-are-shared-by-all-tenants",
        "nstance.model.ids",
        '    digest = hashlib.sha256(f"{tenant}\\n{chosen:032x}".encode()).digest()\n',
        '    digest = hashlib.sha256(f"{chosen:032x}".encode()).digest()\n',
        "a tenant finds out which instance IDs others use",
        tests=("tests/component/test_operator_service_tenants.py",),
    ),
    Mutant(
        "roles-are-not-checked",
        "nstance.server.api.permissions",
        "    if not role.allows(required):\n",
        "    if False:\n",
        "a viewer changes everything of its tenant",
        tests=ROLES,
    ),
    Mutant(
        "every-watch-may-drain",
        "nstance.server.api.permissions",
        '    if rpc == "Watch" and request.drains:\n',
        "    if False:\n",
        "a viewer makes every deletion wait",
        tests=ROLES,
    ),
    Mutant(
        "every-operator-may-act-in-every-tenant",
        "nstance.server.api.permissions",
        "    if not who.role.allows(Role.ADMIN):\n",
        "    if False:\n",
        "an operator reads and changes what belongs to another tenant",
        tests=ROLES,
    ),
    Mutant(
        "the-person-raises-the-role",
        "nstance.server.api.permissions",
        "        return lowest(own, Role(named))\n",
        "        return Role(named)\n",
        "a viewer says that it is an admin, and is one",
        tests=ROLES,
    ),
    Mutant(
        "routes-check-no-role",
        "nstance.admin.http.v1.routing",
        "        if caller is None or not caller.role.allows(self.role):\n",
        "        if False:\n",
        "a person with the role viewer reads the journal of all tenants",
        tests=HTTP,
    ),
    Mutant(
        "sessions-outlive-their-token",
        "nstance.admin.http.access",
        "        if session.token:\n",
        "        if False:\n",
        "a revoked person goes on in the browser",
        tests=HTTP,
    ),
    Mutant(
        "slots-are-not-linked",
        "nstance.objects.journal",
        "        self.head = slot.checksum\n",
        "",
        "nobody notices an altered journal",
        tests=AUDIT,
    ),
    Mutant(
        "snapshots-forget-the-head",
        "nstance.objects.journal_writer",
        "            head=state.head,\n",
        "",
        "after a compaction nobody knows what the first slot follows",
        tests=AUDIT,
    ),
)
