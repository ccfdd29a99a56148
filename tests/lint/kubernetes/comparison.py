# SPDX-License-Identifier: Apache-2.0
"""Compares two lists of objects field by field; elements of lists that have names, by name."""

import re

# Names of ConfigMaps end in a hash of their content, which kustomize and the chart compute differently.
_HASHED = re.compile(r"^(ballast-(?:job|size))-[a-z0-9]{10}$")


def _normalized(value):
    if isinstance(value, dict):
        return {key: _normalized(inner) for key, inner in value.items()}
    if isinstance(value, list):
        names = [inner.get("name") if isinstance(inner, dict) else None for inner in value]
        if value and None not in names and len(set(names)) == len(names):
            # The order of variables matters only to those that use others, for which there is a rule.
            return {name: _normalized(inner) for name, inner in zip(names, value)}
        return [_normalized(inner) for inner in value]
    if isinstance(value, str):
        return _HASHED.sub(r"\1", value)
    return value


def _differences(path, left, right):
    if isinstance(left, dict) and isinstance(right, dict):
        for key in sorted(set(left) | set(right)):
            if key not in right:
                yield f"{path}.{key}: only in the first: {left[key]!r}"
            elif key not in left:
                yield f"{path}.{key}: only in the second: {right[key]!r}"
            else:
                yield from _differences(f"{path}.{key}", left[key], right[key])
    elif isinstance(left, list) and isinstance(right, list):
        if len(left) != len(right):
            yield f"{path}: {len(left)} elements in the first, {len(right)} in the second"
        for i, (one, other) in enumerate(zip(left, right)):
            yield from _differences(f"{path}[{i}]", one, other)
    elif left != right or type(left) is not type(right):
        yield f"{path}: {left!r} in the first, {right!r} in the second"


def _by_name(objects):
    return {f"{item['kind']} {item['metadata']['name']}": item for item in map(_normalized, objects)}


def compare(first, second):
    """Returns the sentences that say how the objects differ; the order of the objects does not matter."""
    return list(_differences("", _by_name(first), _by_name(second)))
