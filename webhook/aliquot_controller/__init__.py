# SPDX-License-Identifier: Apache-2.0
"""Controller beside the webhook: removes what is no longer used, and keeps certificates right."""
