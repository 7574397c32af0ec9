# SPDX-License-Identifier: Apache-2.0
"""The functions that make a runtime."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tutti_runtime import _core, broker_uri, config, nvme_settings
from tutti_runtime.runtime import Runtime
from tutti_runtime.write_policy import WritePolicy

__all__ = [
    "make_file_runtime",
    "make_memory_runtime",
    "make_nvme_runtime",
    "make_runtime",
    "make_striped_runtime",
]

_DEFAULT_UNIT = 1 << 20


def make_file_runtime(
    *,
    data_path: str = "auto",
    direct: str = "auto",
    queue_depth: int = 64,
    max_in_flight: int = 4096,
    max_results: int = 1 << 20,
    threads: int = 4,
    max_open_files: int | None = None,
    nofollow: str = "last",
    write_policy: WritePolicy | None = None,
    step_down_after: int = 3,
    cufile_library: str = "",
) -> Runtime:
    """Make a runtime for ``file://``, ``raw://`` and, with roots in the URI, ``striped://`` targets.

    Args:
        data_path: ``"uring"``, ``"posix"``, ``"cufile"`` (GPUDirect Storage: the one for device memory; every
            target keeps a descriptor there), or ``"auto"``: io_uring where the kernel has it, and the pool of
            threads for what io_uring turns out not to be able to do, never cufile.
        direct: ``"on"`` (O_DIRECT or an error), ``"off"``, or ``"auto"``: O_DIRECT where the file system
            takes it.
        queue_depth: operations of one root (one drive) that io_uring holds at once.
        max_in_flight: accepted and unfinished requests.
        max_results: requests, unfinished or finished, of batches that nobody has waited for or abandoned; no
            fewer than ``max_in_flight``.
        threads: posix threads for each root; cufile threads in all.
        max_open_files: descriptors that are kept; a target that was not used for the longest time loses its
            own and gets one again when it is used (``None``: a quarter of the process's limit, at most 1024).
        nofollow: ``"last"`` refuses a symbolic link as the last component of a path, ``"all"`` in any.
        write_policy: how writes share a root with reads (``None``: the defaults of :class:`WritePolicy`).
        step_down_after: with ``"auto"``, operations in a row that io_uring fails and the pool of threads can
            do, after which the runtime stays with the threads. Each of them succeeds all the same.
        cufile_library: absolute path of ``libcufile.so.0``; by default that of an installed ``nvidia-cufile``
            package, else where the loader finds it.

    Raises ``ValueError`` naming the key, and ``OSError`` when ``"uring"`` or ``"cufile"`` is asked for and
    cannot be had.
    """
    settings = {
        "data_path": data_path,
        "direct": direct,
        "queue_depth": queue_depth,
        "max_in_flight": max_in_flight,
        "max_results": max_results,
        "threads": threads,
        "max_open_files": max_open_files,
        "nofollow": nofollow,
        "write_policy": write_policy,
        "step_down_after": step_down_after,
        "cufile_library": cufile_library,
    }
    return Runtime(_core.make_file(**config.check_file_settings(settings)))


def make_striped_runtime(
    *, roots: Iterable[str | bytes | os.PathLike[str]], unit: int = _DEFAULT_UNIT, **settings: Any
) -> Runtime:
    """Make a file runtime whose ``striped://name`` targets lie on ``roots`` in units of ``unit`` bytes.

    ``roots``: 1 to 64 absolute paths of folders, one per drive. ``unit``: a power of two from 4 KiB to 1 GiB.
    Both stand in where a URI names none. All other keys are those of :func:`make_file_runtime`.
    """
    config.check_keys(settings, config.FILE_KEYS)
    checked = config.check_file_settings(settings)
    return Runtime(_core.make_file(**checked, roots=config.check_roots(roots), unit=config.check_unit(unit)))


def make_memory_runtime(*, max_in_flight: int = 4096) -> Runtime:
    """Make a runtime for ``mem://`` targets: no device, for tests and as a reference."""
    return Runtime(_core.make_memory(config.check_int("max_in_flight", max_in_flight)))


def make_nvme_runtime(
    *,
    controllers: Iterable[Mapping[str, Any]],
    queues: int = 1,
    queue_entries: int = 256,
    window_bytes: int = 64 << 20,
    window_commands: int = 0,
    command_timeout: float = 5.0,
    admin_timeout: float = 2.0,
    retry_after: float = 1.0,
    sgl: bool = True,
    device_executor: str = "auto",
    device: int = 0,
    device_queues: int = 2,
    device_blocks: int = 4,
    max_in_flight: int = 4096,
    max_results: int = 1 << 20,
    write_policy: WritePolicy | None = None,
    roots: Iterable[str | bytes | os.PathLike[str]] = (),
    unit: int = _DEFAULT_UNIT,
) -> Runtime:
    """Make a runtime that drives NVMe controllers itself, without the kernel's driver.

    Its targets: ``nvme://name/nsid?offset=BYTES&size=BYTES``; ``file:///path`` on a block device that a
    controller is said to have, by proven extents (:func:`resolve_extents`); ``striped://`` over either.

    Args:
        controllers: one mapping each, with ``transport``, ``name`` (in URIs) and the transport's keys.
            ``"soft"``, a controller in the process: ``memory_bytes`` or ``image`` (a file), ``lba_bytes``, or
            ``namespaces`` (a list of mappings with these keys); ``mdts_bytes``, ``sgl``, ``max_entries``,
            ``max_queues``, ``doorbell_stride``, ``timeout_ms``, ``noiob``, ``dma_granule``, ``latency``
            (seconds), ``bandwidth`` (bytes a second), ``device`` (a CUDA device whose memory it reaches, by
            copies; not tested on hardware), ``control`` (a :class:`tutti_runtime.testing.SoftNvmeControl`).
            ``"broker"``, a controller that a ``tutti-nvmed`` owns (docs/nvmed.md): ``socket``, ``controller``
            (its name there; the same where none is given), ``queues`` (most to ask for), ``answer_timeout``.
            ``"qtest"``, a controller of a QEMU process: ``socket``, ``ram``, ``slot``, ``relay``, ``peer``,
            ``peer_slot``, ``device`` (a CUDA device that rings the relay's doorbells; not tested on
            hardware). ``"vfio"``: ``bdf``, which is the name too where none is given.
            With any, ``block_devices``: a list of ``{"device": path or (major, minor), "nsid": 1, "offset":
            bytes from the namespace's first block}``; who says so vouches for it.
        queues, queue_entries: I/O queue pairs of each controller and entries of each; what the controller
            grants and takes may be less.
        window_bytes, window_commands: bytes and number of commands under way on one controller at once (0
            commands: what the queues take). Where a device submits, half of it is the device's.
        command_timeout: seconds after which a command is given up: aborted, its queue made anew, at last the
            controller reset. Its item fails with ``ETIMEDOUT``; a read whose queue was made anew is sent once
            more before that, within the item's deadline. Others are sent again.
        admin_timeout: seconds of an admin command.
        retry_after: seconds until a controller that did not come back is tried again.
        sgl: use scatter gather lists where a controller takes them, else PRP lists.
        device_executor: who carries out ``submit(execution="device")``. ``"cuda"``: a kernel on CUDA device
            ``device``, in at most ``device_blocks`` thread blocks. ``"cpu"``: the same code in threads, to
            test without a GPU what a device does. ``"auto"``: as ``"none"``, until the kernel has passed its
            tests on a GPU; ``caps()["features_unused"]["device_execution"]`` says what else is in its way.
            Teams of 32 lanes work on ``device_queues`` queue pairs of each controller beside ``queues``.
        max_in_flight, max_results, write_policy: as in :func:`make_file_runtime`.
        roots, unit: of ``striped://`` targets whose URI names none; a root is a folder or ``nvme://name/nsid``.

    Raises ``ValueError`` naming the key, and ``OSError`` for a controller that does not come up.
    """
    settings = {
        "controllers": controllers,
        "queues": queues,
        "queue_entries": queue_entries,
        "window_bytes": window_bytes,
        "window_commands": window_commands,
        "command_timeout": command_timeout,
        "admin_timeout": admin_timeout,
        "retry_after": retry_after,
        "sgl": sgl,
        "device_executor": device_executor,
        "device": device,
        "device_queues": device_queues,
        "device_blocks": device_blocks,
        "max_in_flight": max_in_flight,
        "max_results": max_results,
        "write_policy": write_policy,
        "roots": roots,
        "unit": unit,
    }
    native = nvme_settings.check_nvme_settings(settings)
    for controller in native["controllers"]:
        if controller["transport"] == "broker":
            controller.setdefault("queues", native["queues"])
    return Runtime(_core.make_nvme(**native))


def make_runtime(spec: Mapping[str, Any] | str) -> Runtime:
    """Make a runtime from a mapping: ``kind`` is ``"file"``, ``"striped"``, ``"memory"`` or ``"nvme"``, other
    keys are those of its function. Or from the URI of a target whose controller a ``tutti-nvmed`` owns,
    ``nvme://name/nsid?broker=/run/tutti/nvmed.sock``, which the runtime then opens.

    Raises ``ValueError`` for a missing ``kind``, an unknown key (naming the nearest known one) or a bad
    value.
    """
    if isinstance(spec, str) and spec.startswith("nvme://"):
        return make_nvme_runtime(controllers=[broker_uri.controller_of(spec)])
    if not isinstance(spec, Mapping):
        raise ValueError(f"spec={spec!r} must be a mapping, or the URI of a target that has a broker")
    if "kind" not in spec:
        raise ValueError("key 'kind' is missing; it must be 'file', 'striped', 'memory' or 'nvme'")
    kind = config.check_choice("kind", spec["kind"], config.KINDS)
    makers: dict[str, tuple[Callable[..., Runtime], tuple[str, ...]]] = {
        "file": (make_file_runtime, config.FILE_KEYS),
        "striped": (make_striped_runtime, config.STRIPED_KEYS),
        "memory": (make_memory_runtime, config.MEMORY_KEYS),
        "nvme": (make_nvme_runtime, nvme_settings.NVME_KEYS),
    }
    maker, known = makers[kind]
    config.check_keys(spec, ("kind", *known))
    if kind == "striped" and "roots" not in spec:
        raise ValueError("key 'roots' is missing; it must be a list of absolute paths")
    if kind == "nvme" and "controllers" not in spec:
        raise ValueError("key 'controllers' is missing; it must be a list of mappings")
    return maker(**{key: value for key, value in spec.items() if key != "kind"})
