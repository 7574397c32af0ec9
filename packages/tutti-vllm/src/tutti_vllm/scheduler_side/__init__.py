# SPDX-License-Identifier: Apache-2.0
"""Behind the callbacks of vLLM's scheduler: requests, hits, and the orders of each step."""
