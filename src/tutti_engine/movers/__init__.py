# SPDX-License-Identifier: Apache-2.0
"""Ways to reach a server's pages."""
