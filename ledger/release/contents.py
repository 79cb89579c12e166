"""Finds what kind of thing a released file is by its bytes, pickles included; nothing is unpickled.

`pickletools.genops` does not answer that: it refuses arguments that unpicklers take, such as ``I0x10``, or a string that is not
ASCII. The walk here takes every argument that an unpickler takes, CPython's in C or in Python, with any encoding. It ends at
what each of them refuses too: an unknown opcode, a number that none of them reads, a stack with fewer items than an opcode
takes.

Sources: `Modules/_pickle.c` and `Lib/pickle.py` of CPython 3 (what unpicklers take); `pickletools.opcodes` (the opcodes of all
protocols, their arguments, and what they take from the stack and put there).

Only what is recognised here counts as a file that holds no weights. Whatever is not recognised may hold some, and keeps a
release from being TIED. Nothing is run or unpickled: opcodes, magic numbers and strings are read, and no more.

Sources: the first bytes of the formats as their specifications have them; the protobuf encoding and `sentencepiece_model.proto`
(ModelProto); RFC 8259 (JSON); YAML 1.2 (tags, escapes); transformers' `integrations/hub_kernels.py` (kernels).
"""

import codecs
import json
import pickletools
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, Final

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
_QUOTED: Final = re.compile(rb"\s*+(?:'.*'|\".*\")\s*+", re.DOTALL)
_NAME: Final = re.compile(rb"\S++")
_ANY: Final = re.compile(rb".*+", re.DOTALL)
_LINES: Final = {  # the lines that follow an opcode
    "INT": (_INTEGER,), "LONG": (_INTEGER,), "GET": (_INTEGER,), "PUT": (_INTEGER,), "FLOAT": (_FLOAT,), "STRING": (_QUOTED,),
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
        """Returns the next bytes; none where the file has not so many."""
        end = self.at + count
        if end > len(self._head):
            self.cut = end <= self._size
            return b""
        data, self.at = self._head[self.at : end], end
        return data

    def _line(self) -> bytes | None:
        """Returns the next line. At the end of the file one without an end, of which the unpickler in Python drops the last
        byte."""
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


TENSORS: Final = "tensors"
TEXT: Final = "text"
TEMPLATE: Final = "template"
CODE: Final = "code"
NAMES_CODE: Final = "names-code"
PICKLE: Final = "pickle"
ARCHIVE: Final = "archive"
WEIGHTS: Final = "weights"
INDEX: Final = "index"
PIECES: Final = "pieces"
PICTURE: Final = "picture"
LONG: Final = "long"
UNKNOWN: Final = "unknown"

FORMS: Final = {
    TENSORS: "a whole safetensors file",
    TEXT: "text in UTF-8; settings in JSON, YAML, TOML or INI that name no code",
    TEMPLATE: "a template by which prompts are made, or settings with one",
    CODE: "source, script or machine code",
    NAMES_CODE: "settings that name code for a loader to run",
    PICKLE: "a pickle, which runs code when it is read",
    ARCHIVE: "an archive or something compressed, which may hold pickles: torch.save and joblib write such",
    WEIGHTS: "weights in a format that is not compared: GGUF, ONNX, HDF5, NumPy, TFLite",
    INDEX: "an index of shards",
    PIECES: "a sentencepiece tokenizer",
    PICTURE: "a picture or a PDF",
    LONG: "settings too long to be looked into",
    UNKNOWN: "none of these",
}
"""Forms of a file, each in words."""

RECOGNISED: Final = {
    PICKLE: (
        "the first byte is `80` and the next below 32; or opcodes of any protocol from the first byte on",
        "may hold weights, and runs code",
    ),
    CODE: (
        "begins as ELF, PE, Mach-O, a Java class, WebAssembly or `#!`, or has the ending of source or machine "
        "code",
        "can carry code",
    ),
    ARCHIVE: (
        "not text; begins as zip, gzip, bzip2, xz, zstd, lz4, 7z, rar, lzma, zlib or a compressed joblib "
        "file, has `ustar` at 257, or the end of a zip file in its last 65 557 bytes: `torch.save`, joblib",
        "may hold weights and pickles",
    ),
    WEIGHTS: (
        "not text; begins as GGUF, HDF5, NumPy, TFLite, or ends in `.onnx`",
        "may hold weights; these formats are data and are not compared",
    ),
    PICTURE: (
        "begins as PNG, JPEG, GIF, WebP or PDF; what follows is not looked at",
        "comes beside weights",
    ),
    PIECES: (
        "a sentencepiece ModelProto to the last byte",
        "comes beside weights",
    ),
    UNKNOWN: (
        "none of these, and not text; an index of shards that no loader reads in one way",
        "may hold weights",
    ),
    TEMPLATE: (
        "text, `.jinja`; JSON with a key `chat_template`",
        "is named: it shapes prompts",
    ),
    LONG: (
        "text, `.json` or settings, more than 64 MiB",
        "is named as code is, for it is not looked into",
    ),
    INDEX: (
        "text, `.index.json`; names are the files to which it maps tensors",
        "has to name safetensors files beside it, and all shards (`-of-`) among these",
    ),
    NAMES_CODE: (
        "text, `.json`, `.yaml`, `.yml`, `.toml`, `.ini` or `.cfg` that names code (below; names are the "
        "keys, `!` for a tag), or `modules.json`",
        "can have a loader run code",
    ),
    TEXT: (
        "UTF-8 without control characters but tab, line feed, form feed and carriage return",
        "comes beside weights",
    ),
}
"""Forms of what is no safetensors file in the order in which they are tried: the bytes of each, and what a file of it is."""

CODE_FORMS: Final = frozenset((CODE, NAMES_CODE, PICKLE, ARCHIVE, LONG))
"""Forms of files that can carry code, or name some, for a loader to run."""

HARMLESS: Final = frozenset((TEXT, TEMPLATE, CODE, NAMES_CODE, LONG, INDEX, PIECES, PICTURE))
"""Forms of files that hold no weights, as far as any loader reads them."""

LOOKED: Final = 1 << 26
"""Bytes of a file, from its beginning, that are looked into; all of it where only text, zip ends or nothing is looked for."""

MAX_NAMES: Final = 10_000
"""Names that are kept of one file."""

MAX_PARSED: Final = 1 << 24
"""Bytes of an index of shards, or of a sentencepiece model: these are parsed, which takes memory."""

_TAIL: Final = 65_557  # the longest end of a zip file: 22 bytes and a comment of 65 535
_CONTROLS: Final = bytes(set(range(32)) - {9, 10, 12, 13}) + b"\x7f"
_NAMING: Final = frozenset(
    ("auto_map", "custom_pipeline", "custom_pipelines", "trust_remote_code", "parent_library", "_target_", "class_path")
)
_KERNELS: Final = frozenset(
    ("attn_implementation", "_attn_implementation", "_attn_implementation_internal", "experts_implementation",
     "_experts_implementation", "_experts_implementation_internal", "kernel_config", "kernel_mapping")
)  # fmt: skip
"""Keys by which transformers loads code from a repository, without any consent to code, if their value is `owner/name`."""

_SETTINGS: Final = frozenset((".yaml", ".yml", ".toml", ".ini", ".cfg"))
_CODE_ENDINGS: Final = frozenset(
    (".py", ".pyc", ".pyd", ".pyx", ".so", ".dll", ".dylib", ".exe", ".sh", ".bat", ".ps1", ".js", ".mjs", ".wasm", ".ipynb",
     ".cu", ".cpp", ".c", ".rb", ".pl", ".lua", ".jar", ".class", ".pt2", ".engine", ".mar")
)  # fmt: skip
_MACHINE_CODE: Final = (b"\x7fELF", b"MZ", b"\xfe\xed\xfa", b"\xcf\xfa\xed\xfe", b"\xce\xfa\xed\xfe", b"\xca\xfe\xba\xbe",
                        b"\0asm", b"#!")  # fmt: skip
_ARCHIVES: Final = (b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18",
                    b"7z\xbc\xaf\x27\x1c", b"Rar!", b"ZF", b"\x5d\0\0", b"\x78\x01", b"\x78\x5e", b"\x78\x9c",
                    b"\x78\xda")  # fmt: skip
_WEIGHTS: Final = (b"GGUF", b"ggml", b"ggjt", b"\x89HDF\r\n\x1a\n", b"\x93NUMPY")
_PICTURES: Final = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"%PDF-")
# Possessive, and to the end of the bytes where a string has none: whoever made a file cannot make a look at it take longer.
_STRING: Final = re.compile(rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)(?:"(\s*+:)?|\\?\Z)', re.DOTALL)
_VALUE: Final = re.compile(rb'\s*+(?:"([^"\\]*+(?:\\.[^"\\]*+)*+)"|null|true|false|-?[0-9])', re.DOTALL)
_ESCAPE: Final = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|\r?\n[ \t]*+)")
_TAG: Final = re.compile(rb"(?<![\w!?.)\]\"'])![^\s,\[\]{}]*+")
_CORE: Final = re.compile(rb"!=?|!!(?:str|int|float|bool|null|map|seq|set|omap|pairs|binary|timestamp|merge|value)")
_CLASS: Final = re.compile(rb"(?<!\w)target[\"']?\s*+[:=]\s*+[\"']?[a-z_]\w*+\.\w")
_KERNEL: Final = re.compile(rb"(?:%s)([^\r\n]*+)" % "|".join(sorted(_KERNELS, reverse=True)).encode())
_NO_KERNEL: Final = re.compile(rb"[\"']?\s*+[:=]\s*+[\"']?[\w|.-]++[\"']?[\s,}\]]*+(?:#.*)?")


