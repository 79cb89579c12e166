"""The table of lies: what somebody with the log's key can write, the verdict that it gets, and the honest run beside it.

Every row is a whole export, or a release, that is hashed and signed as it should be. `make lies` prints the table: kind, lie,
verdict, and the codes or qualifiers that say why. A lie that no export can show is FULL, and then a qualifier says whose word
it is; no other lie is.
"""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from attest.keys import public_bytes
from ledger.audit import verify_export
from ledger.audit.verify import earlier_run
from ledger.leaves import Admit, Charge, Close, Epoch, Leaf, Settle, Spend, Withdraw
from ledger.log import Ledger
from ledger.note import NoteSigner
from ledger.release import MANIFEST, check_release, release
from ledger.release.manifest import open_manifest, read_manifest, sign_manifest
from ledger.replay.contributions import AdmitSpec
from ledger.replay.earlier_runs import SpentRegistry
from tests.attacks import test_ledger_attacks_bounds as bounds
from tests.attacks import test_ledger_attacks_depth as depth
from tests.attacks import test_ledger_attacks_draws as draws
from tests.attacks import test_ledger_attacks_registry as registries
from tests.attacks import test_ledger_attacks_retention as retention
from tests.attacks import test_ledger_attacks_spend as groups
from tests.ledger.release_models import WEIGHTS, model, records, safetensors
from tests.ledger.spends import three_epochs
from tests.ledger.told_runs import Shown, Told, attest
from tests.vectors.conformance import correlated, lies_of_files, lies_of_groups, lies_of_noise
from tests.vectors.conformance import groups as secret
from tests.vectors.conformance.lying import vouched_before_the_close
from tests.vectors.conformance.several import RUNS as HONEST_RUNS
from tests.vectors.conformance.several import files_of
from tests.vectors.conformance.written import put
from tests.worlds.attested_ledgers import (
    AttestedDriver,
    attested_admission,
    attested_header,
    attested_run,
    put_registry,
    registry_bytes,
)
from tests.worlds.ledgers import OTHER_KEY, OWNER_KEY, SIGNER, START
from tests.worlds.retained_ledgers import (
    ANNA,
    BEN,
    crowded_and_pruned,
    export_of,
    forged_export,
    grown,
    leaves_of,
    vouched_and_older,
    vouched_for,
)

SECOND = NoteSigner("ledger.example/run2", OTHER_KEY)
KEYS = [SIGNER.vkey, SECOND.vkey]
OWNER = public_bytes(OWNER_KEY)


@dataclass(frozen=True)
class Lie:
    """A row of the table.

    Attributes:
        kind: what is lied about.
        name: the lie; "honest" for the run in which nothing is wrong.
        tell: writes it under a directory, and returns the report of who audits it with pinned keys.
        verdict: that it must get.
        word: a code of the findings, or of a verdict that stands a qualifier, which must be there; empty for none.
        server: whether the ledger lies on a PostgreSQL server, whose place `tell` is given besides.
    """

    kind: str
    name: str
    tell: Callable
    verdict: str
    word: str = ""
    server: bool = False

    @property
    def honest(self) -> bool:
        """Whether nothing is wrong."""
        return self.name.startswith("honest")


def audit(export: Path, **options: object):
    """As an auditor who pinned the owner's key and knows the size."""
    return verify_export(export, KEYS, owner_key=OWNER, minimum_size=1, **options)


def spoken(lie: Callable) -> str:
    """The name of a function, in words."""
    return lie.__name__.replace("_", " ")


# --- What contributors signed, public draws, registries: whole runs that are told --------------------------------------------


def _of_run(honest: Callable[[], Told], lie: Callable[[Told], None], base: Path, place: object = None):
    told = honest()
    lie(told)
    if place is not None:
        told.place = lambda directory: place
    return audit(told.export(base))


def nothing(told: Told) -> None:
    """Changes nothing."""


def without_attestations(told: Told) -> None:
    told.attestations = False


def without_a_registry(told: Told) -> None:
    told.registry = None


def _of_registry(change: Callable, life: Callable, base: Path):
    return audit(registries.told_of(change, life=life)[0].export(base))


