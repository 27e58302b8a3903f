"""The schema for editors: the committed one is the generated one, and it knows what the model knows."""

from pathlib import Path

from nstance.config import schema

COMMITTED = Path(__file__).parents[3] / "docs" / "config.schema.json"


def test_the_committed_schema_is_current() -> None:
    """When this fails: python -m nstance.config.schema > docs/config.schema.json"""
    assert COMMITTED.read_text() == schema.text()


def test_it_describes_both_spellings_in_the_words_of_a_file() -> None:
    made = schema.json_schema()
    assert {"cluster", "shard", "server", "groups", "$schema"} <= set(made["properties"])
    assert made["anyOf"] == [{"required": ["cluster", "shard"]}, {"required": ["server"]}]
    assert made["$defs"]["Health"]["properties"]["dead_after"]["default"] == "1m"
    assert made["$defs"]["BindAddresses"]["properties"]["agent_addr"]["default"] == ":8994"
    assert made["additionalProperties"] is False
