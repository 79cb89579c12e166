"""CBOR items in JSON, where bytes, floats and maps have no form of their own."""

from typing import Any


def told(value: Any) -> Any:
    """Returns an item as vectors have it: `{"hex": ...}`, `{"float": ...}`, `{"map": [[key, value], ...]}`, else as it is."""
    if type(value) is bytes:
        return {"hex": value.hex()}
    if type(value) is float:
        return {"float": value}
    if type(value) is list:
        return [told(item) for item in value]
    if type(value) is dict:
        return {"map": [[told(key), told(item)] for key, item in value.items()]}
    return value


def read(value: Any) -> Any:
    """Inverse of `told`."""
    if type(value) is list:
        return [read(item) for item in value]
    if type(value) is not dict:
        return value
    ((kind, item),) = value.items()
    if kind == "hex":
        return bytes.fromhex(item)
    if kind == "float":
        return float(item)
    return {read(key): read(one) for key, one in item}
