"""Writes src/nstance/gcp/instance_fields.json: the fields of a Compute Engine instance by Google's own description of its API.
`--check` compares.
"""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from nstance.gcp.arguments import INSTANCE

TARGET = Path(__file__).parent.parent / "src/nstance/gcp/instance_fields.json"


def document() -> Any:
    found = importlib.util.find_spec("googleapiclient")
    assert found is not None
    assert found.submodule_search_locations is not None
    folder = Path(found.submodule_search_locations[0])
    return json.loads((folder / "discovery_cache/documents/compute.v1.json").read_bytes())


def fields(schemas: Any, spec: Any, above: tuple[str, ...] = ()) -> Any:
    if name := spec.get("$ref"):
        return "any" if name in above else fields(schemas, schemas[name], (*above, name))
    if spec.get("type") == "array":
        return [fields(schemas, spec["items"], above)]
    if "additionalProperties" in spec:
        return {"*": fields(schemas, spec["additionalProperties"], above)}
    if spec.get("type") != "object":
        return spec.get("format") if spec.get("format") in ("int64", "uint64") else spec.get("type", "any")
    return {
        name: fields(schemas, field, above)
        for name, field in sorted(spec.get("properties", {}).items())
        if not field.get("readOnly") and "[Output Only]" not in field.get("description", "")
    }


def main() -> int:
    schemas = document()["schemas"]
    table = fields(schemas, {"$ref": "Instance"})
    if "--check" in sys.argv[1:]:
        return 0 if table == INSTANCE else 1
    TARGET.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
