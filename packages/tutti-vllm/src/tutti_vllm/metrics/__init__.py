# SPDX-License-Identifier: Apache-2.0
"""What is counted, and how it is shown: Prometheus, the log's status line, traces."""
