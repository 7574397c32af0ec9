# SPDX-License-Identifier: Apache-2.0
"""Loads the compiled operators into torch."""

from __future__ import annotations

import importlib.util

import torch

__all__ = ["load"]


def load() -> str:
    """Load the extension once and return its path.

    Raises:
        ImportError: when the compiled part is not installed, or this torch cannot load it.
    """
    # Not Path(__file__).with_name(...): in an editable install the binary lies elsewhere than this file.
    spec = importlib.util.find_spec("tutti_kv_kernels._C")
    if spec is None or spec.origin is None:
        raise ImportError(
            "tutti_kv_kernels._C, the compiled part of tutti-kv-kernels, is not installed; "
            "install the wheel, or `pip install ./packages/tutti-kv-kernels` in a checkout"
        )
    try:
        torch.ops.load_library(spec.origin)
    except OSError as error:
        reason = error.__cause__ or error
        raise ImportError(
            f"torch {torch.__version__} cannot load {spec.origin}: {reason}; tutti-kv-kernels needs "
            "torch>=2.10 on the platform that its wheel was built for"
        ) from error
    return spec.origin
