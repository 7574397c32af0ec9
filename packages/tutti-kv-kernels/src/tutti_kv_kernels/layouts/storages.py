# SPDX-License-Identifier: Apache-2.0
"""Numbers the distinct storages under a cache's tensors."""

from __future__ import annotations

import torch

from tutti_kv_kernels.errors import LayoutError

__all__ = ["StorageList", "storage_bytes"]


def storage_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The whole untyped storage under ``tensor`` as a 1-D uint8 tensor that shares its memory."""
    storage = tensor.untyped_storage()
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return flat.set_(storage, 0, (storage.nbytes(),), (1,))


class StorageList:
    """The storages met so far, each once, in the order in which they were met."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self._index: dict[tuple[int, int], int] = {}

    def index(self, tensor: torch.Tensor) -> int:
        """Number of the storage under ``tensor``.

        Raises:
            LayoutError: when it is on another device than those before.
        """
        if self.tensors and tensor.device != self.tensors[0].device:
            raise LayoutError(
                f"all tensors of a cache must be on one device, got {self.tensors[0].device} and "
                f"{tensor.device}"
            )
        storage = tensor.untyped_storage()
        key = (storage.data_ptr(), storage.nbytes())
        if key not in self._index:
            self._index[key] = len(self.tensors)
            self.tensors.append(storage_bytes(tensor))
        return self._index[key]
