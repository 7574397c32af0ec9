# SPDX-License-Identifier: Apache-2.0
"""What can be said about device transfers without a device."""

from __future__ import annotations

import pytest
import torch

import tutti_kv_kernels as tk


def test_a_cache_that_is_not_on_a_cuda_device_is_refused_with_the_reason() -> None:
    pages = torch.zeros(4096, dtype=torch.uint8)
    cache = tk.PagedCache([pages], [[tk.Plane(0, 0, 1024, 4, 1024)]])
    reason = "CUDA device" if tk.has_cuda_kernels() else "built without CUDA"
    with pytest.raises(ValueError, match=reason):
        tk.DeviceTransfer(cache, torch.zeros(4096, dtype=torch.uint8), 1024)


@pytest.mark.parametrize("verify", [tk.Verify.BEFORE, tk.Verify.FUSED])
@pytest.mark.parametrize("mover", list(tk.Mover))
@pytest.mark.parametrize("given", ["checksums", "status"])
def test_a_scatter_that_could_not_report_a_mismatch_is_refused(
    verify: tk.Verify, mover: tk.Mover, given: str
) -> None:
    """Whatever moves the bytes; no device is asked before."""
    transfer = tk.DeviceTransfer.__new__(tk.DeviceTransfer)
    results = {given: torch.zeros(1, dtype=torch.int64 if given == "checksums" else torch.int32)}
    with pytest.raises(ValueError, match=f"{verify} compares with checksums and reports in status"):
        transfer.scatter(torch.tensor([[0]]), torch.tensor([0]), verify=verify, mover=mover, **results)
