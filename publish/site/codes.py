"""Reads every code of an error, a refusal or a finding from the source, with what is said beside it; nothing is executed.

A code is a short upper-case word that a program hands on together with a sentence: to an exception, to a finding of an audit,
to a member of an enumeration, or in a table of words. Sentences are read as they stand, with placeholders.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("attest", "ledger", "dptrain")

CODE: Final = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*")
OPEN, CLOSE = "\x02", "\x03"
"""Stand around a placeholder in a sentence."""


@dataclass(frozen=True)
class Place:
    """One place of the source that says a code.

    Attributes:
        code: the word. kind: exception or table that carries it. file: path below the root. line: there.
        sentence: what is said, in one line, placeholders between `OPEN` and `CLOSE`; empty where a caller says it.
    """

    code: str
    kind: str
    file: str
    line: int
    sentence: str

    @property
    def room(self) -> str:
        """Returns the folder that it is in."""
        return self.file.rpartition("/")[0]

    @property
    def cause(self) -> str:
        """Returns what was found, and what was expected."""
        return self.parts[0]

    @property
    def cure(self) -> str:
        """Returns what to do; empty where the sentence leaves it at what was expected."""
        return self.parts[1]

    @property
    def parts(self) -> tuple[str, str]:
        """Returns cause and cure. What to do stands behind the last semicolon of a message."""
        before, sign, after = self.sentence.rpartition("; ")
        return (before, after) if sign else (self.sentence, "")


class Source:
    """One file, with the statements and functions in which its names get their values."""

    def __init__(self, path: Path) -> None:
        self.file = path.relative_to(ROOT).as_posix()
        self.tree = ast.parse(path.read_text(encoding="utf-8"), self.file)
        self.nodes: list[ast.AST] = [self.tree]
        self.above: dict[ast.AST, ast.AST] = {}
        for node in self.nodes:
            for child in _below(node):
                self.above[child] = node
                self.nodes.append(child)

    @cached_property
    def constants(self) -> dict[str, str]:
        """Returns codes that have a name at the level of the module."""
        found: dict[str, str] = {}
        for node in self.tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
            value = getattr(node, "value", None)
            for target in targets:
                pairs = [(target, value)]
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                    pairs = list(zip(target.elts, value.elts, strict=False))
                for name, given in pairs:
                    if isinstance(name, ast.Name) and isinstance(given, ast.Constant) and is_code(given.value):
                        found[name.id] = str(given.value)
        return found

    def scope(self, node: ast.AST) -> ast.AST:
        """Returns the function around a node, or the module."""
        while node in self.above and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
            node = self.above[node]
        return node

    def assigned(self, name: str, node: ast.AST) -> list[ast.expr]:
        """Returns the values that a name gets in the function around a node."""
        return [value for target, given in self._assignments.get(self.scope(node), ()) for value in _bound(target, given, name)]

    @cached_property
    def _assignments(self) -> dict[ast.AST, list[tuple[ast.expr, ast.expr]]]:
        """Returns targets and values in every function, with those of the functions within it, and in the module."""
        found: dict[ast.AST, list[tuple[ast.expr, ast.expr]]] = {}
        for node in self.nodes:
            given: list[tuple[ast.expr, ast.expr]] = []
            if isinstance(node, ast.Assign):
                given = [(target, node.value) for target in node.targets]
            elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
                given = [(node.target, node.value)]
            scope: ast.AST | None = node if given else None
            while scope is not None:
                if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
                    found.setdefault(scope, []).extend(given)
                scope = self.above.get(scope)
        return found


def _below(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the children of a node but for what says whether a name is read or written."""
    for name in node._fields:
        value = getattr(node, name, None)
        for one in value if isinstance(value, list) else (value,):
            if isinstance(one, ast.AST) and not isinstance(one, ast.expr_context):
                yield one


def _bound(target: ast.expr, value: ast.expr, name: str) -> list[ast.expr]:
    if isinstance(target, ast.Name):
        return [value] if target.id == name else []
    if isinstance(target, ast.Tuple):
        values = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
        return [
            bound
            for one in values
            if isinstance(one, ast.Tuple) and len(one.elts) == len(target.elts)
            for part, given in zip(target.elts, one.elts, strict=True)
            for bound in _bound(part, given, name)
        ]
    return []


def is_code(value: object) -> bool:
    """Returns whether a value looks like a code."""
    return isinstance(value, str) and 3 <= len(value) <= 40 and CODE.fullmatch(value) is not None


MADE_OF: Final = {"S_UNKNOWN": ("HEADS_UNKNOWN", "EXPERTS_UNKNOWN")}
"""Codes of which the source has only the ending, since a program puts the word for a part of a layer before it."""

