# SPDX-License-Identifier: Apache-2.0
"""JSON as it comes from outside: what `aliquot_api.wire` has, for the modules here."""

from aliquot_api.wire import JsonObject, dig, items, obj, only, text

__all__ = ["JsonObject", "dig", "items", "obj", "only", "text"]
