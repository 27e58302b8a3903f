"""Writes src/nstance/aws/run_instances.py: the fields of RunInstances by AWS's own service model. `--check` compares.

Run `make format` afterwards."""

import pprint
import sys
from pathlib import Path
from typing import Any

import botocore.session

from nstance.aws.run_instances import RUN_INSTANCES

TARGET = Path(__file__).parent.parent / "src/nstance/aws/run_instances.py"
HEAD = '''"""The fields of EC2's RunInstances, written by scripts/aws_fields.py from AWS's service model.

By name of the field: its name on the wire and its type. A type is the name of a scalar, a dictionary of fields, or a list
with the type of its entries.
"""

from typing import Any

'''


def fields(shape: Any, above: tuple[str, ...] = ()) -> Any:
    if shape.type_name == "list":
        return [fields(shape.member, above)]
    if shape.type_name != "structure" or shape.name in above:
        return shape.type_name
    return {
        name: (_wire_name(name, member), fields(member, (*above, shape.name))) for name, member in shape.members.items()
    }


def _wire_name(name: str, shape: Any) -> str:
    found = shape.serialization.get("queryName") or shape.serialization.get("name") or name
    return str(found[:1].upper() + found[1:])


def main() -> int:
    model = botocore.session.get_session().get_service_model("ec2")
    table = fields(model.operation_model("RunInstances").input_shape)
    if "--check" in sys.argv[1:]:
        return 0 if table == RUN_INSTANCES else 1
    TARGET.write_text(f"{HEAD}RUN_INSTANCES: dict[str, Any] = {pprint.pformat(table, width=118)}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
