# SPDX-License-Identifier: Apache-2.0
"""What can be set, where it may come from, and what was chosen."""