SIGNED = [
    Lie("what was signed", "honest", partial(_of_run, Told.honest, nothing), "FULL"),
    Lie("what was signed", "without attestations", partial(_of_run, Told.honest, without_attestations), "TOLD"),
    Lie("what was signed", "without a registry", partial(_of_run, Told.honest, without_a_registry), "TOLD"),
    *(
        Lie("what was signed", spoken(lie), partial(_of_run, Told.honest, lie), "FAILED", code)
        for lie, code, _ in bounds.LIES
    ),
]
DRAWN = [
    *(
        Lie("public draws", f"honest, {name}", partial(_of_run, honest, nothing), "FULL")
        for name, honest in (
            ("at random", draws.Drawn.at_random),
            ("per-sample noise", draws.literal),
            ("in turns", draws.Drawn.in_turns),
        )
    ),
    *(
        Lie("public draws", f"{spoken(lie)}, {spoken(honest)}", partial(_of_run, honest, lie), verdict, word)
        for honest, lie, verdict, word in draws.LIES
    ),
]
REGISTERED = [
    *(
        Lie("registry", f"honest {place}", partial(_of_registry, change, life), "FULL")
        for place, (change, life) in enumerate(registries.HONEST, start=1)
    ),
    *(
        Lie("registry", f"{spoken(life)}, {spoken(change)}", partial(_of_registry, change, life), "FAILED", code)
        for change, life, code in registries.LIES
    ),
]

# --- Leaves: an honest run over signed admissions, told otherwise ------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """The leaves of an honest run, and what contributors signed of it."""

    leaves: list[Leaf]
    shown: dict[bytes, Shown]

    def export(self, leaves: Sequence[Leaf], base: Path) -> Path:
        """Other leaves, numbered, signed, and with what was signed beside them."""
        numbered = [leaf if not seq else replace(leaf, seq=seq) for seq, leaf in enumerate(leaves)]
        return self.attested(forged_export(numbered, base / "export"), leaves)

    def attested(self, export: Path, leaves: Sequence[Leaf]) -> Path:
        """An export with what contributors signed, and the registry."""
        beside = {seq: self.shown.get(leaf.descriptor_hash) for seq, leaf in enumerate(leaves) if isinstance(leaf, Admit)}
        attest(export, len(leaves), beside)
        (export / "registry").write_bytes(registry_bytes())
        return export


def _run(life: Callable[[AttestedDriver], None]) -> Run:
    with tempfile.TemporaryDirectory() as base:
        driver = attested_run(Path(base) / "ledger.db")
        with driver.ledger:
            life(driver)
            return Run(leaves_of(driver.ledger), driver.shown)


@cache
def whole() -> Run:
    """Two epochs of two windows, five admissions, a withdrawal, the close."""
    return _run(AttestedDriver.whole_run)


@cache
def in_groups() -> Run:
    """`three_epochs` of attested admissions."""
    return _run(lambda driver: three_epochs(driver, attested_admission))


def _of_leaves(run: Callable[[], Run], change: Callable[[list[Leaf]], Sequence[Leaf]], base: Path):
    told = run()
    return audit(told.export(change(list(told.leaves)), base))


def _of_rows(lie: str, base: Path):
    epoch, change, _ = groups.LIES[lie]
    return _of_leaves(in_groups, lambda leaves: groups.with_leaf(leaves, epoch, change), base)


def places(leaves: Sequence[Leaf], kind: type[Leaf]) -> list[int]:
    return [seq for seq, leaf in enumerate(leaves) if isinstance(leaf, kind)]


def changed(kind: type[Leaf], nth: int, change: Callable) -> Callable[[list[Leaf]], list[Leaf]]:
    """Tells the n-th leaf of a kind otherwise."""

    def lie(leaves: list[Leaf]) -> list[Leaf]:
        place = places(leaves, kind)[nth]
        leaves[place] = change(leaves[place])
        return leaves

    return lie


def left_out(kind: type[Leaf], nth: int) -> Callable[[list[Leaf]], list[Leaf]]:
    """Leaves out the n-th leaf of a kind."""
    return lambda leaves: [leaf for seq, leaf in enumerate(leaves) if seq != places(leaves, kind)[nth]]


def said(**fields: object) -> Callable[[Leaf], Leaf]:
    return lambda leaf: replace(leaf, **fields)


def first_row(**fields: object) -> Callable[[Leaf], Leaf]:
    return lambda leaf: replace(leaf, classes=(replace(leaf.classes[0], **fields), *leaf.classes[1:]))


def stream_of_the_first(leaves: list[Leaf]) -> list[Leaf]:
    first, *_, last = places(leaves, Charge)
    leaves[last] = replace(leaves[last], noise_stream=leaves[first].noise_stream)
    return leaves


