# SPDX-License-Identifier: Apache-2.0
"""What this package adds to the command line ``tutti``."""
