"""Finds the tensors of released files to which the run committed, and what a loader would take from the others.

A loader reads a file by itself, or the shards of one set together: such files are a *group* here. A group may hold a part of
the model, and name its tensors from there: the encoder alone, or one adapter, whose name the library that saves it leaves out.
So each group is read in one *view*: one prefix that its names lack or have too much, and one adapter where a name could be of
several; the same for all its tensors, so that no two can trade places.

Where a group lies says what a loader takes it for. In a folder that has the name of a module or of an adapter of the run, or in
a file of the directory itself that has it, it is looked for as that one, and read in that view. Any other group that lies in
the directory itself is read in the view in which most of its tensors are the run's. No loader looks into other folders. The
view is told with the result, and whoever checks finds it again.

Weights are TIED only if a loader that takes these files gets the trained tensors of the run and nothing in their place: none is
left out, no group has only some of those of the model, module or adapter that it is, no file hides its tensors behind names
that no loader looks for, no other file may hold weights, whatever its name.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, ClassVar, Final, Literal

from attest.schema import declared
from attest.schema.cards import card_of
from attest.schema.quick import Array, Row
from ledger.leaves.kinds import ABOVE_0, UINT, Checked
from ledger.leaves.weights import WeightRecord
from ledger.release.contents import CODE_FORMS, HARMLESS, INDEX, TEMPLATE
from ledger.release.files import Digested, Tensor

Status = Literal["TIED", "PART", "CONVERTED", "UNTIED", "UNRECORDED"]

COMPANIONS: Final = frozenset(
    (".json", ".jsonl", ".txt", ".md", ".rst", ".html", ".jinja", ".py", ".toml", ".yaml", ".yml", ".ini", ".cfg", ".csv",
     ".tsv", ".model", ".vocab", ".bpe", ".spm", ".merges", ".png", ".jpg", ".jpeg",
     ".svg", ".gif", ".webp", ".css", ".js", ".pdf", ".cff", ".log", ".lock", ".sha256", ".sig", ".pub")
)  # fmt: skip
"""Endings of files that lie beside weights, and hold none if their bytes are of a form that holds none; others may."""

PLAIN: Final = frozenset(("license", "notice", "readme", "copying", "authors", "changelog", ".gitattributes", ".gitignore"))
"""Names of such files without an ending."""

GENERAL: Final = frozenset(("model", "adapter_model"))
"""Names that transformers and peft give to the files of any model and any adapter; they name no module."""

DEFAULT: Final = "default"
"""The adapter that peft saves in the directory itself, beside the folders of the others."""

WRAPPERS: Final = ("model.", "base_model.model.", "module.", "_orig_mod.")
"""Prefixes that transformers, peft, data parallelism and torch.compile put before all names, and that loaders take away."""

MAX_ADAPTERS: Final = 256
"""Adapters whose tensors may share a name; those of more are told to be changed."""

MAX_DEPTH: Final = 32
"""Modules inside one another of which a file may hold the inner one."""

_SHARD: Final = re.compile(r"-\d+(-of-\d+)(?=\.safetensors\Z)")
_SET: Final = re.compile(r"(-of-\d+)?\.safetensors\Z")
_SHOWN: Final = 120
"""Characters of a name in a sentence, which is signed and may have been named by anybody."""

_VIEWS: Final = 16
"""Prefixes that are tried for a file."""


@dataclass(frozen=True, slots=True)
class Commitment(Checked):
    """Holds the tensors of a model at the end of an epoch, to which the EPOCH leaf commits by its model digest."""

    CDDL: ClassVar = "weights"
    number: int = declared(1, ABOVE_0, "Number of the epoch.")
    seq: int = declared(2, ABOVE_0, "Position of its EPOCH leaf.")
    step: int = declared(3, UINT, "Last released step then.")
    records: tuple[WeightRecord, ...] = declared(
        4, Array(Row(WeightRecord, "TYPE"), 1, code="MANIFEST"), "The tensors, in order of their first names."
    )


@dataclass(frozen=True, slots=True)
class View:
    """Maps the names of a file to names of the run's model: without ``drop`` in front, and with ``add`` instead."""

    drop: str
    add: str
    adapter: str | None

    @property
    def known(self) -> bool:
        """Tells whether a loader finds the tensors: under their own names, behind a known wrapper, or as one module of the
        model."""
        return self.drop in ("", *WRAPPERS) and (self.add in ("", *WRAPPERS) or self.add.count(".") == 1)

    def name(self, found: str) -> str | None:
        """Returns the run's name of a tensor of the file, None if it has none in this view."""
        return self.add + found.removeprefix(self.drop) if found.startswith(self.drop) else None


