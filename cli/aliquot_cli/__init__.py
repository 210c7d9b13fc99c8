# SPDX-License-Identifier: Apache-2.0
"""The command `aliquot`, for people at a terminal."""
