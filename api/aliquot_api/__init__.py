# SPDX-License-Identifier: Apache-2.0
"""The vocabulary that webhook, agent, command line, manifests and shim share."""
