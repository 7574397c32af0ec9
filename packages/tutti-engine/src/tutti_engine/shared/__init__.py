# SPDX-License-Identifier: Apache-2.0
"""A store that many servers share, behind the local one: what it holds, what is loaded and written."""
