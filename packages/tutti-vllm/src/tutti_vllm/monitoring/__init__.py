# SPDX-License-Identifier: Apache-2.0
"""What a monitoring system needs: Grafana's dashboard, Prometheus' rules and a configuration that scrapes."""
