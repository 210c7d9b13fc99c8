# SPDX-License-Identifier: Apache-2.0
"""The one error that user input can cause: which field, which value, what would be right."""


class InvalidInput(ValueError):
    """Input that cannot be accepted.

    `field` is a path as Kubernetes writes it (`spec.containers[0].resources.limits[nvidia.com/gpumem]`),
    `value` what stands there, `fix` what would be right. The text of the error holds all three.
    """

    def __init__(self, *, field: str, value: object, fix: str) -> None:
        super().__init__(f"{field}: invalid value {value!r}: {fix}")
        self.field = field
        self.value = value
        self.fix = fix