@dataclass(frozen=True, slots=True)
class FileTie:
    """Holds one safetensors file against the commitment; tensors by their names in the file.

    Attributes:
        converted: those of another dtype than in the run, whose bytes cannot be compared.
        changed: those of the run's name with other bytes or another shape.
        foreign: those of no name that the run's model had.
        adapters: adapters of which it has tensors, by the names that these have in the run, whatever their bytes; None among
            them stands for the model without adapters.
    """

    path: str
    view: View
    tied: tuple[str, ...]
    converted: tuple[str, ...]
    changed: tuple[str, ...]
    foreign: tuple[str, ...]
    adapters: frozenset[str | None] = frozenset()


@dataclass(frozen=True, slots=True)
class Tie:
    """Compares released files with the weights of a run.

    Attributes:
        commitment: what they were held against, None if nothing was committed to or its records are gone.
        opaque: paths of files that are not compared and may hold weights: all that are not known to hold none.
        present: how many of them a loader gets from the files, bit for bit or converted.
        untrained: how many of the others it gets from them, bit for bit.
        elsewhere: how many of the others it gets from somewhere else.
        left_out: first names of trained tensors that are in no file where a loader looks for them, or that one lacks of several
            from which it could take them.
        adapters: names of the adapters of which no trained tensor is left out.
        aside: paths of safetensors files that lie where no loader looks for them; what they hold is in no count.
        astray: paths of indices of shards by which a loader would read other files than the safetensors files beside them.
        code: paths of files that can carry code, or are settings that name some, for a loader to run.
    """

    commitment: Commitment | None
    files: tuple[FileTie, ...] = ()
    opaque: tuple[str, ...] = ()
    trained: int = 0
    present: int = 0
    untrained: int = 0
    elsewhere: int = 0
    left_out: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    aside: tuple[str, ...] = ()
    astray: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()

    _repr_html_ = card_of

    @property
    def status(self) -> Status:
        """Returns TIED: a loader gets every trained tensor of the run, bit for bit, and none in its place; PART: some are left
        out, all others are the run's; CONVERTED: but for dtypes; UNTIED: something is not the run's; UNRECORDED."""
        if self.commitment is None:
            return "UNRECORDED"
        if self.opaque or self.empty or self.astray or any(file.changed or file.foreign for file in self.files):
            return "UNTIED"
        if any(not file.view.known for file in self.files):
            return "UNTIED"
        if any(file.converted for file in self.files):
            return "CONVERTED"
        return "PART" if self.left_out else "TIED"

    def serves(self, artifact: str) -> bool:
        """Returns whether an artifact of the manifest can be loaded from these files, all of it the run's, bit for bit."""
        adapter = artifact.removeprefix("adapter:")
        return self.status == "TIED" or (self.status == "PART" and adapter != artifact and adapter in self.adapters)

    @property
    def empty(self) -> bool:
        """Tells whether there is not one tensor in the files."""
        return not any(file.tied or file.converted or file.changed or file.foreign for file in self.files)


