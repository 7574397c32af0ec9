# SPDX-License-Identifier: Apache-2.0
"""Answer a long prompt with vLLM's offline engine and keep its KV cache on disk.

    python offline.py your/model /mnt/nvme0/tutti long-prompt.txt

Run it twice: the second process finds the prompt's KV cache on disk and computes only the end of it. What
follows are arguments of `vllm.LLM`, as in `dtype=float32 max_model_len=4096`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

CAPACITY_BYTES = 20 * 10**9


def option(text: str) -> tuple[str, Any]:
    """Read `name=value`; the value is JSON, or plain text where it is none."""
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def main(model: str, root: str, prompt_file: str, *options: str) -> None:
    """Answer once and tell how much of the prompt was not computed."""
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    llm = LLM(
        model=model,
        kv_transfer_config=KVTransferConfig(
            kv_connector="TuttiConnectorV1",
            kv_connector_module_path="tutti_vllm.connector",
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config={"capacity_bytes": CAPACITY_BYTES, "root": root},
        ),
        **dict(map(option, options)),
    )
    prompt = Path(prompt_file).read_text(encoding="utf-8")
    (answer,) = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=16), use_tqdm=False)
    assert answer.prompt_token_ids is not None
    print(f"answer: {answer.outputs[0].text!r}")
    print(f"cached tokens: {answer.num_cached_tokens} of {len(answer.prompt_token_ids)}")


# vLLM starts processes that import this file again.
if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
