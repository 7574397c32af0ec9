# SPDX-License-Identifier: Apache-2.0
"""What is found out of vLLM's configuration at a start, and what is opened then."""
