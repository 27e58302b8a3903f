"""The JSON Schema of the configuration, for editors. `python -m nstance.config.schema` prints it."""

import json
import sys
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from nstance.config import addresses, durations, legacy
from nstance.config.model import scalars
from nstance.config.model.settings import Document


class _Generate(GenerateJsonSchema):
    def encode_default(self, dft: Any) -> Any:
        """Defaults as they are written in a file."""
        if isinstance(dft, scalars.Block):
            return dft.model_dump(mode="json", exclude_unset=True)
        if isinstance(dft, addresses.Address):
            return str(dft)
        return durations.format(dft) if isinstance(dft, float) else super().encode_default(dft)


def json_schema() -> dict[str, Any]:
    generated = Document.model_json_schema(schema_generator=_Generate)
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return legacy.describe({"$schema": dialect, **generated, "title": "Nstance server configuration"})


def text() -> str:
    """The committed file."""
    return json.dumps(json_schema(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
