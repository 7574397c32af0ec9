# SPDX-License-Identifier: Apache-2.0
"""A store in directories of this machine: places and their files, who owns it, and what looks after it."""
