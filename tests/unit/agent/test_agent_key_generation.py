"""The child process gives what this process would give."""

import pytest

from nstance.agent.credentials import key_generation
from nstance.model.ids import ClusterId
from nstance.pki import keys, proof


@pytest.mark.parametrize("make", [key_generation.make, key_generation.make_in_child])
def test_makes_pairs_and_proofs(make: key_generation.KeyMaker) -> None:
    made = make({"a": key_generation.KeyRequest(), "b": key_generation.KeyRequest(None, "c1", "no.nce")})
    for pair in made.values():
        private = keys.private_key_from_pem(pair.private_pem)
        assert keys.public_to_pem(keys.public_bytes(private)) == pair.public_pem
    assert made["a"].signature is None
    public = keys.public_key_from_pem(made["b"].public_pem)
    signature = made["b"].signature
    assert signature is not None
    proof.check_registration(signature, public_key=public, cluster=ClusterId("c1"), nonce="no.nce")
    again = make({"a": key_generation.KeyRequest(made["a"].private_pem)})
    assert again == {"a": made["a"]}


@pytest.mark.parametrize("make", [key_generation.make, key_generation.make_in_child])
def test_an_unreadable_key_is_reported_and_not_shown(make: key_generation.KeyMaker) -> None:
    with pytest.raises(key_generation.KeyGenerationError) as caught:
        make({"a": key_generation.KeyRequest(b"precious \xff")})
    assert "'a'" in str(caught.value)
    assert "precious" not in str(caught.value)


def test_a_child_that_cannot_run_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_generation, "_CHILD", "raise SystemExit('no such module')")
    with pytest.raises(key_generation.KeyGenerationError, match="no such module"):
        key_generation.make_in_child({"a": key_generation.KeyRequest()})
