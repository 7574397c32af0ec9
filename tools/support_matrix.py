# SPDX-License-Identifier: Apache-2.0
"""What works, each line with the tests that show it: `python tools/support_matrix.py` writes docs/support.md.

A line claims nothing by itself. Its tests are looked up in the sources, and where a line was shown follows
from where they lie and how they are marked: a test that was renamed or removed fails, a mark that changed
changes the page.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

__all__ = ["PAGE", "ROWS", "Row", "markdown", "where"]

PAGE = ROOT / "docs" / "support.md"
E2E, ADAPTER = "tests/e2e/", "packages/tutti-vllm/tests/adapter/"
ENGINE, RUNTIME = "packages/tutti-engine/tests/", "packages/tutti-runtime/tests/"
KERNELS = "packages/tutti-kv-kernels/tests/"

HEAD = """\
# What is supported, and where it was shown

`python tools/support_matrix.py` writes this page from the tests; one of them keeps it so. *Where* says what a
line's tests run on:

- **vLLM engine**: a whole vLLM, its CPU engine, a tiny model; every CI run.
- **vLLM classes**: vLLM's own scheduler and cache classes, simulated devices; every CI run.
- **library**: the package alone; every CI run where the machine allows it (the skip says what is missing).
- **NVIDIA GPU**: needs a GPU, which CI has not; what was seen on one is in
  [NVIDIA GPUs](../packages/tutti-vllm/docs/gpu.md).
- **long**: only with `TUTTI_LONG_TESTS=1`.
- **root**: needs root, for small file systems or loop devices.