def repeated(kind: type[Leaf]) -> Callable[[list[Leaf]], list[Leaf]]:
    def lie(leaves: list[Leaf]) -> list[Leaf]:
        place = places(leaves, kind)[0]
        return [*leaves[: place + 1], leaves[place], *leaves[place + 1 :]]

    return lie


def dated(by: int) -> Callable[[list[Leaf]], list[Leaf]]:
    return lambda leaves: [*leaves[:-1], replace(leaves[-1], time=leaves[-1].time + by)]


CENTURY = 100 * 365 * 86400
LEAVES: dict[str, tuple[Callable[[list[Leaf]], Sequence[Leaf]], str]] = {
    "a charge left out": (left_out(Charge, 1), "TILE"),
    "a settlement left out": (left_out(Settle, 0), "WINDOW_OPEN"),
    "an admission left out": (left_out(Admit, 0), "CHARGE_CLASS"),
    "a withdrawal left out": (left_out(Withdraw, 0), "CHARGE_CLASS"),
    "rows of an epoch left out": (left_out(Spend, 0), "EPOCH_ORDER"),
    "an epoch left out": (left_out(Epoch, 0), "EPOCH"),
    "fewer steps charged": (changed(Charge, 0, said(n_steps=3)), "TILE"),
    "steps charged that were skipped": (changed(Charge, 1, said(first_step=6)), "TILE"),
    "a smaller sampling rate": (changed(Charge, 0, first_row(q_den=100)), "CHARGE_CLASS"),
    "more noise charged": (changed(Charge, 0, first_row(sigma_micro=2_000_000)), "CHARGE_CLASS"),
    "a smaller pool": (changed(Charge, 0, first_row(pool_count=1)), "CHARGE_CLASS"),
    "another pool": (changed(Charge, 0, first_row(pool_root=bytes(32))), "CHARGE_CLASS"),
    "a noise stream used twice": (stream_of_the_first, "NOISE_REUSED"),
    "a writer that had lost the ledger": (changed(Charge, 0, said(fence=99)), "FENCE"),
    "another attempt": (changed(Charge, 0, said(attempt=1)), "ATTEMPT"),
    "less noise realised": (changed(Settle, 0, said(variances=(0.5, 2.25))), "VARIANCE"),
    "more noise realised": (changed(Settle, 0, said(variances=(4.0, 9.0))), "VARIANCE"),
    "more steps released than charged": (changed(Settle, 0, said(steps_released=5)), "SETTLE"),
    "an epoch of a step never released": (changed(Epoch, 0, said(step=9)), "EPOCH"),
    "an epoch that charged less": (changed(Epoch, 0, said(charged=4)), "EPOCH"),
    "an epoch with a smaller epsilon": (changed(Epoch, 0, first_row(max_epsilon_micro=1)), "EPOCH"),
    "an epoch with fewer who are active": (changed(Epoch, 0, first_row(active=1)), "EPOCH"),
    "frozen parameters that changed": (changed(Epoch, 1, said(frozen_digest=bytes(32))), "FROZEN"),
    "isolation that is taken back": (changed(Epoch, 0, said(isolation="an optimizer")), "ISOLATION"),
    "a close after fewer steps": (changed(Close, 0, said(charged=4)), "CLOSE"),
    "a charge that stands twice": (repeated(Charge), "NOISE_REUSED"),
    "an admission that stands twice": (repeated(Admit), "REPLAYED"),
    "a time that runs back": (dated(-1_000), "CLOCK"),
    "a time of the next century": (dated(CENTURY), "CLOCK"),
    "a withdrawal of another leaf": (changed(Withdraw, 0, said(admit_seq=1)), "WITHDRAW"),
}


def _of_blocks(change: Callable, base: Path):
    told = whole()
    header = told.leaves[0]
    first = depth.lying(header, tuple(change(list(header.blocks))))
    return audit(told.attested(depth.exported(told.leaves, first, base / "export"), told.leaves))


