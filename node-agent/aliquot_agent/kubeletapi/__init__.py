# SPDX-License-Identifier: Apache-2.0
"""Kubelet's plugin protocols: our own protos of the messages we speak; stubs are generated at build."""
