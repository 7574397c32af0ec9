# SPDX-License-Identifier: Apache-2.0
"""What proves the connector on a real vLLM engine; nothing of it is imported by a server.

``python -m tutti_vllm.testing.differential`` runs random schedules with and without the connector.
"""