class Looker:
    """Takes the bytes of a file from front to back, and tells its form; memory does not grow beyond what is looked into."""

    def __init__(self, path: str) -> None:
        """Begins before the first byte; the ending of the path decides only which of two readings of the bytes a loader takes.
        """
        self._name = PurePosixPath(path).name.lower()
        self._head, self._tail, self._size = bytearray(), b"", 0
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text = True

    def take(self, data: bytes) -> None:
        """Takes the next bytes."""
        self._size += len(data)
        if len(self._head) < LOOKED:
            self._head += data[: LOOKED - len(self._head)]
        self._tail = (self._tail + data)[-_TAIL:]
        if self._text:
            self._text = self._decodes(data)

    def form(self) -> tuple[str, tuple[str, ...]]:
        """Returns the form of the file, and what it names: the shards of an index, the keys of settings that name code.

        Guarantee: a file of one of the forms of `HARMLESS` but `CODE` is, all of it, text without control characters that is no
        pickle; or it begins as a picture or a PDF does, or is a sentencepiece model to the last byte, and ends as no zip file
        does. One of form `CODE` begins as machine code does or is named like code, and may go on with anything.
        """
        head, ending = bytes(self._head), PurePosixPath(self._name).suffix
        self._text = self._text and self._decodes(b"", last=True)
        if is_pickle(head, self._size):
            return PICKLE, ()
        if ending in _CODE_ENDINGS or head.startswith(_MACHINE_CODE):
            return CODE, ()
        if not self._text:
            return self._binary(head, ending), ()
        return self._readable(head, ending)

    def _decodes(self, data: bytes, *, last: bool = False) -> bool:
        try:
            self._decoder.decode(data, last)
        except UnicodeDecodeError:
            return False
        return len(data.translate(None, _CONTROLS)) == len(data)

    def _binary(self, head: bytes, ending: str) -> str:
        if b"PK\x05\x06" in self._tail or head.startswith(_ARCHIVES) or head[257:262] == b"ustar":
            return ARCHIVE
        if head.startswith(_WEIGHTS) or head[4:8] == b"TFL3" or ending == ".onnx":
            return WEIGHTS
        webp = head.startswith(b"RIFF") and head[8:12] == b"WEBP"
        if head.startswith(_PICTURES) or webp:
            return PICTURE
        return PIECES if self._size == len(head) and is_pieces(head) else UNKNOWN

    def _readable(self, head: bytes, ending: str) -> tuple[str, tuple[str, ...]]:
        if ending in (".jinja", ".jinja2", ".j2"):
            return TEMPLATE, ()
        if ending != ".json" and ending not in _SETTINGS:
            return TEXT, ()
        if self._size > len(head):
            return LONG, ()
        if ending in _SETTINGS:
            named = _named(head, tags=ending in (".yaml", ".yml"))
            return (NAMES_CODE, tuple(sorted(named))) if named else (TEXT, ())
        if self._name.endswith(".index.json"):
            shards = shards_of(head)
            return (UNKNOWN, ()) if shards is None else (INDEX, shards)
        keys = _keys(head)
        naming = sorted(keys & (_NAMING | _KERNELS)) or (["type"] if self._name == "modules.json" else [])
        if naming:
            return NAMES_CODE, tuple(naming)
        return (TEMPLATE if "chat_template" in keys else TEXT), ()