BLOCKS: dict[str, tuple[Callable, str]] = {
    "honest": (lambda found: found, ""),
    "a band widened": (
        lambda found: depth.at(found, 1, classes=whole().leaves[0].blocks[2].classes, std=whole().leaves[0].blocks[2].std),
        "DEPTH_WIDER",
    ),
    "a band narrowed": (lambda found: depth.at(found, 2, classes=("sensitive",)), "DEPTH_NARROWER"),
    "a block left out": (lambda found: [found[0], *found[2:]], "DEPTH_DROPPED"),
    "a frozen block left out": (lambda found: found[:3], "DEPTH_DROPPED"),
    "a block said to be frozen, without noise": (lambda found: depth.at(found, 1, classes=(), std=0.0), "DEPTH_NARROWER"),
    "blocks in another order": (lambda found: [found[1], found[0], *found[2:]], "DEPTH_ORDER"),
    "fewer coordinates": (lambda found: depth.at(found, 1, coordinates=1), "COORDINATES"),
}
TOLD_LEAVES = [
    Lie("groups", "honest", partial(_of_leaves, in_groups, list), "FULL"),
    *(Lie("groups", name, partial(_of_rows, name), "FAILED", sorted(codes)[0]) for name, (_, _, codes) in groups.LIES.items()),
    Lie("leaves", "honest", partial(_of_leaves, whole, list), "FULL"),
    *(Lie("leaves", name, partial(_of_leaves, whole, lie), "FAILED", code) for name, (lie, code) in LEAVES.items()),
    *(
        Lie("blocks", name, partial(_of_blocks, change), "FAILED" if code else "FULL", code)
        for name, (change, code) in BLOCKS.items()
    ),
]

# --- Pruned ledgers and summaries -------------------------------------------------------------------------------------------


def _of_summary(lie: str | None, base: Path):
    driver = grown(base / "ledger.db", attested=True)
    with driver.ledger as ledger:
        if lie is None:
            ledger.summarise(now=driver.tick())
            return audit(export_of(driver, base / "export"))
        leaves = [*leaves_of(ledger), retention.FORGED[lie](retention.proposed(driver))]
        honest = export_of(driver, base / "honest")
    export = forged_export(leaves, base / "export")
    shutil.copy(honest / "registry", export)
    return audit(export)


def _of_pruned(lie: Callable[[Path], None], base: Path):
    driver = crowded_and_pruned(base / "ledger.db", base, people=20, attested=True)
    with driver.ledger:
        export = export_of(driver, base / "export")
    lie(export)
    return audit(export)


def _of_folded(lie: Callable[[Path], None], base: Path):
    driver = vouched_and_older(base / "ledger.db", base, people=20, attested=True)
    with driver.ledger as ledger:
        ledger.finish(now=driver.tick())
        vouched_for(driver, ANNA, BEN)
        ledger.prune(who_stays=True)
        export = export_of(driver, base / "export")
    lie(export)
    return audit(export)


def words_from_before_the_close(export: Path) -> None:
    """Leaves of what auditors said only what stood below a checkpoint from before the run was closed."""
    files = {str(path.relative_to(export)): path.read_bytes() for path in export.rglob("*") if path.is_file()}
    for name, data in vouched_before_the_close(files).items():
        (export / name).write_bytes(data)


def _before_pruning(base: Path):
    driver = vouched_and_older(base / "ledger.db", base, people=20, attested=True)
    with driver.ledger:
        return audit(export_of(driver, base / "export"))


def as_it_is(export: Path) -> None:
    """Changes nothing."""


def nobody_vouches(export: Path) -> None:
    (export / "retained" / "notes").unlink()


def a_byte_of_a_stand_in(export: Path) -> None:
    (path,) = (path for path in (export / "retained").rglob("*") if path.is_file() and path.name != "notes")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def attestations_left_out(export: Path) -> None:
    shutil.rmtree(export / "attestations")


def registry_left_out(export: Path) -> None:
    (export / "registry").unlink()


PRUNED = [
    Lie("pruned", "honest, before", _before_pruning, "FULL"),
    Lie("pruned", "honest, pruned", partial(_of_pruned, as_it_is), "SUMMARISED", "PRUNED"),
    Lie("pruned", "attestations left out", partial(_of_pruned, attestations_left_out), "TOLD", "PRUNED"),
    Lie("pruned", "registry left out", partial(_of_pruned, registry_left_out), "TOLD", "PRUNED"),
    Lie("pruned", "nobody vouches", partial(_of_pruned, nobody_vouches), "FAILED", "UNVOUCHED"),
    Lie("pruned", "a byte of a stand-in", partial(_of_pruned, a_byte_of_a_stand_in), "FAILED"),
    Lie("pruned", "honest, everybody", partial(_of_folded, as_it_is), "SUMMARISED", "PRUNED"),
    Lie("pruned", "everybody, registry left out", partial(_of_folded, registry_left_out), "SUMMARISED", "PRUNED"),
    Lie("pruned", "everybody, words of before", partial(_of_folded, words_from_before_the_close), "FAILED", "UNVOUCHED"),
    Lie("summaries", "honest", partial(_of_summary, None), "FULL"),
    *(Lie("summaries", name.replace("_", " "), partial(_of_summary, name), "FAILED", "SUMMARY") for name in retention.FORGED),
]