def tie(commitment: Commitment | None, files: Sequence[Digested]) -> Tie:
    """Holds released files against the weights of an epoch.

    Guarantee: a tensor counts as tied only if the record that has its name, in the view told with the result, has its dtype,
    shape and SHA-256; nothing else is asked of whoever made the file. Where the status is TIED every trained tensor of the
    epoch is in a safetensors file where a loader looks for it, under names that it looks for: all of the model, of a module or
    of an adapter in one file or set of shards, and whatever else could be taken for that one has all of it too. No file in the
    place of a module or an adapter has tensors of another, and no file beside them is of a form that may hold weights
    (`ledger.release.contents`). What code and settings make of the tensors nothing here says; `code` names them.

    Args:
        commitment: the tensors of the epoch, whose digest the caller has compared with the EPOCH leaf.
    """
    beside: dict[str, Any] = {
        "opaque": tuple(file.path for file in files if file.tensors is None and not _is_companion(file)),
        "astray": tuple(file.path for file in files if file.form == INDEX and not _leads_here(file, files)),
        "code": tuple(file.path for file in files if file.form in CODE_FORMS),
        "templates": tuple(file.path for file in files if file.form == TEMPLATE),
    }
    if commitment is None:
        return Tie(None, **beside)
    index = _Index(commitment.records)
    found, aside, taken = [], [], _Taken(commitment.records)
    for whole, members in _groups(files).items():
        reading = index.reading(whole, [tensor for file in members for tensor in file.tensors or ()])
        seen: set[int] = set()
        for file in members:
            told, records = _against(file.path, file.tensors or (), reading.view, index)
            found.append(told)
            seen |= records
        if reading.read:
            taken.add(reading, seen)
        else:
            aside += [file.path for file in members]
    trained = [record.names[0] for record in commitment.records if record.trained and not record.sources]
    left_out = frozenset(taken.left_out())
    present = sum(name not in left_out for name in trained)
    untrained = len(taken.names.difference(trained))
    own = [record for record in commitment.records if record.adapter is not None and record.trained and not record.sources]
    missing = {record.adapter for record in own if record.names[0] in left_out}
    tensors = sum(not record.sources for record in commitment.records)
    return Tie(
        commitment,
        tuple(sorted(found, key=lambda file: file.path)),
        trained=len(trained),
        present=present,
        untrained=untrained,
        elsewhere=tensors - len(trained) - untrained,
        left_out=tuple(name for name in trained if name in left_out),
        adapters=tuple(sorted({record.adapter or "" for record in own} - missing)),
        aside=tuple(sorted(aside)),
        **beside,
    )


def _groups(files: Sequence[Digested]) -> dict[str, list[Digested]]:
    """Returns the safetensors files that a loader reads as one, by the path that all of it would have in one file.

    Those that an index names are one if their names begin with that of the index, unless the one file that it stands for lies
    there too, which a loader would take first.
    """
    paths = {file.path for file in files if file.tensors is not None}
    indexed: dict[str, str] = {}
    for file in files:
        folder, slash, name = file.path.removesuffix(".safetensors.index.json").rpartition("/")
        whole = f"{folder}{slash}{name}.safetensors"
        if file.form == INDEX and f"{whole}.index.json" == file.path and whole not in paths:
            indexed |= {f"{folder}{slash}{shard}": whole for shard in file.names if shard.startswith(f"{name}-")}
    found: dict[str, list[Digested]] = {}
    for file in files:
        if file.tensors is not None:
            found.setdefault(indexed.get(file.path) or _SHARD.sub(r"\1", file.path), []).append(file)
    return found


def _is_companion(file: Digested) -> bool:
    """Tells whether a file is called as one that comes beside weights, and is by its bytes one that holds none."""
    name = PurePosixPath(file.path).name.lower()
    ending = PurePosixPath(name).suffix
    return file.form in HARMLESS and (ending in COMPANIONS or (not ending and name in PLAIN))


def _leads_here(index: Digested, files: Sequence[Digested]) -> bool:
    """Tells whether a loader that follows an index reads safetensors files beside it, and every shard that lies there."""
    folder = index.path.rpartition("/")[0]
    tensors = (file.path for file in files if file.tensors is not None)
    beside = {path.rpartition("/")[2] for path in tensors if path.rpartition("/")[0] == folder}
    shards = {name for name in beside if "-of-" in name}
    return beside.issuperset(index.names) and shards.issubset(index.names)


def told(found: Tie) -> str:
    """Returns in one sentence or two what a tie says and what it does not, for the statements of a manifest."""
    if found.commitment is None:
        return UNRECORDED
    at = f"at the end of epoch {found.commitment.number} (step {found.commitment.step}, leaf {found.commitment.seq})"
    share = f"{found.present} of its {found.trained} trained tensors"
    match found.status:
        case "TIED":
            return TIED.format(at=at, share=share, untrained=found.untrained, elsewhere=found.elsewhere)
        case "PART":
            return PART.format(at=at, share=share, untrained=found.untrained, names=few(found.left_out))
        case "CONVERTED":
            names = [name for file in found.files for name in file.converted]
            return CONVERTED.format(at=at, count=len(names), names=few(names))
    return UNTIED.format(at=at, why="; ".join(_reasons(found)))


