"""Writes src/nstance/aws/run_instances.json: the fields of RunInstances by AWS's own service model. `--check` compares."""

import json
import sys
from pathlib import Path
from typing import Any

import botocore.session

from nstance.aws.arguments import RUN_INSTANCES

TARGET = Path(__file__).parent.parent / "src/nstance/aws/run_instances.json"


def fields(shape: Any, above: tuple[str, ...] = ()) -> Any:
    if shape.type_name == "list":
        return [fields(shape.member, above)]
    if shape.type_name != "structure" or shape.name in above:
        return shape.type_name
    return {
        name: [_wire_name(name, member), fields(member, (*above, shape.name))] for name, member in shape.members.items()
    }


def _wire_name(name: str, shape: Any) -> str:
    found = shape.serialization.get("queryName") or shape.serialization.get("name") or name
    return str(found[:1].upper() + found[1:])


def main() -> int:
    model = botocore.session.get_session().get_service_model("ec2")
    table = fields(model.operation_model("RunInstances").input_shape)
    if "--check" in sys.argv[1:]:
        return 0 if table == RUN_INSTANCES else 1
    TARGET.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
