# SPDX-License-Identifier: Apache-2.0
"""What the shim adds to the bare simulated driver, call by call."""