TIED: Final = (
    "W (weights tied): every tensor of these files is, bit for bit, one to which the ledger commits {at}: {share}, and "
    "{untrained} that it did not train; {elsewhere} that it did not train are in none of them, and come from elsewhere. Behind "
    "that leaf nobody could choose others; that these are what training gave is the word of the ledger's operator."
)
PART: Final = (
    "W (weights in part): every tensor of these files is, bit for bit, one to which the ledger commits {at}: {share}, and "
    "{untrained} that it did not train. Others that it trained are in no file where a loader looks for them, or not in every "
    "one ({names}): what it puts in their place is not the run's."
)
CONVERTED: Final = (
    "W (weights converted): {count} tensors have another type than those to which the ledger commits {at} ({names}); all "
    "others are bit for bit the same. Weights were converted after the run, and are not tied to it: that these come from "
    "those is the releaser's word."
)
UNTIED: Final = (
    "W (weights NOT tied): these files are not the weights to which the ledger commits {at}: {why}. They were changed after "
    "the run or are not from it; no epsilon here is said of them, unless all that was done to them used no data of the corpus."
)
UNRECORDED: Final = (
    "W (weights not recorded): no epoch was closed, or its record of single tensors was not at hand. That these files are the "
    "weights of the run is the releaser's word alone."
)


def _reasons(found: Tie) -> Iterator[str]:
    changed = [name for file in found.files for name in file.changed]
    foreign = [name for file in found.files for name in file.foreign]
    if changed:
        yield f"{len(changed)} tensors have other values or shapes ({few(changed)})"
    if foreign:
        yield f"{len(foreign)} are of no name that its model had ({few(foreign)})"
    if found.opaque:
        yield f"files that are not compared may hold weights ({few(found.opaque)})"
    if found.astray:
        yield f"an index leads a loader to other files than the shards beside it ({few(found.astray)})"
    hidden = [f"{file.path}: {file.view.drop or file.view.add}" for file in found.files if not file.view.known]
    if hidden:
        yield f"names are such as no loader looks for ({few(hidden)})"
    if found.empty:
        yield "there is no tensor in a safetensors file"


def told_beside(found: Tie) -> tuple[str, ...]:
    """Returns what is said of files beside the weights that can carry code, or shape prompts; nothing where there are none."""
    said = []
    if found.code:
        said.append(CODE.format(count=len(found.code), names=few(found.code)))
    if found.templates:
        said.append(TEMPLATES.format(count=len(found.templates), names=few(found.templates)))
    return tuple(said)


CODE: Final = (
    "C (code beside the weights): {count} files can carry code for a loader to run, or are settings that name such code "
    "({names}). They are as they were released; what they make of the weights is in no leaf of the ledger, and has no epsilon."
)
TEMPLATES: Final = (
    "C (templates): {count} files hold templates by which prompts are made ({names}), as they were released; no leaf commits "
    "to them."
)


def few(names: Sequence[str]) -> str:
    """Names the first five, in ASCII and cut short."""
    return ", ".join(ascii(name[:_SHOWN])[1:-1] for name in names[:5]) + (", ..." if len(names) > 5 else "")


def _against(path: str, tensors: Iterable[Tensor], view: View, index: "_Index") -> tuple[FileTie, set[int]]:
    """Judges every tensor of a file; returns with it the places of the records that are in the file, converted ones too."""
    lists: dict[str, list[str]] = {"tied": [], "converted": [], "changed": [], "foreign": []}
    seen, adapters = set(), set()
    for tensor in tensors:
        place = index.place(tensor.name, view)
        verdict = "foreign" if place is None else _verdict(tensor, index.records[place])
        lists[verdict].append(tensor.name)
        if place is not None:
            adapters.add(index.records[place].adapter)
        if place is not None and verdict in ("tied", "converted"):
            seen.add(place)
    named = {name: tuple(names) for name, names in lists.items()}
    return FileTie(path, view, **named, adapters=frozenset(adapters)), seen


