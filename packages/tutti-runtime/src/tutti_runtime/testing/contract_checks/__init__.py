# SPDX-License-Identifier: Apache-2.0
"""The checks of :mod:`tutti_runtime.testing.contract`, by subject."""
