# SPDX-License-Identifier: Apache-2.0
"""What tenants get of a GPU's time, and what holding them to it costs."""
