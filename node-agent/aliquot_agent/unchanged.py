# SPDX-License-Identifier: Apache-2.0
"""Whether two sequences hold the same objects: a loop that is given what it was given last has nothing to do.

Not whether they are equal: what was made anew with the same values may have other files. Pure.
"""

import operator
from collections.abc import Sequence


def same_objects(before: Sequence[object], after: Sequence[object]) -> bool:
    """Each the very one at its place."""
    return len(before) == len(after) and all(map(operator.is_, before, after))
