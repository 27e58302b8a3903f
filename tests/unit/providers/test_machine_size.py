"""Instance types of hypervisors."""

import pytest

from nstance.providers import errors, machine_size


@pytest.mark.parametrize("text", ["cpu:1,memory:256", "cpu:4,memory:8192,disk:50"])
def test_a_size_is_read_and_written(text: str) -> None:
    assert str(machine_size.parse(text)) == text


@pytest.mark.parametrize("text", ["", "small", "cpu:0,memory:1", "memory:1,cpu:1", "cpu:1,memory:1,disk:0", "cpu:1"])
def test_others_are_refused(text: str) -> None:
    with pytest.raises(errors.PermanentError, match="expected an instance type such as") as caught:
        machine_size.parse(text)
    assert caught.value.parameter == "instance_type"
