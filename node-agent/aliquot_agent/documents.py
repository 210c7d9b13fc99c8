# SPDX-License-Identifier: Apache-2.0
"""YAML and JSON documents as plain values. The only module that talks to PyYAML, which has no types."""

import json
from typing import Any, Final

import yaml

_LARGEST: Final = 1 << 20
"""What an object of the API server can hold, and far more than a CDI spec does."""


class BadDocument(ValueError):
    """Text that is no document."""


class _Strict(yaml.SafeLoader):
    """Refuses a key that stands twice (YAML 1.2, 3.2.1.1) and references, which can grow without end."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """One node."""
        if self.check_event(yaml.AliasEvent):
            raise BadDocument("references (*name) are not allowed")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """A mapping, checked."""
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise BadDocument(f"key {key!r} is no text: quote it")
            if key in seen:
                raise BadDocument(f"key {key!r} stands twice in one mapping")
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def load_strict(text: str) -> object:
    """A YAML document that a person wrote; raises BadDocument."""
    if len(text) > _LARGEST:
        raise BadDocument(f"has {len(text)} characters, want {_LARGEST} at most")
    try:
        return yaml.load(text, Loader=_Strict)  # a SafeLoader
    except BadDocument:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadDocument(" ".join(str(error).split())) from error


def load(text: str, *, is_json: bool) -> object:
    """A JSON or YAML document that a program wrote; raises BadDocument."""
    try:
        return json.loads(text) if is_json else yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadDocument(str(error)) from error
