"""Writes what the documentation says of signed documents from their declarations.

The parts are tables of settings, tables of bytes, and CDDL (RFC 8610). Here stand those of the policy and of what contributors
sign; `tests.pages.leaves` makes those of a ledger with the functions of this file.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

from attest.corpus.anchor import ContentAnchor
from attest.descriptor import MAX_COUNT, Opening, SignedDescriptor
from attest.policy.classes import ClassRule, DecodingRule, DepthRule, ReadRule
from attest.policy.mechanism import NoisePhase
from attest.policy.rules import Policy
from attest.policy.unbuilt import ANY, UNBUILT
from attest.registry.entries import ACTION, ACTIONS, Entry, KeyStatement
from attest.schema.declare import Declared, declarations, derived
from attest.schema.groups import Many, Named, Parts
from attest.schema.kinds import Kind
from attest.withdrawal import Withdrawal
from tests.reference.second_gate import STEPS

_PYTHON: Final = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TABLE: Final = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)

Pages = Mapping[str, Callable[[str], str]]
"""Pages that say what is declared, by name, each with what writes its parts again."""


def with_tables(page: str, heading: str, tables: Iterable[str]) -> str:
    """Returns a page with tables in the place of the first ones under a heading, as many."""
    start = re.search(rf"^#+ {re.escape(heading)}\n", page, re.MULTILINE)
    if start is None:
        raise ValueError(f"the page has no heading {heading!r}")
    at = start.end()
    for written in tables:
        found = _TABLE.search(page, at)
        if found is None:
            raise ValueError(f"the page has too few tables under {heading!r}")
        page = page[: found.start()] + written + page[found.end() :]
        at = found.start() + len(written)
    return page


def with_source(page: str, heading: str, path: Path) -> str:
    """Returns a page with the source of a program in the place of the first block of Python under a heading."""
    start = re.search(rf"^#+ {re.escape(heading)}\n", page, re.MULTILINE)
    found = _PYTHON.search(page, start.end()) if start else None
    if found is None:
        raise ValueError(f"the page has no block of Python under {heading!r}")
    return page[: found.start(1)] + path.read_text(encoding="utf-8") + page[found.end(1) :]


def with_section(page: str, name: str, written: str) -> str:
    """Returns CDDL with the section of this name, up to the next one, as it is written."""
    found = re.search(rf"^; --- {re.escape(name)} -+\n\n(.*?)(?=^; --- )", page, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(f"the page has no section {name!r}")
    return page[: found.start(1)] + written + "\n" + page[found.end(1) :]


def with_rule(page: str, name: str, written: str) -> str:
    """Returns CDDL with the rule of this name, a map, as it is written."""
    found = re.search(rf"^{re.escape(name)} = \{{\n.*?^\}}\n", page, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(f"the page has no rule {name!r}")
    return page[: found.start()] + written + page[found.end() :]


def labelled(cls: Any) -> list[Declared]:
    """Returns what stands in the bytes of a document, in order of its labels: its fields, and what follows from them."""
    more = getattr(cls, "DERIVED", ())
    if hasattr(cls, "SCHEMA"):
        more = (derived(1, "schema", f'"{cls.SCHEMA}"', f"Format of the {cls.WHAT}."), *more)
    return sorted([*declarations(cls), *more], key=lambda item: item.label)


def settings_table(cls: type, place: str = "") -> str:
    """Returns the table of the settings that a person writes in one place: key, default, meaning. `place`: name of the table of
    TOML; empty for what stands above the first."""
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


def bytes_table(cls: type) -> str:
    """Returns the table of the signed fields of a document: label, setting, value in CDDL, and what binds it."""
    rows = []
    for item in labelled(cls):
        value = f"`{item.kind.cddl}`" + (" or null" if item.nil else "")
        stated = "where stated" if item.optional else "always"
        rows.append((str(item.label), f"`{item.key or item.name}`", value, f"{stated}; {item.rule}" if item.rule else stated))
    return table(("key", "setting", "value", "there"), rows)


def fields_table(first: str, documents: Mapping[str, type], *, key: str = "key", least: int = 0) -> str:
    """Returns the table of the signed fields of documents that no person writes: key, field, value in CDDL, meaning.

    Args:
        first: Head of the column that names the documents.
        documents: Their classes, by the names that stand there.
        key: What a label is.
        least: Least label that the table has.
    """
    rows = []
    for name, cls in documents.items():
        for item in (item for item in labelled(cls) if item.label >= least):
            value = f"`{item.kind.cddl}`" + (f" in {item.kind.unit}" if item.kind.unit else "")
            value += (" or null" if item.nil else "") + (", optional" if item.optional else "")
            rule = f" {item.rule[0].upper()}{item.rule[1:]}." if item.rule else ""
            rows.append((name, str(item.label), f"`{item.name}`", value, item.sentence + rule))
    return table((first, key, "field", "value", "meaning"), rows)


def said_of(cls: type) -> str:
    """Returns the first paragraph that is said of a document, on one line."""
    return " ".join(str(cls.__doc__).split("\n\n")[0].split())


def commented(cls: type) -> str:
    """Returns what is said of a document, as a comment of CDDL."""
    return "".join(f"{line}\n" for line in wrap(said_of(cls), 128, initial_indent="; ", subsequent_indent="; "))


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


def cddl_map(cls: Any) -> str:
    """Returns the rule of a document that is signed as a map."""
    if hasattr(cls, "FORMS"):
        return _cddl_forms(cls)
    rules = []
    for name, values in _stated(cls).items():
        entries = [(f"{'? ' if item.optional else ''}{item.label} => {value},", _comment(item)) for item, value in values]
        rules.append(f"{name} = {{\n{_entries(entries)}}}\n")
    return _choice(cls) + "".join(rules)


def cddl_row(cls: Any) -> str:
    """Returns the rule of a document that is signed as an array of its fields.

    A choice in an array has a name, ``uint-or-nil``: some tools read one without a name wrongly.
    """
    rules = []
    for name, values in _stated(cls).items():
        named = [(f"{item.key}: {value.replace(' / ', '-or-')}", item) for item, value in values]
        line = f"{name} = [{', '.join(value for value, _ in named)}]\n"
        written = _entries([(f"{value},", _comment(item, named=False)) for value, item in named])
        rules.append(line if len(line) < 100 else f"{name} = [\n{written}]\n")
    return _choice(cls) + "".join(rules)


def _stated(cls: Any) -> dict[str, list[tuple[Declared, str]]]:
    """Returns the rules of a class by name, each with what stands in every field.

    There are two where fields need each other, since null and a value of these do not go together in every way, and one for
    each word where a word says which fields are null.
    """
    items = labelled(cls)
    if hasattr(cls, "BY_WORD"):
        field, words = cls.BY_WORD
        return {name: [(item, _by_word(item, field, word, stated)) for item in items] for word, (name, stated) in words.items()}
    either = [(item, item.kind.cddl + (" / nil" if item.nil else "")) for item in items]
    needed = {item.needs for item in items if item.needs is not None}
    if not needed:
        return {cls.CDDL: either}
    plain = [(item, "nil" if item.needs is not None else value) for item, value in either]
    full = [(item, item.kind.cddl if item.needs is not None or item.name in needed else value) for item, value in either]
    return {f"plain-{cls.CDDL}": plain, f"full-{cls.CDDL}": full}


def _by_word(item: Declared, field: str, word: str, stated: Mapping[str, str]) -> str:
    """Returns what stands in a field of a document that has a word."""
    if item.name == field:
        return f'"{word}"'
    found = {"never": "nil", "always": item.kind.cddl}.get(stated.get(item.name, ""))
    return found or item.kind.cddl + (" / nil" if item.nil else "")


def _choice(cls: Any) -> str:
    names = list(_stated(cls))
    return f"{cls.CDDL} = {' / '.join(names)}\n" if len(names) > 1 else ""


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


def _comment(item: Declared, *, named: bool = True) -> str:
    name = item.key or item.name
    unit = _unit(item.kind)
    return "; ".join(part for part in (f"{name}, {unit}" if named and unit else name if named else unit, item.rule) if part)


def _unit(kind: Kind) -> str:
    inner = getattr(kind, "kind", kind)
    return f"in {inner.unit}" if isinstance(inner, Kind) and inner.unit else ""


def _entries(entries: list[tuple[str, str]]) -> str:
    lines = []
    for entry, comment in entries:
        if comment and len(entry) > 46:
            lines.append(f"  ; {comment}\n  {entry}\n")
        else:
            lines.append(f"  {entry:<27} ; {comment}\n" if comment else f"  {entry}\n")
    return "".join(lines)


_PLACES: Final = {
    "Top level": "",
    "`[noise]`": "noise",
    "`[sampling]`": "sampling",
    "`[floors]`": "floors",
    "`[gate]`": "gate",
    "`[ledger]`": "ledger",
    "`[isolation]`": "isolation",
}
"""Headings of policy.md by the table of policy.toml that they explain."""

_CLASSES: Final = "`[[class]]`, one per admissibility class"
_UNBUILT: Final = "Specified, not built yet"
_CORRELATED: Final = "Noise that is correlated between steps"
_DEPTH: Final = "`depth`"
_READS: Final = "`reads`"


def policy_page(page: str) -> str:
    """Returns policy.md with its tables as the declaration has them."""
    for heading, place in _PLACES.items():
        page = with_tables(page, heading, [settings_table(Policy, place)])
    page = with_tables(page, _CLASSES, [settings_table(ClassRule)])
    page = with_tables(page, _CORRELATED, [table(("family", "parameters"), _families())])
    page = with_tables(page, _DEPTH, [table(("key", "meaning"), _depth_rows())])
    refused = table(("setting", "word", "what it will be", "parameters"), _unbuilt_rows())
    page = with_tables(page, _READS, [settings_table(ReadRule)])
    return with_tables(page, _UNBUILT, [refused, settings_table(DecodingRule)])


def policy_cddl() -> str:
    """Returns the rules of a policy in CDDL."""
    budgets = "noise-budgets = [embeddings: weight, layers: weight, head: weight]\n"
    named = [item.kind for item in declarations(Policy)]
    words = [kind for kind in (k.kind if isinstance(k, Many) else k for k in named) if isinstance(kind, Named)]
    return "\n".join(
        [
            f"; Written from the declaration (python -m tests.pages).\n{cddl_map(Policy)}",
            "; From this step on, up to the next phase, the noise is that of the presets times a scale in units of 1e-6.\n"
            + cddl_row(NoisePhase),
            "; In units of 1e-6; without them one clip norm binds over all blocks of a class.\n" + budgets,
            *(f"; A word, its parameters, and what else belongs to it.\n{cddl_named(kind)}" for kind in words),
            cddl_map(ClassRule),
            "; Exactly one of the labels 1 to 4. Numbers ascend strictly.\n" + cddl_map(DepthRule),
            cddl_map(ReadRule),
            cddl_map(DecodingRule),
        ]
    )


def _families() -> list[tuple[str, str]]:
    """Returns the families of noise that take parameters, by what they take."""
    (kind,) = (item.kind for item in declarations(Policy) if item.key == "noise" and isinstance(item.kind, Named))
    by_class: dict[Any, list[str]] = {}
    for word, cls in kind.cls.PARAMETERS.items():
        if cls is not None:
            by_class.setdefault(cls, []).append(f"`{word}`")
    return [
        (", ".join(words), " ".join(f"`{item.key}`: {item.sentence}" for item in declarations(cls)))
        for cls, words in by_class.items()
    ]


def _depth_rows() -> list[tuple[str, str]]:
    """Returns the keys of a depth, with what they say."""
    keys = ((item, getattr(item.kind, "spread", ()) or (item.key,)) for item in declarations(DepthRule))
    return [(", ".join(f"`{key}`" for key in named), item.sentence) for item, named in keys]


def _unbuilt_rows() -> list[tuple[str, str, str, str]]:
    """Returns the words that are refused by name, with their parameters and what they will mean."""
    taken: dict[tuple[str, str], type | None] = {}
    for item in declarations(Policy):
        kind = item.kind.kind if isinstance(item.kind, Many) else item.kind
        if isinstance(kind, Named):
            key = item.key if isinstance(item.kind, Many) else f"{item.key}.{kind.word}"
            taken |= {(key, word): cls for word, cls in kind.cls.PARAMETERS.items()}
    rows = []
    for key, words in UNBUILT.items():
        for word, told in words.items():
            cls = taken.get((key, word))
            fields = "" if cls is None else " ".join(f"`{item.key}`: {item.sentence}" for item in declarations(cls))
            rows.append((f"`{key}`", "whatever it says" if word == ANY else f"`{word}`", told, fields))
    return rows


def attestation_page(page: str) -> str:
    """Returns formats/attestation.md with the tables that are declared."""
    tables = [fields_table("of the", {"descriptor": SignedDescriptor}), fields_table("of the", {"opening": Opening})]
    page = with_tables(page, "Attestation", tables)
    steps = [
        (str(number), check, ", ".join(f"`{code}`" for code in codes)) for number, (check, codes) in enumerate(STEPS, start=1)
    ]
    return with_tables(page, "Judging an attestation", [table(("step", "check", "reason codes"), steps)])


def corpus_page(page: str) -> str:
    """Returns formats/corpus.md with the tables that are declared."""
    page = with_tables(page, "Content anchor", [fields_table("of the", {"anchor": ContentAnchor})])
    page = with_tables(page, "Withdrawal", [fields_table("of the", {"withdrawal": Withdrawal})])
    return with_tables(page, "Policy", [bytes_table(Policy), bytes_table(ClassRule)])


def registry_tables() -> list[str]:
    """Returns the tables of a registry in their order: the entry, what actions do, their fields, and the key statement."""
    acts = {f"{act.CODE} {act.CDDL}": act for act in ACTIONS}
    does = [(str(act.CODE), act.CDDL, said_of(act)) for act in ACTIONS]
    return [
        fields_table("of the", {"entry": Entry}),
        table(("code", "action", "what it does"), does),
        fields_table("action", acts, key="place", least=1),
        fields_table("of the", {"key statement": KeyStatement}),
    ]


def registry_cddl() -> str:
    """Returns the rules of a registry in CDDL."""
    nil = dict.fromkeys(item.kind.cddl for act in ACTIONS for item in declarations(act) if item.nil)
    names = [act.CDDL for act in ACTIONS]
    return "\n".join(
        [
            f"; Written from the declaration (python -m tests.pages).\n{cddl_map(Entry)}",
            f"{ACTION.cddl} = {' / '.join(names)}\n",
            *(f"{commented(act)}{cddl_row(act)}" for act in ACTIONS),
            f"cap = 0..{MAX_COUNT}\n" + "".join(f"{name}-or-nil = {name} / nil\n" for name in nil),
            cddl_map(KeyStatement),
            "; registry.names, the owner's file beside registry.cbor and in no export, is a CBOR sequence of these, by name.\n"
            "registry-name = [name: id, salt: bstr .size 16, principal: id / nil]\n",
        ]
    )


def cddl_page(page: str) -> str:
    """Returns attestation.cddl with the rules that are declared."""
    for cls in (SignedDescriptor, Opening, ContentAnchor, Withdrawal):
        page = with_rule(page, cls.CDDL, cddl_map(cls))
    page = with_section(page, "policy", policy_cddl())
    return with_section(page, "registry", registry_cddl())


PAGES: Final[Pages] = {
    "policy.md": policy_page,
    "formats/attestation.md": attestation_page,
    "formats/corpus.md": corpus_page,
    "formats/registry.md": lambda page: with_tables(page, "Registry", registry_tables()),
    "attestation.cddl": cddl_page,
}
