"""Whether bytes are read as a pickle by whoever unpickles them, found by walking over their opcodes; nothing is unpickled.

`pickletools.genops` does not answer that: it refuses arguments that unpicklers take, such as ``I0x10``, or a string that is not
ASCII. The walk here takes every argument that an unpickler takes, CPython's in C or in Python, with any encoding. It ends
at what each of them refuses too: an unknown opcode, a number that none of them reads, a stack with fewer items than an opcode
takes.

Sources: `Modules/_pickle.c` and `Lib/pickle.py` of CPython 3 (what unpicklers take); `pickletools.opcodes` (the opcodes of all
protocols, their arguments, and what they take from the stack and put there).
"""

import pickletools
import re
from typing import Final

MAX_OPCODES: Final = 1 << 16
"""Opcodes that are walked over; bytes that may still be a pickle by then count as one."""

_DATA: Final = 8  # opcodes with which data alone is a pickle, whatever stands behind its STOP
_OPCODES: Final = {ord(opcode.code): opcode for opcode in pickletools.opcodes}
_LENGTHS: Final = {  # bytes of the length of an argument that says how long it is
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_OBTAINS: Final = frozenset(("GLOBAL", "STACK_GLOBAL", "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID"))
_ACTS: Final = frozenset(
    ("REDUCE", "BUILD", "OBJ", "NEWOBJ", "NEWOBJ_EX", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS")
)
_INTEGER: Final = re.compile(rb"\s*+[+-]?(?:0[xX][0-9a-fA-F_]++|0[oObB]?[0-9_]*+|[1-9][0-9_]*+)L?\s*+")
_FLOAT: Final = re.compile(
    rb"\s*+[+-]?(?:(?:[0-9][0-9_]*+\.?|\.[0-9])[0-9_]*+(?:e[+-]?[0-9_]++)?|inf(?:inity)?|nan)\s*+", re.IGNORECASE
)
_STRING: Final = re.compile(rb"\s*+(?:'.*'|\".*\")\s*+", re.DOTALL)
_NAME: Final = re.compile(rb"\S++")
_ANY: Final = re.compile(rb".*+", re.DOTALL)
_LINES: Final = {  # the lines that follow an opcode
    "INT": (_INTEGER,), "LONG": (_INTEGER,), "GET": (_INTEGER,), "PUT": (_INTEGER,), "FLOAT": (_FLOAT,), "STRING": (_STRING,),
    "GLOBAL": (_NAME, _NAME), "INST": (_NAME, _NAME), "UNICODE": (_ANY,), "PERSID": (_ANY,),
}  # fmt: skip


def is_pickle(head: bytes, size: int) -> bool:
    """Returns whether bytes are a pickle, or several behind one another, from the first byte on.

    Protocols 2 and above say so in their first byte. Without it, bytes are a pickle in any of these cases:

    * they obtain an object (they import it, or ask the loader for it by a persistent id) and act on an object behind that: call
      it, build it, or put something into it;
    * they obtain an object, and a STOP stands behind that;
    * they begin a frame, and a STOP stands behind that: where a loader goes on behind it, at the end of the frame or before,
      hangs on how it reads files;
    * they are data alone up to a STOP, behind which is white space alone, or before which are at least seven opcodes;
    * they may still be one after 65 536 opcodes, or at the end of what is at hand.

    Prose and settings are not: they would have to be opcodes from the first byte on, each with its argument and with what it
    takes from the stack. A name that is imported has no white space, as no installed module has. An import with nothing behind
    it is no case, else a list of words could be one: it runs what the reader has installed, and nothing of the file.

    Guarantee: an unpickler that reads other bytes from the first one on acts on no object that it obtained, and returns none.
        It fails, or returns plain data of at most seven opcodes.

    Args:
        head: the first bytes of a file.
        size: bytes of all of it.
    """
    if head[:1] == b"\x80":
        return len(head) < 2 or head[1] < 32
    walk, obtained, framed = _Walk(head, size), False, False
    for count in range(1, MAX_OPCODES + 1):
        name = walk.step()
        if name is None:
            return walk.cut
        if name == "INST" or (obtained and (name in _ACTS or name == "STOP")):
            return True
        obtained |= name in _OBTAINS
        framed |= name == "FRAME"
        if name == "STOP" and (framed or count >= _DATA or (size == len(head) and not head[walk.at :].strip())):
            return True
    return True


class _Walk:
    """A place in a file, and how many items are on the stack there, above each mark."""

    def __init__(self, head: bytes, size: int) -> None:
        self.at = 0
        self.cut = False
        self._head, self._size = head, size
        self._items = [0]

    def step(self) -> str | None:
        """Returns the name of the next opcode, None where the walk ends; ``cut`` says that only what is at hand ended."""
        code = self._take(1)
        opcode = _OPCODES.get(code[0]) if code else None
        if opcode is None or not self._argument(opcode) or not self._stack(opcode):
            return None
        if opcode.name == "STOP":
            self._items = [0]
        return opcode.name

    def _take(self, count: int) -> bytes:
        """The next bytes; none where the file has not so many."""
        end = self.at + count
        if end > len(self._head):
            self.cut = end <= self._size
            return b""
        data, self.at = self._head[self.at : end], end
        return data

    def _line(self) -> bytes | None:
        """The next line. At the end of the file one without an end, of which the unpickler in Python drops the last byte."""
        end = self._head.find(b"\n", self.at)
        if end < 0 and len(self._head) < self._size:
            self.cut = True
            return None
        end = end if end >= 0 else max(self.at, self._size - 1)
        data, self.at = self._head[self.at : end], end + 1
        return data

    def _argument(self, opcode: pickletools.OpcodeInfo) -> bool:
        for form in _LINES.get(opcode.name, ()):
            line = self._line()  # where it is a number, C reads it up to a zero byte
            if line is None or not form.fullmatch(line.partition(b"\0")[0] if form in (_INTEGER, _FLOAT) else line):
                return False
        if opcode.arg is None or opcode.name in _LINES:
            return True
        if opcode.arg.n >= 0:
            return len(self._take(opcode.arg.n)) == opcode.arg.n
        length = self._take(_LENGTHS[opcode.arg.n])
        count = int.from_bytes(length, "little")
        return bool(length) and (count == 0 or bool(self._take(count)))

    def _stack(self, opcode: pickletools.OpcodeInfo) -> bool:
        before, items = opcode.stack_before, self._items
        if opcode.name == "POP" and not items[-1] and len(items) > 1:
            items.pop()
            return True
        if opcode.name == "MARK":
            items.append(0)
            return True
        if pickletools.markobject in before:
            place = before.index(pickletools.markobject)
            above = sum(item is not pickletools.stackslice for item in before[place + 1 :])
            if len(items) == 1 or items.pop() < above:
                return False
            before = before[:place]
        if items[-1] < len(before):
            return False
        items[-1] += len(opcode.stack_after) - len(before)
        return True