What the connector refuses by name is in [models](../packages/tutti-vllm/docs/models.md).
"""


@dataclass(frozen=True)
class Row:
    """A line of the page.

    Attributes:
        area: its table.
        what: what works.
        tests: `file::function` of the tests that show it.
    """

    area: str
    what: str
    tests: tuple[str, ...]


def _rows(area: str, *lines: tuple[str, str, str]) -> list[Row]:
    """Return rows from (what, folder, `file::function file::function …`)."""
    return [Row(area, what, tuple(folder + name for name in names.split())) for what, folder, names in lines]


ROWS = [
    *_rows(
        "Models and layouts",
        ("full attention (MHA, GQA, MQA)", E2E, "test_hits.py::test_what_was_computed_comes_back_from_disk"),
        (
            "every load mode, byte by byte",
            E2E,
            "test_kv_bytes.py::test_a_load_brings_the_bytes_of_the_cold_run",
        ),
        ("MLA", E2E, "test_models.py::test_a_latent_comes_back_byte_by_byte"),
        (
            "sliding windows beside full attention, and in every layer",
            E2E,
            "test_models.py::test_windows_beside_full_attention test_models.py::test_a_window_in_every_layer",
        ),
        ("8-bit KV", E2E, "test_models.py::test_eight_bit_kv"),
        (
            "speculative decoding: n-gram drafts, a draft model, EAGLE",
            E2E,
            (
                "test_models.py::test_drafts_that_are_rejected_are_never_stored"
                " test_drafts.py::test_drafts_change_nothing_and_the_draft_models_pages_come_back"
            ),
        ),
        (
            "LoRA adapters",
            E2E,
            "test_adapters.py::test_adapters_hit_and_never_mix_also_when_one_changes_under_its_name",
        ),
        (
            "all placements of pages that vLLM has",
            ADAPTER,
            "test_placements.py::test_pages_by_numbers_are_those_of_vllms_views",
        ),
        (
            "named formats of other servers (split K and V, token slots, cross-layer)",
            KERNELS,
            "test_cache_layouts.py::test_formats_have_the_ids_of_their_places",
        ),
        (
            "state-space layers are refused by name",
            E2E,
            "test_models.py::test_a_state_is_refused_by_the_name_of_its_group",
        ),
    ),
    *_rows(
        "How a model is spread",
        ("tensor parallel", E2E, "test_restart.py::test_two_ranks_store_and_load_their_own_halves"),
        (
            "tensor parallel where ranks hold the same KV (MLA, few heads)",
            E2E,
            "test_parallel.py::test_ranks_that_hold_the_same_kv_store_it_once",
        ),
        (
            "pipeline parallel, stages of unequal length",
            E2E,
            "test_parallel.py::test_two_pipeline_stages_of_unequal_length_over_a_restart",
        ),
        (
            "data parallel",
            E2E,
            "test_data_parallel.py::test_engines_share_a_root_and_its_capacity_and_nothing_else",
        ),
        (
            "servers that share a store",
            E2E,
            (
                "test_shared_store.py::test_cold_on_a_is_a_hit_on_b_with_the_same_bytes"
                " test_shared_store.py::test_b_still_hits_after_the_death_of_a"
            ),
        ),
    ),
    *_rows(
        "How vLLM runs",
        (
            "HTTP server, conversations, clients that hang up",
            E2E,
            "test_online.py::test_conversations_over_http_are_answered_as_by_vllm_alone",
        ),
        (
            "offline engine, `vllm serve` and curl",
            E2E,
            "test_examples.py::test_a_served_prompt_comes_from_disk_after_a_restart_and_offline",
        ),
        ("chunked prefill", E2E, "test_hits.py::test_chunked_prefill"),
        ("preemption", E2E, "test_hits.py::test_more_requests_than_memory_preempt_and_come_back"),
        ("without vLLM's prefix cache", E2E, "test_hits.py::test_without_vllms_own_prefix_cache"),
        ("layer-wise loads", E2E, "test_modes.py::test_layer_by_layer"),
        (
            "asynchronous scheduling; overlapped steps never wait for loads",
            ADAPTER,
            "test_load_failures.py::test_overlapped_steps_never_wait_for_loads",
        ),
        (
            "random schedules against vLLM alone",
            E2E,
            "test_differential.py::test_random_schedules_change_no_token_and_leave_nothing_behind",
        ),
        ("`/metrics`", E2E, "test_metrics.py::test_the_registry_shows_what_happened"),
        (
            "export and import of a prompt's chunks",
            E2E,
            "test_archives.py::test_a_prompts_chunks_travel_in_a_file_and_are_hits_elsewhere",
        ),
        ("KV events", E2E, "test_metrics.py::test_events_name_the_blocks_as_vllm_names_its_own"),
    ),
    *_rows(
        "What may go wrong",
        ("restart", E2E, "test_restart.py::test_warm_after_a_restart"),
        ("kill -9", E2E, "test_restart.py::test_a_killed_server_leaves_nothing_wrong"),
        ("power loss, at every write", ENGINE, "fault/test_crash_points.py"),
        ("damaged files", E2E, "test_faults.py::test_a_damaged_file_is_computed_again_and_mended"),
        ("full disk", E2E, "test_faults.py::test_a_full_disk_costs_hits_only_and_heals"),
        ("read-only root", E2E, "test_refusals.py::test_a_read_only_root_leaves_the_cache_out"),
        (
            "a drive that hangs",
            ADAPTER,
            "test_load_failures.py::test_a_drive_that_hangs_costs_its_deadline_and_nothing_else",
        ),
        (
            "a cluster's master, nodes, network and store fail, one after the other",
            "tests/cluster/",
            "test_failures.py::test_prompts_go_on_are_right_and_the_cluster_heals",
        ),
        ("hostile files, links, names", ENGINE, "fault/test_hostile_store.py"),
    ),
    *_rows(
        "Storage backends (`tutti-engine`)",
        ("local store on drives", ENGINE, "contract/test_local_conformance.py"),
        ("memory", ENGINE, "contract/test_memory_conformance.py"),
        ("a backend of your own", ENGINE, "contract/test_custom_backend.py::TestCustomBackend"),
        ("shared stores", ENGINE, "contract/test_shared_stores.py"),
        ("Mooncake", ENGINE, "contract/test_mooncake.py"),
    ),
    *_rows(
        "Data paths (`tutti-runtime`)",
        ("memory, threads, io_uring", RUNTIME, "test_contract.py::test_contract"),
        ("a raw block device", RUNTIME, "test_contract.py::test_contract_on_a_block_device"),
        (
            "GPUDirect Storage, on a stand-in of the library",
            RUNTIME,
            "test_contract.py::test_contract_on_cufile",
        ),
        (
            "GPUDirect Storage, the real library",
            RUNTIME,
            "test_gpu.py::test_cufile_moves_between_files_and_device_memory",
        ),
        ("pinned memory, events and gates of CUDA", RUNTIME, "test_gpu.py::test_a_stream_never_hangs"),
        (
            "NVMe commands from user space, on QEMU's drives",
            RUNTIME,
            "test_nvme_qemu.py::test_the_contract_of_every_runtime",
        ),
        (
            "the real driver interface (VFIO), in a virtual machine",
            RUNTIME,
            "test_nvme_guest.py::test_in_the_guest",
        ),
        (
            "one NVMe controller for several processes, some of which are killed",
            RUNTIME,
            "test_nvmed.py::test_processes_share_a_controller_and_some_are_killed",
        ),
        (
            "NVMe commands from a GPU, on a software drive",
            RUNTIME,
            "test_nvme_gpu.py::test_bytes_go_to_device_memory_and_back",
        ),
    ),
    *_rows(
        "Kernels (`tutti-kv-kernels`)",
        ("gather and scatter on the CPU", KERNELS, "test_round_trip.py"),
        (
            "gather and scatter on a GPU, by kernels and copy engines",
            KERNELS,
            (
                "test_device_transfers.py::test_random_planes_round_trip"
                " test_device_transfers.py::test_copy_engines_move_the_same_bytes"
            ),
        ),
    ),
    *_rows(
        "Other servers",
        (
            "Hugging Face transformers (example)",
            ENGINE,
            "contract/test_transformers_example.py::test_the_same_logits_come_from_a_restored_cache",
        ),
        (
            "SGLang HiCache (example)",
            ENGINE,
            "contract/test_sglang_example.py::test_pages_are_read_in_place_after_a_restart",
        ),
    ),
]


@cache
def _source(path: str) -> tuple[str, ast.Module]:
    text = (ROOT / path).read_text(encoding="utf-8")
    return text, ast.parse(text)


def _marks(path: str, name: str) -> str:
    """Return the source of the marks of a test, or of all in a file, with those of its file.

    Raises LookupError when there is no such test.
    """
    text, tree = _source(path)
    marks = [
        ast.get_source_segment(text, node) or ""
        for node in tree.body
        if isinstance(node, ast.Assign)
        and any(getattr(each, "id", "") == "pytestmark" for each in node.targets)
    ]
    found = not name
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            found = True
            marks += [ast.get_source_segment(text, each) or "" for each in node.decorator_list]
    if not found:
        raise LookupError(f"tools/support_matrix.py names {path}::{name}, which does not exist")
    return "\n".join(marks)


def where(test: str) -> str:
    """Return what a test runs on. Raises LookupError when it does not exist."""
    path, _, name = test.partition("::")
    if not (ROOT / path).is_file():
        raise LookupError(f"tools/support_matrix.py names {path}, which does not exist")
    marks = _marks(path, name)
    place = "library"
    if path.startswith(E2E):
        place = "vLLM engine"
    elif path.startswith(ADAPTER):
        place = "vLLM classes"
    if "mark.gpu" in marks:
        place = "NVIDIA GPU"
    extra = [word for word, sign in (("long", "TUTTI_LONG_TESTS"), ("root", "mark.root")) if sign in marks]
    return ", ".join([place, *extra])


def markdown() -> str:
    """Return the page."""
    lines = [HEAD]
    for area in dict.fromkeys(row.area for row in ROWS):
        lines += [f"## {area}", "", "| what | where | shown by |", "| --- | --- | --- |"]
        for row in (row for row in ROWS if row.area == area):
            places = " / ".join(dict.fromkeys(where(test) for test in row.tests))
            shown = "<br>".join(
                f"`{test.removeprefix('packages/').replace('/tests/', '/')}`" for test in row.tests
            )
            lines.append(f"| {row.what} | {places} | {shown} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(markdown(), encoding="utf-8")
    sys.exit(0)
