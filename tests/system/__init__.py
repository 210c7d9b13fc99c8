# SPDX-License-Identifier: Apache-2.0
"""Aliquot on a real cluster: its images, its installation, the tests and the demo."""
