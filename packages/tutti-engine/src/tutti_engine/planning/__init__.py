# SPDX-License-Identifier: Apache-2.0
"""The scheduler's half: which chunks are stored, where, for how long, and what is worth loading."""
