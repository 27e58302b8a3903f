"""A JSON Schema for editors, from the model that validates. `python -m nstance.config.schema` prints it."""

import json
import sys
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from nstance.config import addresses, durations, fields, legacy
from nstance.config.settings import Document


class _Generate(GenerateJsonSchema):
    def encode_default(self, dft: Any) -> Any:
        """Defaults as a person would write them."""
        if isinstance(dft, fields.Block):
            return dft.model_dump(mode="json", exclude_unset=True)
        if isinstance(dft, addresses.Address):
            return str(dft)
        return durations.format(dft) if isinstance(dft, float) else super().encode_default(dft)


def json_schema() -> dict[str, Any]:
    generated = Document.model_json_schema(schema_generator=_Generate)
    made = {"$schema": "https://json-schema.org/draft/2020-12/schema", **generated}
    made["title"] = "Nstance server configuration"
    return legacy.describe(made)


def text() -> str:
    """As it is committed."""
    return json.dumps(json_schema(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