def is_pieces(data: bytes) -> bool:
    """Returns whether bytes are a sentencepiece ModelProto to the last one: pieces with scores, settings, and nothing else."""
    pieces = 0
    try:
        for number, wire, value in _fields(data[: MAX_PARSED + 1]):
            if wire != 2 or not 1 <= number <= 5:
                return False
            pieces += number == 1
            if number == 1 and any((part[0], part[1]) not in ((1, 2), (2, 5), (3, 0)) for part in _fields(value)):
                return False
    except ValueError:
        return False
    return pieces > 0 and len(data) <= MAX_PARSED


def shards_of(data: bytes) -> tuple[str, ...] | None:
    """Returns the files that an index of shards names, in order; None where it is none that a loader reads in one way."""
    if len(data) > MAX_PARSED:
        return None
    try:
        value = json.loads(data, object_pairs_hook=unique_names)
        names = sorted(set(value["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    plain = all(type(name) is str and name and name.isprintable() and len(name) <= 200 for name in names)
    return tuple(names) if plain and 0 < len(names) <= MAX_NAMES else None


def _keys(data: bytes) -> set[str]:
    """Returns the keys of JSON that matter here, at any depth, however spelled; those of kernels if they name one."""
    found = set()
    for match in _STRING.finditer(data):
        if match[2] is None:
            continue
        text = match[1]
        if b"\\" in text or text.decode("utf-8", "replace") in (*_NAMING, *_KERNELS, "chat_template"):
            try:
                key = json.loads(b'"' + text + b'"')
            except ValueError:
                continue
            if key not in _KERNELS or _names_kernel(data, match.end()):
                found.add(key)
    return found


def _names_kernel(data: bytes, at: int) -> bool:
    """Tells whether the value that follows is, or may have in it, the name of a repository: text with a slash, however spelled.
    """
    value = _VALUE.match(data, at)
    if value is None:
        return True
    try:
        return "/" in json.loads(b'"' + (value[1] or b"") + b'"')
    except ValueError:
        return True


def _named(data: bytes, *, tags: bool) -> set[str]:
    """Returns what settings that are not JSON name code by, wherever in the bytes it stands, in a comment too.

    That is a key, an attention or experts implementation that is not one plain word behind its key, or where there are tags
    (YAML) one that is not of its core, or a directive that could make those mean something else: PyYAML and HyperPyYAML run
    what tags name.
    """
    plain = _ESCAPE.sub(_character, data)
    small = plain.lower()
    found = {key for key in _NAMING if key.encode() in small}
    found |= {"target"} if _CLASS.search(small) else set()
    if tags and (b"%TAG" in data or any(not _CORE.fullmatch(tag[0]) for tag in _TAG.finditer(data))):
        found.add("!")
    for match in _KERNEL.finditer(plain):
        if not _NO_KERNEL.fullmatch(match[1]):
            found.add(match[0].removesuffix(match[1]).decode())
    return found


def _character(escape: re.Match[bytes]) -> bytes:
    """Returns the character that an escape of YAML or TOML stands for; nothing for one at the end of a line."""
    number = int(escape[1] or escape[2] or escape[3] or b"0", 16)
    return chr(number).encode("utf-8", "replace") if 0 < number <= 0x10FFFF else b""


def _fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yields the fields of a protobuf message, as number, wire type and bytes; raises ValueError where it is none."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        start = at
        if wire == 0:
            _, at = _varint(data, at)
        elif wire == 2:
            length, start = _varint(data, at)
            at = start + length
        else:
            at += {1: 8, 5: 4}.get(wire, len(data) + 1)
        if at > len(data) or not number:
            raise ValueError("no protobuf message")
        yield number, wire, data[start:at]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Reads a number of at most nine bytes, and where the next item begins; beyond the end where there is none."""
    value = 0
    for place in range(9):
        if at >= len(data):
            break
        byte = data[at]
        value |= (byte & 127) << (7 * place)
        at += 1
        if byte < 128:
            return value, at
    return 0, len(data) + 1


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object of JSON; raises ValueError where a name stands in it twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found
