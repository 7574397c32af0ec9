# SPDX-License-Identifier: Apache-2.0
"""Behind the callbacks of vLLM's workers: the transfers of a step."""