def _verdict(tensor: Tensor, record: WeightRecord) -> str:
    if tensor.shape != record.shape:
        return "changed"
    if tensor.dtype != record.dtype:
        return "converted"
    return "tied" if tensor.sha256 == record.sha256 else "changed"


@dataclass(frozen=True, slots=True)
class _Reading:
    """Says how a loader reads a group.

    Attributes:
        read: whether it looks for the group where that lies.
        adapter: the adapter as which it is looked for; None for what the group has.
        module: the one module of which it has tensors; None for the model.
    """

    view: View
    read: bool
    adapter: str | None
    module: str | None


class _Taken:
    """Counts what a loader takes from groups, for each thing that it could load: the model or one module, without adapters or
    one adapter of it."""

    def __init__(self, records: Sequence[WeightRecord]) -> None:
        self.names: set[str] = set()
        self._records = records
        self._first = {record.names[0]: record for record in records if not record.sources}
        self._written: dict[str, set[int]] = {}
        for place, record in enumerate(records):
            for source in record.sources:
                self._written.setdefault(source, set()).add(place)
        self._groups: Counter[tuple[str | None, str | None]] = Counter()
        self._having: Counter[tuple[str | None, str | None, str]] = Counter()

    def add(self, reading: _Reading, seen: Collection[int]) -> None:
        """Takes the records of a group: as they are, or where all that is computed from them to be saved is there."""
        complete = set()
        for place in seen:
            record = self._records[place]
            complete |= {source for source in record.sources if self._written[source].issubset(seen)} or (
                set() if record.sources else {record.names[0]}
            )
        things = set()
        for name in complete & self._first.keys():
            record = self._first[name]
            if reading.adapter is None or record.adapter in (None, reading.adapter):
                self.names.add(name)
                if record.trained:
                    things.add((record.adapter, reading.module))
                    self._having[record.adapter, reading.module, name] += 1
        self._groups.update(things)

    def left_out(self) -> Iterator[str]:
        """Yields first names of trained tensors that no group has, or not every one that has some of the model or module."""
        for name, record in self._first.items():
            modules = {None, *(other.partition(".")[0] for other in record.names)}
            ways = ((record.adapter, module) for module in modules)
            if record.trained and (
                name not in self.names or any(self._having[(*way, name)] < self._groups[way] for way in ways)
            ):
                yield name


