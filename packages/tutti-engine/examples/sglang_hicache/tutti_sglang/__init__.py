# SPDX-License-Identifier: Apache-2.0
"""Tutti as a storage backend of SGLang's HiCache."""
