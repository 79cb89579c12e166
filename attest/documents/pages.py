"""Parts of the documentation that follow from declared documents: tables of settings, tables of bytes, and CDDL (RFC 8610)."""

from collections.abc import Iterable
from typing import Any

from attest.documents.declare import Declared, declarations
from attest.documents.groups import Named, Parts
from attest.documents.kinds import Kind


def settings_table(cls: type, place: str = "") -> str:
    """Returns the table of the settings that a person writes in one place: key, default, meaning.

    Args:
        cls: The document.
        place: Name of the table of TOML; empty for what stands above the first.
    """
    rows = []
    for item in declarations(cls):
        if not item.written:
            continue
        if isinstance(item.kind, Named) and item.kind.tables is None:
            rows += _named_rows(item, item.kind) if item.key == place else []
        elif item.kind.tables is not None or isinstance(item.kind, Parts):
            head = f"[[{item.key}]]" if item.kind.tables is not None else f"[{item.key}]"
            if item.sentence and item.key.rpartition(".")[0] == place:
                rows.append((f"`{head}`", "none", item.sentence))
        elif item.key.rpartition(".")[0] == place:
            rows.append((f"`{item.key.rpartition('.')[2]}`", default_of(item), item.sentence))
    return table(("key", "default", "meaning"), rows)


def bytes_table(cls: type, schema: str = "") -> str:
    """Returns the table of the signed fields of a document: label, setting, value in CDDL, and what binds it."""
    rows = [("1", "schema", f'`"{schema}"`', "always")] if schema else []
    for item in sorted(declarations(cls), key=lambda item: item.label):
        value = f"`{item.kind.cddl}`" + (" or null" if item.nil else "")
        stated = "where stated" if item.optional else "always"
        rows.append((str(item.label), f"`{item.key or item.name}`", value, f"{stated}; {item.rule}" if item.rule else stated))
    return table(("key", "setting", "value", "there"), rows)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Returns a table in Markdown."""
    heads = tuple(head)
    lines = [heads, *rows]
    written = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([written[0], "|" + "---|" * len(heads), *written[1:]]) + "\n"


def default_of(item: Declared) -> str:
    """Says the default of a field."""
    if item.shown is not None:
        return item.shown
    if item.required:
        return "required"
    if item.default is None or item.default == ():
        return "none"
    written = item.kind.write(item.default)
    return f"`{written}`" if '"' in written else written


def _named_rows(item: Declared, kind: Named) -> list[tuple[str, str, str]]:
    rows = [(f"`{kind.word}`", f'`"{item.default.name}"`', item.sentence)]
    rows.append(("`parameters`", "none", "What the word takes; [below](#specified-not-built-yet)."))
    return rows + [(f"`{more.key}`", default_of(more), more.sentence) for more in declarations(kind.cls)]


def cddl_map(cls: Any, schema: str = "") -> str:
    """Returns the rule of a document that is signed as a map."""
    if hasattr(cls, "FORMS"):
        return _cddl_forms(cls)
    entries = [(f'1 => "{schema}",', "")] if schema else []
    for item in sorted(declarations(cls), key=lambda item: item.label):
        value = item.kind.cddl + (" / nil" if item.nil else "")
        entries.append((f"{'? ' if item.optional else ''}{item.label} => {value},", _comment(item)))
    return f"{cls.CDDL} = {{\n{_entries(entries)}}}\n"


def cddl_row(cls: Any) -> str:
    """Returns the rule of a document that is signed as an array of its fields."""
    items = sorted(declarations(cls), key=lambda item: item.label)
    return f"{cls.CDDL} = [{', '.join(f'{item.key}: {item.kind.cddl}' for item in items)}]\n"


def cddl_named(kind: Named) -> str:
    """Returns the rule of a word with its parameters, and those of the parameters."""
    known = kind.cls.PARAMETERS
    forms = []
    for word, cls in known.items():
        more = [_beside(kind.cls, word, item) for item in declarations(kind.cls)]
        parts = [f'"{word}"', "{}" if cls is None else cls.CDDL, *more]
        forms.append(f"[{', '.join(parts)}]")
    classes = dict.fromkeys(cls for cls in known.values() if cls is not None)
    return f"{kind.cddl} = " + "\n  / ".join(forms) + "\n" + "".join(f"\n{cddl_map(cls)}" for cls in classes)


def _beside(cls: Any, word: str, item: Declared) -> str:
    """Returns what stands behind a word and its parameters: a value, null, or either."""
    stated = getattr(cls, "STATED", {}).get(word, "either")
    return {"never": "nil", "always": item.kind.cddl, "either": f"{item.kind.cddl} / nil"}[stated]


def _cddl_forms(cls: Any) -> str:
    by_name = {item.name: item for item in declarations(cls)}
    forms = []
    for name, beside in cls.FORMS.items():
        own = by_name[name]
        rest = "".join(f", ? {by_name[more].label} => {by_name[more].kind.cddl}" for more in beside)
        forms.append(f"{{ {own.label} => {own.kind.cddl}{rest} }}")
    comments = [f"; {item.label}: {item.key or '/'.join(item.kind.spread)}\n" for item in by_name.values()]
    return "".join(comments) + f"{cls.CDDL} = " + "\n  / ".join(forms) + "\n"


def _comment(item: Declared) -> str:
    unit = f", in {item.kind.unit}" if item.kind.unit else _inner_unit(item.kind)
    return f"{item.key or item.name}{unit}" + (f"; {item.rule}" if item.rule else "")


def _inner_unit(kind: Kind) -> str:
    inner = getattr(kind, "kind", None)
    return f", in {inner.unit}" if isinstance(inner, Kind) and inner.unit else ""


def _entries(entries: list[tuple[str, str]]) -> str:
    lines = []
    for entry, comment in entries:
        if comment and len(entry) > 46:
            lines.append(f"  ; {comment}\n  {entry}\n")
        else:
            lines.append(f"  {entry:<27} ; {comment}\n" if comment else f"  {entry}\n")
    return "".join(lines)