class _Index:
    """Finds the records of a model by name, by every end of a name, and by content.

    What a lookup may cost is bounded, so that a check takes time in proportion to the manifest, whoever made it: a few prefixes
    per file, one pass over its tensors for each, and as many records of one name as there may be adapters.
    """

    def __init__(self, records: tuple[WeightRecord, ...]) -> None:
        self.records = records
        self._adapters = {record.adapter for record in records if record.adapter is not None}
        self._modules: set[str] = set()
        self._inside: dict[str, tuple[str, int] | None] = {}
        self._named: dict[str, list[int]] = {}
        self._ends: dict[str, dict[str, None]] = {}
        self._content: dict[bytes, list[int]] = {}
        for place, record in enumerate(records):
            self._content.setdefault(record.sha256, []).append(place)
            for name in record.names:
                same = self._named.setdefault(name, [])
                if len(same) < MAX_ADAPTERS:
                    same.append(place)
                for end in _ends(name):
                    self._ends.setdefault(end, {})[name] = None
                module, dot, rest = name.partition(".")
                if dot:
                    self._modules.add(module)
                    first = self._inside.setdefault(rest, (module, place))
                    if first is not None and first[0] != module and first[1] != place:
                        self._inside[rest] = None

    def place(self, name: str, view: View) -> int | None:
        """Returns the record of a tensor of a file: the only one of its name, or of several that of the view's adapter."""
        places = self._places(name, view)
        if len(places) == 1:
            return places[0]
        return next((place for place in places if self.records[place].adapter == view.adapter), None)

    def reading(self, whole: str, tensors: Sequence[Tensor]) -> "_Reading":
        """Tells how a loader reads a group, by where it lies, and by its tensors where that leaves several views.

        Of these the view in which most tensors are the run's; of equal ones that with most names, then the plainest.
        """
        folder, _, name = whole.rpartition("/")
        own = folder or _SET.sub("", name)
        prefixes = self._prefixes(tensors)
        if folder or own not in GENERAL:
            views = [(View(drop, f"{own}.", None), DEFAULT) for drop in ("", *WRAPPERS) if own in self._modules]
            adapter = own.rpartition("/")[2]
            if adapter in self._adapters:
                views += [(View(drop, add, None), adapter) for drop, add in prefixes if add in ("", *WRAPPERS)]
            view, known = self._best(views, tensors)
            if known:
                return _Reading(view, True, adapter if view.add != f"{own}." else None, self._module(view))
        view, _ = self._best([(View(drop, add, None), "" if folder else DEFAULT) for drop, add in prefixes], tensors)
        module = self._module(view)
        plain = module is None or all(self._inside.get(tensor.name.removeprefix(view.drop), "") for tensor in tensors)
        return _Reading(view, not folder and plain, None, module)

    def _module(self, view: View) -> str | None:
        """Returns the one module of which a group read in this view has tensors; None where it is the model."""
        module = view.add.removesuffix(".")
        return module if module in self._modules else None

    def _best(self, views: Iterable[tuple[View, str]], tensors: Sequence[Tensor]) -> tuple[View, int]:
        """Returns the best of some views, each with the adapter that a name of several adapters is of; and how many names it
        knows."""
        best, most = View("", "", None), (-1, 0, 0)
        for plain, own in views:
            view, tied, known = self._with_adapter(plain, own, tensors)
            score = (tied, known, -len(view.drop) - len(view.add))
            if score > most:
                best, most = view, score
            if tied == len(tensors):
                break
        return best, most[1]

    def _places(self, name: str, view: View) -> Sequence[int]:
        wanted = view.name(name)
        return () if wanted is None else self._named.get(wanted, ())

    def _with_adapter(self, view: View, own: str, tensors: Iterable[Tensor]) -> tuple[View, int, int]:
        """Returns the view with the adapter of names of several adapters, and how many tensors it ties and knows.

        That is the one that is looked for here, where it has such names, else the one that most of them speak for.
        """
        tied = known = 0
        ties: Counter[str] = Counter()
        names: Counter[str] = Counter()
        for tensor in tensors:
            places = self._places(tensor.name, view)
            for place in places:
                record = self.records[place]
                good = _verdict(tensor, record) == "tied"
                if len(places) == 1:
                    tied, known = tied + good, known + 1
                elif record.adapter is not None:
                    ties[record.adapter] += good
                    names[record.adapter] += 1
        if not names:
            return view, tied, known
        adapter = own if own in names else min(names, key=lambda name: (-ties[name], -names[name], name))
        return View(view.drop, view.add, adapter), tied + ties[adapter], known + names[adapter]

    def _prefixes(self, tensors: Sequence[Tensor]) -> list[tuple[str, str]]:
        """Returns what names of a file may have too much or lack: nothing, or what its tensors and its longest name suggest."""
        votes: Counter[tuple[str, str]] = Counter()
        known = list(islice((tensor for tensor in tensors if tensor.sha256 in self._content), _VIEWS))
        longest = sorted(tensors, key=lambda tensor: (-tensor.name.count("."), tensor.name))[:1]
        for tensor in known:
            for place in self._content[tensor.sha256][:_VIEWS]:
                for name in self.records[place].names[:_VIEWS]:
                    if name.endswith(f".{tensor.name}"):
                        votes["", name.removesuffix(tensor.name)] += 2
        for tensor in longest:
            for name in islice(self._ends.get(tensor.name, ()), _VIEWS * _VIEWS):
                votes["", name.removesuffix(tensor.name)] += 1
        for tensor in [*known, *longest]:
            for end in _ends(tensor.name):
                if end in self._named:
                    votes[tensor.name.removesuffix(end), ""] += 2
        votes.pop(("", ""), None)
        return [("", ""), *sorted(votes, key=lambda pair: (-votes[pair], pair))[:_VIEWS]]


def _ends(name: str) -> Iterator[str]:
    """Yields a name, and what follows each of its first dots."""
    yield name
    for _ in range(MAX_DEPTH):
        name = name.partition(".")[2]
        if not name:
            return
        yield name
