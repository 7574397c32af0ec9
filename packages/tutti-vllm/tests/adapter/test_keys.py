# SPDX-License-Identifier: Apache-2.0
"""Chunk keys of vLLM's own requests: equal where the KV is, and different wherever it is not."""

import os

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import vllm
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256, sha256_cbor
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

from tutti_engine.chunk_key import keys_from_block_hashes
from tutti_vllm.commands.prompt_keys import HashFacts, PromptError, keys_of

TOKENS = list(range(100, 228))


def keys(algorithm=sha256, hash_tokens=16, chunk_tokens=32, tokens=TOKENS, **special):
    init_none_hash(algorithm)
    request = Request(
        "r",
        tokens,
        SamplingParams(max_tokens=1),
        None,
        block_hasher=get_request_block_hasher(hash_tokens, algorithm),
        **special,
    )
    return keys_from_block_hashes(request.block_hashes, chunk_tokens // hash_tokens)


def image(identifier, offset=32, length=40):
    return [
        MultiModalFeatureSpec(
            data=None,
            modality="image",
            identifier=identifier,
            mm_position=PlaceholderRange(offset=offset, length=length),
        )
    ]


@pytest.mark.parametrize("algorithm", [sha256, sha256_cbor])
@pytest.mark.parametrize("hash_tokens", [8, 16, 32])
def test_the_same_prompt_has_the_same_keys_at_every_hash_block_size(algorithm, hash_tokens):
    found = keys(algorithm, hash_tokens)
    assert len(found) == 4 and len(set(found)) == 4
    assert found == keys(algorithm, hash_tokens)
    assert keys(algorithm, hash_tokens, tokens=[*TOKENS[:64], 9, *TOKENS[65:]])[:2] == found[:2]
    assert not set(keys(algorithm, hash_tokens, tokens=[9, *TOKENS[1:]])) & set(found)


def test_tenants_with_salts_of_their_own_share_no_chunk():
    assert not set(keys(cache_salt="a")) & (set(keys(cache_salt="b")) | set(keys()))
    assert keys(cache_salt="a") == keys(cache_salt="a")


def test_another_image_behind_the_same_placeholders_has_other_keys_from_there_on():
    cat, dog = keys(mm_features=image("cat")), keys(mm_features=image("dog"))
    assert cat == keys(mm_features=image("cat"))
    # The image begins with the second chunk.
    assert cat[:1] == dog[:1] == keys()[:1]
    assert not set(cat[1:]) & set(dog[1:]) and not set(cat[1:]) & set(keys())


def test_the_same_image_at_another_place_has_other_keys():
    assert not set(keys(mm_features=image("cat", 33))[1:]) & set(keys(mm_features=image("cat", 32))[1:])


@pytest.mark.parametrize("seed", [None, "7"])
def test_keys_without_a_server_are_those_of_its_requests(monkeypatch, seed):
    """``tutti keys`` has what the namespace says, and whatever is in its own environment."""
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    facts = HashFacts("model", "sha256", seed, 16, 32, vllm.__version__)
    with monkeypatch.context() as server:
        if seed is not None:
            server.setenv("PYTHONHASHSEED", seed)
        expected = [keys(), keys(cache_salt="a"), keys(tokens=TOKENS[:40])]
    monkeypatch.setenv("PYTHONHASHSEED", "99")
    assert keys_of(facts, [TOKENS, TOKENS, TOKENS[:40]], [None, "a", None]) == expected
    assert [len(each) for each in expected] == [4, 4, 1]
    assert os.environ["PYTHONHASHSEED"] == "99"


def test_keys_of_another_version_or_hash_are_refused():
    with pytest.raises(PromptError, match=r"0\.1\.2"):
        keys_of(HashFacts("model", "sha256", None, 16, 32, "0.1.2"), [TOKENS], [None])
    with pytest.raises(PromptError, match="md5"):
        keys_of(HashFacts("model", "md5", None, 16, 32, vllm.__version__), [TOKENS], [None])


def test_vllms_hash_knows_an_adapter_by_its_name_and_path_only(tmp_path):
    # Which is why requests with an adapter are left out: its file may change where it lies.
    adapter = LoRARequest("style", 1, str(tmp_path))
    before = keys(lora_request=adapter)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"other weights")
    assert keys(lora_request=adapter) == before
    assert not set(before) & set(keys())
