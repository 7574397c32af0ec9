# SPDX-License-Identifier: Apache-2.0
"""Tutti for vLLM: set ``kv_connector_module_path`` to ``tutti_vllm.connector``."""

__version__ = "0.1.0"

__all__ = ["__version__"]
