# SPDX-License-Identifier: Apache-2.0
"""Tools of the test suites and of the Makefile."""
