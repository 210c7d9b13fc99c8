# SPDX-License-Identifier: Apache-2.0
"""One protocol; its versions are sub-packages."""
