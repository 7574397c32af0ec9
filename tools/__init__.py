# SPDX-License-Identifier: Apache-2.0
"""The repository's own tools; nothing here is published. Standard library only, save `packaging`."""
