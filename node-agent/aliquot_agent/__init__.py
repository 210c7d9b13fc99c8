# SPDX-License-Identifier: Apache-2.0
"""The node agent: publishes GPUs, prepares shares, watches them from outside and reports their use."""
