# SPDX-License-Identifier: Apache-2.0
"""DRA kubelet plugin protocol, v1."""
