# SPDX-License-Identifier: Apache-2.0
"""Storage backends. Each is a module of its own, so that importing one needs only what that one needs."""

__all__: list[str] = []
