# SPDX-License-Identifier: Apache-2.0
"""QEMU's model of an NVMe drive, without a guest (`machine`) and under one (`guest`)."""