NO_CODES: Final = frozenset({"SQLITE", "POSTGRES", "WRITTEN_BY", "FORMS"})
"""Tables whose upper-case words are no codes: statements of SQL, metavariables of the command line, opcodes."""


class Reader:
    """Finds the codes of all sources."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self.sources = tuple(sources)
        self.constants = {name: code for source in self.sources for name, code in source.constants.items()}
        self.functions: dict[str, list[tuple[ast.FunctionDef, Source]]] = {}
        self.classes: dict[str, str] = {}
        for source in self.sources:
            for node in source.nodes:
                if isinstance(node, ast.FunctionDef):
                    self.functions.setdefault(node.name, []).append((node, source))
                elif isinstance(node, ast.ClassDef):
                    self.classes.setdefault(node.name, flat((ast.get_docstring(node) or "").split("\n\n")[0]))

    def places(self) -> Iterator[Place]:
        """Yields every place, file by file."""
        for source in self.sources:
            found = {}
            for node in source.nodes:
                for place in self._of(node, source):
                    if place.kind not in NO_CODES:
                        found[place.code, place.kind, place.sentence] = place
            yield from sorted(found.values(), key=lambda one: one.line)

    def _of(self, node: ast.AST, source: Source) -> Iterator[Place]:
        if isinstance(node, ast.Call):
            kind = self.kind(node, source)
            if kind or not source.file.startswith("dptrain/cli/"):
                yield from self._in_row(node.args, kind, source, node)
        elif isinstance(node, ast.Tuple | ast.List):
            yield from self._in_row(node.elts, self.kind(node, source), source, node)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                for code in self.codes(key, source):
                    for sentence in self.told(value, source):
                        yield Place(code, self.kind(node, source), source.file, node.lineno, sentence)

    def _in_row(self, row: list[ast.expr], kind: str, source: Source, node: ast.expr) -> Iterator[Place]:
        """Yields places of a code that has a sentence behind it.

        Findings have their place between code and sentence. A sentence that no text of the source holds is a caller's: then
        what the class of the error says stands for it.
        """
        for number, first in enumerate(row[:2]):
            for code in self.codes(first, source):
                later = row[number + 1 :]
                if not later:
                    continue
                if isinstance(node, ast.Call) and not self.is_error(kind) and len(later) > 1:
                    later = later[1:]
                sentences = next((found for found in (self.told(one, source) for one in later) if found), [])
                if not sentences and isinstance(node, ast.Call):
                    sentences = self._handed_on(node, source)
                if not sentences and self.is_error(kind):
                    sentences = [self.classes.get(kind, "")]
                elif not sentences and kind == "Finding":
                    sentences = [_mark(later[-1])]
                for sentence in sentences:
                    for made in MADE_OF.get(code, (code,)):
                        yield Place(made, kind, source.file, node.lineno, sentence)

    def is_error(self, kind: str) -> bool:
        """Returns whether a class takes a code and a sentence and nothing between them."""
        return kind in self.classes and kind not in ("Finding", "Told") and not kind.startswith("_")

    def _handed_on(self, node: ast.Call, source: Source) -> list[str]:
        """Returns the sentences that the called function of the same file puts beside a code that it was given."""
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for function, where in self.functions.get(str(name), ()):
            if where is source:
                taken = {argument.arg for argument in function.args.args}
                for call in ast.walk(function):
                    if isinstance(call, ast.Call) and len(call.args) > 1 and getattr(call.args[0], "id", None) in taken:
                        found = self.told(call.args[-1], source)
                        if found:
                            return found
        return []

    def codes(self, node: ast.expr | None, source: Source, depth: int = 3) -> list[str]:
        """Returns the codes that an expression may be."""
        if isinstance(node, ast.Constant):
            return [str(node.value)] if is_code(node.value) else []
        if isinstance(node, ast.JoinedStr) and len(node.values) == 2 and isinstance(node.values[1], ast.Constant):
            return [str(node.values[1].value)] if node.values[1].value in MADE_OF else []
        if isinstance(node, ast.IfExp):
            return self.codes(node.body, source, depth) + self.codes(node.orelse, source, depth)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ReasonCode":
            return [node.attr]
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Dict):
            return [code for value in node.value.values for code in self.codes(value, source, depth)]
        if isinstance(node, ast.Name) and depth:
            if node.id in source.constants:
                return [source.constants[node.id]]
            if node.id.isupper() and node.id in self.constants:
                return [self.constants[node.id]]
            return [code for given in source.assigned(node.id, node) for code in self.codes(given, source, depth - 1)]
        return []

    def told(self, node: ast.expr | None, source: Source, depth: int = 3) -> list[str]:
        """Returns the sentences that an expression may be; none where it is no text for a person."""
        if isinstance(node, ast.Constant):
            return [flat(node.value)] if isinstance(node.value, str) and " " in node.value.strip() else []
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else _placeholder(part) for part in node.values)
            return [flat(text)] if " " in re.sub(f"{OPEN}.*?{CLOSE}", "x", text).strip() else []
        if isinstance(node, ast.IfExp):
            return self.told(node.body, source, depth) + self.told(node.orelse, source, depth)
        if isinstance(node, ast.BoolOp):
            return [text for one in node.values for text in self.told(one, source, depth)]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = self._part(node.left, source, depth), self._part(node.right, source, depth)
            return [flat(f"{one}{other}") for one in left for other in right if " " in f"{one}{other}"]
        if isinstance(node, ast.Tuple | ast.List):
            return next((found for found in (self.told(one, source, depth) for one in node.elts) if found), [])
        if isinstance(node, ast.Call):
            return self._told_by(node, source, depth)
        if isinstance(node, ast.Name) and depth:
            given = source.assigned(node.id, node) or source.assigned(node.id, source.tree)
            return [text for one in given for text in self.told(one, source, depth - 1)]
        return []

    def _told_by(self, node: ast.Call, source: Source, depth: int) -> list[str]:
        """Returns the sentences of a call: of a method of text, of what it is given, or of what a function of ours returns."""
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("format", "join", "strip", "removesuffix"):
            return self.told(node.func.value, source, depth)
        found = next((found for found in (self.told(one, source, depth) for one in node.args) if found), [])
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        known = self.functions.get(str(name), [])
        here = [one for one in known if one[1] is source] or (known if len(known) == 1 else [])
        if found or not depth or len(here) != 1:
            return found
        function, where = here[0]
        returned = [one.value for one in ast.walk(function) if isinstance(one, ast.Return) and one.value is not None]
        return [text for one in returned for text in self.told(one, where, depth - 1)]

    def _part(self, node: ast.expr, source: Source, depth: int) -> list[str]:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return [node.value]
        return self.told(node, source, depth) or [_mark(node)]

    def kind(self, node: ast.expr, source: Source) -> str:
        """Returns what carries a code: an exception, the name of a table, or what a function makes of it."""
        if isinstance(node, ast.Call):
            name = str(node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""))
            if name[:1].isupper() and not name.isupper():
                return name
            for function, where in self.functions.get(name, ()):
                made = ast.unparse(function.returns).strip("'\"") if function.returns is not None else ""
                if where is source and made in self.classes:
                    return made
            if name in ("fact", "warning"):
                return "Consequence"
        up: ast.AST | None = node
        while up is not None and not isinstance(up, ast.Assign | ast.AnnAssign | ast.ClassDef | ast.FunctionDef):
            up = source.above.get(up)
        if isinstance(up, ast.Assign | ast.AnnAssign):
            enum = source.above.get(up)
            if isinstance(enum, ast.ClassDef):
                return enum.name
            target = up.targets[0] if isinstance(up, ast.Assign) else up.target
            if isinstance(target, ast.Name) and target.id.strip("_").isupper():
                return target.id
        return ""


def _placeholder(part: ast.expr) -> str:
    return _mark(part.value) if isinstance(part, ast.FormattedValue) else ""


def _mark(node: ast.expr) -> str:
    """Returns a placeholder named after an expression."""
    if isinstance(node, ast.Attribute):
        inner = node.value
        if node.attr == "__name__" and isinstance(inner, ast.Call):
            return f"{OPEN}type{CLOSE}"
        return f"{OPEN}{node.attr.strip('_').replace('_', ' ')}{CLOSE}"
    if isinstance(node, ast.Name):
        return f"{OPEN}{node.id.strip('_').replace('_', ' ')}{CLOSE}"
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "value")
        if name == "len":
            return f"{OPEN}number{CLOSE}"
        if name in ("str", "ascii", "repr", "sorted", "join", "hex", "listed", "quoted", "shown", "float", "int") and node.args:
            return _mark(node.args[0])
        return f"{OPEN}{str(name).strip('_').replace('_', ' ')}{CLOSE}"
    if isinstance(node, ast.Subscript):
        return _mark(node.value)
    if isinstance(node, ast.Constant):
        return str(node.value)
    return f"{OPEN}…{CLOSE}"


def flat(text: str) -> str:
    """Returns a text in one line."""
    return " ".join(text.split())


def sources(root: Path = ROOT) -> Iterator[Source]:
    """Yields the files of the three packages."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            yield Source(path)


@cache
def every() -> tuple[Place, ...]:
    """Returns every place that says a code, in the order of files and lines; the source is read once in a process."""
    return tuple(Reader(sources()).places())
