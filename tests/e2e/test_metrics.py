# SPDX-License-Identifier: Apache-2.0
"""What vLLM's own registry shows after a cold run, after a restart, after a load that failed."""

from tests.e2e.conftest import CHUNK_BYTES, CHUNK_TOKENS, prompt


class Shown:
    """What vLLM's registry, which ``/metrics`` prints, shows of the connector now."""

    def __init__(self):
        from prometheus_client import REGISTRY

        self.values = {}
        for sample in (each for family in REGISTRY.collect() for each in family.samples):
            if sample.name.startswith("vllm:tutti_") and not sample.name.endswith(("_created", "_bucket")):
                labels = dict(sample.labels)
                assert labels.pop("engine") == "0" and labels.pop("model_name")
                name = sample.name.removeprefix("vllm:tutti_").removesuffix("_total")
                self.values[(name, *sorted(labels.items()))] = sample.value

    def __call__(self, name, **labels):
        """Return the sum over the series that have these labels."""
        found = [
            value
            for (each, *pairs), value in self.values.items()
            if each == name and labels.items() <= dict(pairs).items()
        ]
        assert found, f"{name} {labels} is not shown"
        return sum(found)


def answer(engine, *prompts):
    """As ``Engine.answer``, but stores end in steps whose statistics vLLM records as well."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, detokenize=False)
    engine.llm.generate([{"prompt_token_ids": one} for one in prompts], sampling, use_tqdm=False)
    while engine.llm.llm_engine.engine_core.engine_core.scheduler.has_requests():
        engine.llm.llm_engine.step()
    return Shown()


def agree_with_the_counters(shown, engine, resident=0):
    counters = engine.counters()
    for direction, total in (("load", "read_bytes"), ("store", "written_bytes")):
        if total in counters:
            assert shown("transfer_bytes", direction=direction) == counters[total]
            assert shown("detail", side="scheduler", counter=total) == counters[total]
    assert shown("loaded_chunks") == counters.get("load_chunks", 0)
    assert shown("stored_chunks") == counters.get("store_chunks", 0)
    assert shown("failed_chunks", direction="load") == counters.get("load_failed_chunks", 0)
    assert resident + shown("stored_chunks") == shown("resident_chunks") + shown("removed_chunks")


def test_the_registry_shows_what_happened(start, tmp_path):
    prompts = [prompt(60, 500), prompt(61, 690)]
    engine = start()
    cold = answer(engine, *prompts)
    agree_with_the_counters(cold, engine)
    assert (cold("prompts"), cold("prompt_tokens"), cold("hits")) == (2, 500 + 690, 0)
    assert cold("stored_chunks") == cold("resident_chunks") == 7 + 10
    assert cold("transfer_bytes", direction="store") == cold("resident_bytes") == 17 * CHUNK_BYTES
    assert cold("transfer_seconds", direction="store") > 0
    assert cold("transfer_bytes_per_second", direction="store") > 0
    assert (
        cold("capacity_chunks") == engine._core.scheduler.connector._scheduler.engine.planner.capacity_chunks
    )

    engine = start()
    warm = answer(engine, *prompts)
    agree_with_the_counters(warm, engine, resident=17)
    assert (warm("hits"), warm("hit_tokens")) == (2, 17 * CHUNK_TOKENS)
    assert (warm("loaded_chunks"), warm("loaded_tokens")) == (17, 17 * CHUNK_TOKENS)
    assert warm("transfer_bytes", direction="load") == 17 * CHUNK_BYTES
    assert warm("load_seconds_count") == 2, "one observation a load"
    assert warm("load_seconds_sum") >= warm("transfer_seconds", direction="load") > 0
    assert warm("stored_chunks") == 0
    assert warm("transfers_under_way") == warm("pending_plans") == warm("staging_used_bytes") == 0
    assert (warm("failed_chunks"), warm("degraded")) == (0, 0)

    for path in tmp_path.glob("cache/*/rank-0/*.seg"):
        path.write_bytes(bytes(path.stat().st_size))
    engine.forget_memory()
    broken = answer(engine, prompts[0])
    agree_with_the_counters(broken, engine, resident=17)
    assert broken("failed_chunks", direction="load") == 7
    assert broken("failed_transfers", direction="load", kind="checksum") == 1
    assert broken("removed_chunks", reason="lost") == 7
    assert broken("corrupt_chunks") >= 1, "what goes on from it goes with it"
    assert broken("hits") == 3 and broken("prompts") == 3

    engine.forget_memory(disk=True)
    after = answer(engine, prompts[1])
    agree_with_the_counters(after, engine, resident=17)
    assert after("removed_chunks", reason="reset") == 17
    assert after("prompts") == 4
    assert all(
        value >= broken.values[key]
        for key, value in after.values.items()
        if key in broken.values
        and key[0] in ("hits", "hit_tokens", "loaded_chunks", "stored_chunks", "detail")
    ), "a reset takes nothing back"


def test_events_name_the_blocks_as_vllm_names_its_own(start, monkeypatch):
    engine = start(kv_events_config={"enable_kv_cache_events": True, "publisher": "null"})
    events = []
    publisher = engine._core.scheduler.kv_event_publisher
    monkeypatch.setattr(publisher, "publish", lambda batch: events.extend(batch.events))
    answer(engine, prompt(62, 500))
    on_disk = [event for event in events if event.medium == "STORAGE"]
    in_memory = [event for event in events if event.medium != "STORAGE"]
    tokens_of = {}
    for event in in_memory:
        for number, each in enumerate(event.block_hashes):
            tokens_of[each] = event.token_ids[number * event.block_size : (number + 1) * event.block_size]
    assert len(on_disk) == 7
    for event in on_disk:
        tokens = [token for each in event.block_hashes for token in tokens_of[each]]
        assert event.token_ids == tokens and event.block_size == in_memory[0].block_size
    assert [event.parent_block_hash for event in on_disk[1:]] == [e.block_hashes[-1] for e in on_disk[:-1]]

    events.clear()
    engine.forget_memory(disk=True)
    answer(engine, prompt(63, 20))
    # vLLM's own reset names no blocks.
    gone = [event for event in events if getattr(event, "medium", None) == "STORAGE"]
    assert {type(event).__name__ for event in gone} == {"BlockRemoved"}
    removed = {each for event in gone for each in event.block_hashes}
    assert removed == {each for event in on_disk for each in event.block_hashes}
