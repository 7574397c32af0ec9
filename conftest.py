# SPDX-License-Identifier: Apache-2.0
"""Settings for the tests of every package; continuous integration copies this file beside them."""

from __future__ import annotations

from hypothesis import settings

# No deadline for one example: on a busy machine it would assert a time, which no test here does.
settings.register_profile("tutti", deadline=None)
settings.load_profile("tutti")
