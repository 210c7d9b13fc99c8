# SPDX-License-Identifier: Apache-2.0
"""Kubelet plugin registration protocol, v1."""
