# SPDX-License-Identifier: Apache-2.0
"""The repository's own tools. Standard library only (`packaging` where pip brings it); nothing here is published."""