# --- Noise that is correlated between steps: whole exports, made for the conformance vectors ---------------------------------


OF_NOISE = lies_of_noise.LIES | lies_of_files.LIES | lies_of_groups.LIES


def _of_noise(name: str, lie: str, base: Path):
    files, run = files_of(name), HONEST_RUNS[name]
    if lie:
        files = OF_NOISE[lie].change(dict(files))
    return verify_export(put(files, base / "export"), run.pins.log, owner_key=OWNER, minimum_size=1, now=run.pins.now)


CORRELATED = [
    *(
        Lie("correlated noise", f"honest, {name}", partial(_of_noise, name, ""), run.verdict)
        for name, run in (correlated.RUNS | secret.RUNS).items()
    ),
    *(
        Lie("correlated noise", name, partial(_of_noise, lie.base, name), "FAILED", lie.code)
        for name, lie in OF_NOISE.items()
        if not HONEST_RUNS[lie.base].earlier
    ),
]

# --- Several runs -----------------------------------------------------------------------------------------------------------


def _finished(base: Path, name: str, signer: NoteSigner, *specs: AdmitSpec, streams: int = 0, **header: object) -> Path:
    with Ledger.create(base / f"{name}.db", attested_header(**header), signer, now=START) as ledger:
        driver = AttestedDriver(ledger, streams=streams)
        driver.admit(*specs)
        driver.steps(2)
        driver.epoch()
        ledger.finish(now=driver.tick())
        return ledger.export(base / name, registry=put_registry(base))


def _second(lie: str, base: Path):
    """A second run over a contribution of the first, which it counts."""
    one = attested_admission(1)
    first = _finished(base, "one", SIGNER, one)
    spent = SpentRegistry([earlier_run(first, KEYS, owner_key=OWNER)])
    carried = 1 + int(spent.carried(one.descriptor_hash, 1e-6, one) * 1e6)
    specs = {
        "less carried": replace(one, carried_micro=1),
        "the content under another descriptor": attested_admission(1, max_occurrences=9, carried_micro=0),
    }
    previous = () if lie == "not counted" else spent.previous
    if lie == "cited before its end":
        previous = tuple(replace(item, size=item.size - 1) for item in previous)
    spec = specs.get(lie, replace(one, carried_micro=0 if lie == "not counted" else carried))
    second = _finished(base, "two", SECOND, spec, streams=0 if lie == "noise used again" else 10, previous=previous)
    if lie == "the earlier run not given":
        return audit(second)
    return verify_export(second, KEYS, earlier=[first], owner_key=OWNER, minimum_size=1)


RUNS = [
    Lie("several runs", name, partial(_second, name), verdict, word)
    for name, verdict, word in (
        ("honest", "FULL", ""),
        ("the earlier run not given", "FULL", "EARLIER_TOLD"),
        ("not counted", "FAILED", "EARLIER_LEFT_OUT"),
        ("less carried", "FAILED", "CARRIED"),
        ("the content under another descriptor", "FAILED", "EARLIER_ANCHOR"),
        ("noise used again", "FAILED", "NOISE_REUSED"),
        ("cited before its end", "FAILED", "EARLIER_FORKED"),
    )
]

# --- Releases ---------------------------------------------------------------------------------------------------------------


def _released(change: Callable[[Path], None], after: Callable[[Path], None], base: Path):
    """A release of a run over signed admissions, changed before it is made, or after."""
    directory = model(base / "model")
    change(directory)
    driver = attested_run(base / "ledger.db")
    with driver.ledger as ledger:
        driver.digest = ledger.keep_weights(records(WEIGHTS))
        driver.admit(attested_admission(1), attested_admission(3, "sensitive"))
        driver.steps(2)
        driver.epoch()
        ledger.finish(now=driver.tick())
        release(ledger, directory, now=driver.tick(), registry=put_registry(base))
    after(directory)
    return check_release(directory, KEYS, owner_key=OWNER if (directory / "export").exists() else None, minimum_size=2)


