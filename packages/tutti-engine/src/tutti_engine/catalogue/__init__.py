# SPDX-License-Identifier: Apache-2.0
"""Which chunk lies in which slot of a store, durably: an SQLite file, its writer, and columns in memory."""
