"""Roles: what an operator, or a person behind one, may do.

Each role may do all that the one before it may. A role limits a tenant's own operators; what belongs to another tenant
stays invisible to all but `admin`.
"""

from enum import Enum


class Role(Enum):
    VIEWER = "viewer"  # read, watch, plan
    DRAINER = "drainer"  # and acknowledge drains
    OPERATOR = "operator"  # and everything else in its tenant
    ADMIN = "admin"  # and all tenants, and revoking operators

    def allows(self, required: "Role") -> bool:
        return _ORDER[self] >= _ORDER[required]


_ORDER = {role: position for position, role in enumerate(Role)}
NAMES = tuple(role.value for role in Role)


def lowest(*roles: Role) -> Role:
    return min(roles, key=_ORDER.__getitem__)
