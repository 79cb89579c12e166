"""`dptrain ledger` and `release`, as auditors, contributors and whoever gets a model use them."""

from pathlib import Path

from tests.frozen.scenario import Case, Scenario
from tests.frozen.worlds import trained

_NOTES = "corpus/notes.jsonl.attest"
_ALL = f"--attestations {_NOTES} --attestations corpus/letter.json.attest"
_ANCHOR = "corpus/.letter.json.anchor"
_KEYS = "--key ledger.pub --owner-key owner.pub"


def _changed_byte(directory: Path) -> None:
    bundle = next(path for path in sorted((directory / "bare/tile/entries").rglob("*.p/*")))
    data = bytearray(bundle.read_bytes())
    data[len(data) // 2] ^= 1
    bundle.write_bytes(data)


def _extras(directory: Path) -> None:
    (directory / "extras.json").write_text('{"results": []}\n')
    (directory / "bad.json").write_text("[1]\n")
    (directory / "theirs.json").write_text("{}\n")


_LEAVES = {
    "a header": 0, "a charge": 7, "what was settled": 8, "spending": 11, "an epoch": 12, "a close": 19, "a withdrawal": 20
}  # fmt: skip
"""Positions of leaves of the run, by what they are."""

AUDITING = Scenario(
    "ledger-audit",
    trained,
    [
        Case(
            "a contribution's hash",
            f"attest show {_NOTES} --record 2",
            keep={"content": "content_hash", "nonce": "nonce", "hash": "descriptor_hash"},
        ),
        Case("a first export", "ledger export ledger.db old --registry registry.cbor"),
        Case(
            "a contributor takes a note back",
            f"attest withdraw {_NOTES} --key alice.key --record 3",
            keep={"mine": "withdrawals.0.path"},
        ),
        Case("it is entered", f"ledger withdraw ledger.db {{mine}} --attestations {_NOTES} --registry registry.cbor"),
        Case("an export", "ledger export ledger.db export --registry registry.cbor"),
        Case("an export without attestations", "ledger export ledger.db bare --without-attestations"),
        Case("verify", f"ledger verify export {_KEYS} --remember seen"),
        Case(
            "verify: remembered, and compared",
            f"ledger verify export {_KEYS} --remember seen --earlier old --withdrawals withdrawals --require-full",
        ),
        Case("verify: bounds are told", f"ledger verify bare {_KEYS}"),
        Case("verify: full is asked for", f"ledger verify bare {_KEYS} --require-full", code=1),
        Case("verify: an older export", f"ledger verify old {_KEYS} --remember seen", code=1),
        Case("verify: a quorum that nobody is of", f"ledger verify export {_KEYS} --require-quorum", code=1),
        Case("verify: too small and too old", f"ledger verify export {_KEYS} --min-size 99 --max-age 1h --now +1d", code=1),
        Case("verify: another owner", "ledger verify export --key ledger.pub --owner-key alice.pub", code=1),
        Case("verify: a changed byte", f"ledger verify bare {_KEYS}", code=1, before=_changed_byte),
        Case("verify: no key", "ledger verify export", code=2),
        Case(
            "verify: of a registry that is named",
            f"ledger verify export {_KEYS} --withdrawals withdrawals --registry registry.cbor",
        ),
        Case("report", f"ledger report export report.html {_KEYS} --extras extras.json", before=_extras),
        Case("report: of what fails", f"ledger report bare bare.html {_KEYS}", code=1),
        Case("report: extras of another form", f"ledger report export other.html {_KEYS} --extras bad.json", code=1),
        Case("report: the page exists", f"ledger report export report.html {_KEYS}", code=2),
        Case("auditor-key", "ledger auditor-key anna.pub", keep={"anna": "key"}),
        Case("auditor-key: under a name", "ledger auditor-key anna.pub --name auditor.example/anna"),
        Case("auditor-key: a name of two words", "ledger auditor-key anna.pub --name 'two words'", code=1),
        Case("auditor-key: no such file", "ledger auditor-key nowhere.pub", code=2),
        Case(
            "cosign: never before, and not said so",
            "ledger cosign export anna.note --key anna.key --log-key ledger.pub",
            code=1,
        ),
        Case("cosign", "ledger cosign export anna.note --key anna.key --log-key ledger.pub --first"),
        Case("cosign: an older export", "ledger cosign old old.note --key anna.key --log-key ledger.pub", code=1),
        Case("cosign: the note exists", "ledger cosign export anna.note --key anna.key --log-key ledger.pub", code=2),
        Case("prove", "ledger prove export leaf.proof --leaf 1"),
        Case("prove: what a contribution has spent", "ledger prove export spent.proof --contribution {hash} --kind spend"),
        *(
            case
            for kind, leaf in _LEAVES.items()
            for case in (
                Case(f"prove: {kind}", f"ledger prove export {leaf}.proof --leaf {leaf}"),
                Case(f"verify-proof: {kind}", f"ledger verify-proof {leaf}.proof --key ledger.pub"),
            )
        ),
        Case("prove: with a receipt", "ledger prove ledger.db told.proof --leaf 1 --receipt told.receipt"),
        Case("verify-proof: a receipt", "ledger verify-proof told.receipt --key ledger.pub --leaf told.proof"),
        Case("verify-proof: trust as an export says", "ledger verify-proof told.proof --trust export/policy"),
        Case("prove: from the ledger", "ledger prove ledger.db mine.proof --contribution {hash}"),
        Case("prove: a leaf that is not there", "ledger prove export none.proof --leaf 999", code=1),
        Case("prove: neither leaf nor contribution", "ledger prove export none.proof", code=2),
        Case("verify-proof", "ledger verify-proof leaf.proof --key ledger.pub"),
        Case("verify-proof: of a member", "ledger verify-proof spent.proof --key ledger.pub --member spent.proof.member"),
        Case(
            "verify-proof: evidence of a cut tail",
            "ledger verify-proof cut.evidence --key ledger.pub",
            before=lambda place: next((place / "seen").glob("*.evidence")).rename(place / "cut.evidence"),
        ),
        Case(
            "verify-proof: a quorum that is not there",
            "ledger verify-proof leaf.proof --key ledger.pub --key {anna} --quorum 1",
            code=1,
        ),
        Case("verify-proof: another key", "ledger verify-proof leaf.proof --key {anna}", code=1),
        Case("verify-proof: no key", "ledger verify-proof leaf.proof", code=2),
        Case(
            "monitor",
            f"ledger monitor export --key ledger.pub {_ALL} --pub alice.pub --withdrawals withdrawals",
        ),
        Case(
            "monitor: a withdrawal is missing",
            f"ledger monitor old --key ledger.pub {_ALL} --withdrawals withdrawals --now +8d",
            code=3,
        ),
        Case("monitor: a tail is cut off", f"ledger monitor old --key ledger.pub {_ALL} --remember seen", code=6),
        Case("somebody else signs", "attest sign theirs.json --key carol.key --class sensitive --policy policy.toml"),
        Case(
            "monitor: admitted under a key, and in no attestation given",
            "ledger monitor export --key ledger.pub --attestations theirs.json.attest --pub alice.pub",
            code=5,
        ),
        Case("monitor: a broken export", f"ledger monitor bare --key ledger.pub {_ALL}", code=1),
        Case("monitor: nothing was signed", "ledger monitor export --key ledger.pub", code=2),
        Case("trace", "ledger trace {hash} export old --key ledger.pub --owner-key owner.pub"),
        Case("trace: by content and nonce", "ledger trace {content} export --nonce {nonce} --key ledger.pub"),
        Case(
            "trace: by attestation",
            f"ledger trace corpus/notes.jsonl export --attestations {_NOTES} --record 2 --key ledger.pub",
        ),
        Case("its hash, who took it back", f"attest show {_NOTES} --record 3", keep={"left": "descriptor_hash"}),
        Case("trace: who withdrew", "ledger trace {left} export --key ledger.pub"),
        Case("an anchor is signed", "attest anchor corpus/letter.json --key alice.key --with-nonce"),
        Case("trace: by anchor", f"ledger trace {_ANCHOR} export --pub alice.pub --key ledger.pub"),
        Case("show: by anchor", f"ledger show ledger.db --anchor {_ANCHOR} --registry registry.cbor"),
        Case("show: by an anchor of another key", f"ledger show ledger.db --anchor {_ANCHOR} --pub bob.pub", code=1),
        Case("trace: nowhere admitted", f"ledger trace {'00' * 32} export --key ledger.pub", code=1),
        Case("trace: no key", "ledger trace {hash} export", code=2),
    ],
)


def _weights(last: bytes) -> bytes:
    """A safetensors file with the one tensor with which the run ended, or another last byte."""
    header = b'{"head.weight":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    return len(header).to_bytes(8, "little") + header + bytes(7) + last


def _model(directory: Path) -> None:
    (directory / "model").mkdir()
    (directory / "model/config.json").write_text("{}")
    (directory / "model/model.safetensors").write_bytes(_weights(b"\0"))


def _change(directory: Path) -> None:
    (directory / "model/model.safetensors").write_bytes(_weights(b"\1"))


def _restore(directory: Path) -> None:
    (directory / "model/model.safetensors").write_bytes(_weights(b"\0"))


_CHECK = "release --check model --key ledger.pub"

_SIZES = {"files.size": "<bytes>", "manifest.files.size": "<bytes>"}
"""Bytes of files, among which are documents and signatures: they hang on the wording, and on the signature."""

RELEASE = Scenario(
    "release",
    trained,
    [
        Case(
            "a model is released",
            "release model --ledger ledger.db --registry registry.cbor",
            before=_model,
            measured=_SIZES,
        ),
        Case("it is released already", "release model --ledger ledger.db", code=1),
        Case("check", f"{_CHECK} --owner-key owner.pub --require-full", measured=_SIZES),
        Case("check: an export that is not there", f"{_CHECK} --export nowhere", code=2),
        Case("check: a quorum that nobody is of", f"{_CHECK} --require-quorum", code=1, measured=_SIZES),
        Case("check: an older one than is known", f"{_CHECK} --min-size 99", code=1, measured=_SIZES),
        Case("check: a weight was changed", _CHECK, code=1, before=_change, measured=_SIZES),
        Case("check: another key", "release --check model --key alice.pub", code=2, before=_restore),
        Case(
            "check: without an export",
            _CHECK,
            code=1,
            before=lambda place: (place / "model/export").rename(place / "elsewhere"),
            measured=_SIZES,
        ),
        Case("check: the signature alone", f"{_CHECK} --signature-only", measured=_SIZES),
        Case("check: an export beside it", f"{_CHECK} --export elsewhere --require-full", measured=_SIZES),
        Case("neither released nor checked", "release model", code=2),
        Case("the ledger tells of it", "ledger show ledger.db"),
        Case("a contribution's hash", f"attest show {_NOTES} --record 2", keep={"hash": "descriptor_hash"}),
        Case("an export of it", "ledger export ledger.db export"),
        Case("trace: of a release", "ledger trace {hash} export --key ledger.pub"),
    ],
)
