# SPDX-License-Identifier: Apache-2.0
"""The worker's half: moves the chunks of plans between a backend, the staging window and the KV cache."""
