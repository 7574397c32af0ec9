# SPDX-License-Identifier: Apache-2.0
"""Who is stored, who stays and who goes: small classes, used by the planner and the simulator alike."""

from tutti_engine.policies.settings import PolicySettings

__all__ = ["PolicySettings"]
