# SPDX-License-Identifier: Apache-2.0
"""NVMe commands of whole layers, submitted by teams of lanes: warps of a CUDA kernel, or threads.

What a layer moves is prepared once; submitting it again costs the host one descriptor, however many slices it
has.

    layers = NvmeLayers(controllers=[{"transport": "vfio", "bdf": "0000:01:00.0"}])
    window = layers.add_window(address, nbytes)
    place = layers.add_place(0, 1, [(0, 0, blocks)])
    layer = layers.add_layer("read", slices)      # rows of (drive, place, window, target, memory, length)
    ticket = layers.submit(layer)
    assert layers.wait(ticket, 10.0)
    layers.statuses(layer)                        # 0, or an errno, for each slice
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tutti_runtime import _core, nvme_settings

__all__ = ["NvmeLayers", "missing_kernel"]


def missing_kernel() -> str:
    """Return why ``execution="cuda"`` cannot work in this build; empty when the kernel is in it."""
    return _core.nvme_missing_kernel()


class NvmeLayers:
    """Controllers, driven by teams. For one thread at a time.

    Settings: ``controllers`` as of :func:`~tutti_runtime.make_nvme_runtime`; ``execution``: ``"cpu"``
    (default) or ``"cuda"``, then ``device`` and ``blocks`` (thread blocks at most, 1 to 8, default 4);
    ``queues`` of each controller, a team each (2); ``queue_entries`` (256); ``window_commands`` (0: what the
    queues take) and ``window_bytes`` (64 MiB) under way on a controller at once; ``ring_entries``, layers
    submitted and not done (64); ``command_timeout``, ``admin_timeout``, ``retry_after`` in seconds; ``sgl``;
    ``linger`` (0.002): seconds that teams without work look for more before they leave, and the next submit
    starts them again; ``stay`` (0.05): seconds after which they leave though there is more. On a GPU nothing
    that waits for the whole device ends while they are there. Both are 1 at most.

    Raises ``ValueError`` for a setting, ``OSError`` for a controller or device that does not come up.
    """

    def __init__(self, **settings: Any) -> None:
        self._native = _core.NvmeLayers(**nvme_settings.check_layer_settings(settings))

    def add_window(self, address: int, nbytes: int, kind: str = "host", device: int = -1) -> int:
        """Let slices name this memory, which must stay while the object lives; return its number."""
        return self._native.add_window(address, nbytes, kind, device)

    def add_place(self, drive: int, nsid: int, extents: Sequence[tuple[int, int, int]]) -> int:
        """Let slices name these blocks, rows of (first block of the place, LBA, blocks); return the number.

        Places are counted for each drive. Extents are sorted and do not overlap.
        """
        return self._native.add_place(drive, nsid, list(extents))

    def add_layer(self, direction: str, slices: ArrayLike) -> int:
        """Prepare reads or writes; return the layer's number.

        ``slices``: rows of (drive, place, window, offset in the place, offset in the window, length), offsets
        and lengths in bytes.
        """
        return self._native.add_layer(direction, np.asarray(slices, dtype=np.uint64))

    def submit(self, layer: int) -> int:
        """Hand the layer to the teams; return a ticket.

        ``OSError``: EBUSY while the layer is under way, EAGAIN when the ring is full.
        """
        return self._native.submit(layer)

    def wait(self, ticket: int, timeout: float) -> bool:
        """Wait until the layer is done and nothing of it is under way; False at the timeout."""
        return self._native.wait(ticket, timeout)

    def statuses(self, layer: int) -> NDArray[np.int32]:
        """Return 0 or an errno for each slice, in their order, as of the last round that is done."""
        return self._native.statuses(layer)

    def device_statuses(self, layer: int) -> int:
        """Return the address of the same words (int32) for kernels that use the bytes."""
        return self._native.device_statuses(layer)

    def done_word(self, layer: int) -> int:
        """Return the address of the word (64 bits) that holds the ticket of the last round that is done."""
        return self._native.done_word(layer)

    def play_drives(self) -> None:
        """Let teams play the drives, which say success and move nothing: to measure submission alone.

        Before the first submit; the controllers are kept from memory, and are of no use afterwards.
        """
        self._native.play_drives()

    def counters(self) -> dict[str, int]:
        """Return what the teams have done; exact once nothing is under way."""
        return self._native.counters()

    def stop(self) -> None:
        """End the teams. Nothing may be under way."""
        self._native.stop()
