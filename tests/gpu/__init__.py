# SPDX-License-Identifier: Apache-2.0
"""What only a real GPU can tell: one prepared script, ten minutes at most."""
