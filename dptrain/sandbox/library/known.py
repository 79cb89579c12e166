"""Tells functions of a library by what they run, where this project stands on code that was read."""

import hashlib
import inspect
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any


def is_known(function: Any, digest: str, defaults: tuple[Any, ...] | None, library: dict[str, Any]) -> bool:
    """Tells whether a function of a library's module is one that was read.

    Guarantee: what a function runs is known, and not what it says of itself: its source has the digest that was read, its
    bytecode is what this source compiles to, and its defaults and globals are those of the library.

    Args:
        digest: SHA-256 of its source. defaults: of its arguments. library: the globals of its module.
    """
    if type(function) is not FunctionType or function.__closure__ or function.__globals__ is not library:
        return False
    if function.__defaults__ != defaults or function.__kwdefaults__:
        return False
    return _runs(function.__code__, digest)


@lru_cache(256)
def _runs(code: CodeType, digest: str) -> bool:
    """Tells whether code is what a source with this digest compiles to."""
    try:
        # Of a function it would be the source of another one, which it says it wraps.
        source, file = inspect.getsource(code), "".join(inspect.findsource(code)[0])
    except (OSError, TypeError):  # it is not at hand
        return False
    same = (made for made in _codes(file) if (made.co_qualname, made.co_firstlineno) == (code.co_qualname, code.co_firstlineno))
    return _digest(source) == digest and any(_parts(made) == _parts(code) for made in same)


@lru_cache(32)
def _codes(source: str) -> tuple[CodeType, ...]:
    """Returns the functions of a file and the methods of its classes, compiled: a part alone would be so in another way."""
    outer = compile(source, "", "exec", dont_inherit=True)
    classes = [value for value in outer.co_consts if isinstance(value, CodeType)]
    return (*classes, *(value for each in classes for value in each.co_consts if isinstance(value, CodeType)))


def _parts(code: CodeType) -> tuple[Any, ...]:
    """Returns what a piece of code does, without where it stands."""
    consts = [_parts(value) if isinstance(value, CodeType) else (type(value), repr(value)) for value in code.co_consts]
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    return code.co_code, code.co_exceptiontable, consts, names, counts


def _digest(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()