def _saved(directory: Path, tensors: dict) -> None:
    (directory / "model.safetensors").write_bytes(safetensors(tensors))


def one_tensor_of_two(directory: Path) -> None:
    _saved(directory, dict(list(WEIGHTS.items())[:1]))


def names_that_no_loader_knows(directory: Path) -> None:
    _saved(directory, {f"hidden.{name}": value for name, value in WEIGHTS.items()})


def other_weights(directory: Path) -> None:
    name, (dtype, shape, data) = next(iter(WEIGHTS.items()))
    _saved(directory, {**WEIGHTS, name: (dtype, shape, bytes(len(data)))})


def a_pickle_named_tokenizer_model(directory: Path) -> None:
    (directory / "tokenizer.model").write_bytes(b"\x80\x04N.")


def a_pickle_named_weights_txt(directory: Path) -> None:
    (directory / "weights.txt").write_bytes(b"cos\nsystem\n(S'true'\ntR.")


def loading_code(directory: Path) -> None:
    (directory / "modeling.py").write_text("raise SystemExit\n")


def settings_that_name_code(directory: Path) -> None:
    (directory / "config.json").write_text('{"auto_map": {"AutoModel": "modeling.Model"}}')


def settings_changed_later(directory: Path) -> None:
    (directory / "config.json").write_text("{}")


def a_smaller_epsilon(directory: Path) -> None:
    made = open_manifest(read_manifest(directory), KEYS)
    first = replace(made.classes[0], epsilon_micro=made.classes[0].epsilon_micro - 3)
    (directory / MANIFEST).write_bytes(sign_manifest(replace(made, classes=(first, *made.classes[1:])), SIGNER))


def another_manifest(directory: Path) -> None:
    made = open_manifest(read_manifest(directory), KEYS)
    (directory / MANIFEST).write_bytes(sign_manifest(replace(made, time=made.time + 1), SIGNER))


def export_taken_away(directory: Path) -> None:
    shutil.rmtree(directory / "export")


RELEASES = [
    Lie("releases", "honest", partial(_released, as_it_is, as_it_is), "FULL"),
    *(
        Lie("releases", spoken(lie), partial(_released, lie, as_it_is), "FULL", word)
        for lie, word in (
            (one_tensor_of_two, "WEIGHTS_NOT_TIED"),
            (names_that_no_loader_knows, "WEIGHTS_NOT_TIED"),
            (other_weights, "WEIGHTS_NOT_TIED"),
            (a_pickle_named_tokenizer_model, "WEIGHTS_NOT_TIED"),
            (a_pickle_named_weights_txt, "WEIGHTS_NOT_TIED"),
            (loading_code, "CODE_BESIDE"),
            (settings_that_name_code, "CODE_BESIDE"),
        )
    ),
    *(
        Lie("releases", spoken(lie), partial(_released, as_it_is, lie), verdict, word)
        for lie, verdict, word in (
            (other_weights, "FAILED", "CHANGED_FILE"),
            (settings_changed_later, "FAILED", "CHANGED_FILE"),
            (a_smaller_epsilon, "FAILED", "EPSILON"),
            (another_manifest, "FAILED", "RELEASE"),
            (export_taken_away, "SIGNED", ""),
        )
    ),
]

# --- Ledgers on a server ----------------------------------------------------------------------------------------------------

SERVER = [
    Lie("PostgreSQL", "honest", partial(_of_run, Told.honest, nothing), "FULL", server=True),
    Lie("PostgreSQL", "without attestations", partial(_of_run, Told.honest, without_attestations), "TOLD", server=True),
    *(
        Lie("PostgreSQL", spoken(lie), partial(_of_run, Told.honest, lie), "FAILED", code, server=True)
        for lie, code, _ in bounds.LIES
        if lie in (bounds.multiplier_50, bounds.invented_contribution, bounds.content_twice, bounds.said_to_have_expired)
    ),
]

TABLE: tuple[Lie, ...] = (*SIGNED, *DRAWN, *REGISTERED, *TOLD_LEAVES, *CORRELATED, *PRUNED, *RUNS, *RELEASES, *SERVER)
"""Every lie, and the honest run of each kind."""

TOLD_AS_SOMEBODYS_WORD = frozenset(
    {"CODE_BESIDE", "DRAWS_TOLD", "EARLIER_TOLD", "WEIGHTS_NOT_TIED", "WITHDRAWALS_TOLD"}
)
"""Qualifiers that say of a FULL verdict whose word a lie is: no export can show more of it."""
