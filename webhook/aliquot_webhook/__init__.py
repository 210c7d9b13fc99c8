# SPDX-License-Identifier: Apache-2.0
"""Admission webhook: pods that ask for GPU shares become pods with exact ResourceClaims."""
