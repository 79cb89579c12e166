"""`dptrain ledger`, as who operates a run uses it: shown, examined, exported, kept short, handed to a new key."""

from pathlib import Path

from tests.frozen.scenario import Case, Scenario
from tests.frozen.worlds import DAY, dropping, nothing, retaining, served, server_missing, trained, witness_answers

_NOTES = "corpus/notes.jsonl.attest"
_ENTITLED = f"--attestations {_NOTES} --registry registry.cbor"


def _damage(directory: Path) -> None:
    path = directory / "ledger.pub"
    path.write_text(path.read_text().splitlines()[0] + "\n")


OPERATING = Scenario(
    "ledger",
    trained,
    [
        Case("a contribution's hash", f"attest show {_NOTES} --record 2", keep={"content": "content_hash", "nonce": "nonce"}),
        Case("show", "ledger show ledger.db"),
        Case("show: with its header", "ledger show ledger.db --header"),
        Case("show: one contribution", "ledger show ledger.db --content {content} --nonce {nonce}"),
        Case("show: nothing was withdrawn", "ledger show ledger.db --withdrawn"),
        Case("show: no such contribution", f"ledger show ledger.db --content {{content}} --nonce {'00' * 16}", code=1),
        Case("show: no such ledger", "ledger show nowhere.db", code=2),
        Case("fsck", "ledger fsck ledger.db"),
        Case("fsck: another file", "ledger fsck policy.cose", code=1),
        Case("fsck: no ledger", "ledger fsck", code=2),
        Case("retain: a policy that keeps everything", "ledger retain ledger.db", code=1),
        Case("set-clock: nothing is ahead", "ledger set-clock ledger.db --reason none", code=1),
        Case("set-clock: no reason", "ledger set-clock ledger.db", code=2),
        Case(
            "a contributor takes a note back",
            f"attest withdraw {_NOTES} --key alice.key --record 2",
            keep={"mine": "withdrawals.0.path"},
        ),
        Case(
            "another one does so for her",
            f"attest withdraw {_NOTES} --key bob.key --record 1 --out bobs",
            keep={"bobs": "withdrawals.0.path"},
        ),
        Case(
            "the owner takes one back",
            f"attest withdraw {_NOTES} --key owner.key --record 3 --reason error",
            keep={"owners": "withdrawals.0.path"},
        ),
        Case("withdraw: no evidence", "ledger withdraw ledger.db {bobs}", code=1),
        Case("withdraw: somebody else's", f"ledger withdraw ledger.db {{bobs}} {_ENTITLED}", code=1),
        Case("withdraw", f"ledger withdraw ledger.db {{mine}} {_ENTITLED}"),
        Case("withdraw: once more", f"ledger withdraw ledger.db {{mine}} {_ENTITLED}"),
        Case("show: what was withdrawn", "ledger show ledger.db --withdrawn"),
        Case("withdraw: by a clock that is ahead", "ledger withdraw ledger.db {owners}", clock=10 * DAY),
        Case("set-clock", "ledger set-clock ledger.db --reason 'the clock was ahead'"),
        Case("withdraw: no file", "ledger withdraw ledger.db", code=2),
        Case("export", "ledger export ledger.db export --registry registry.cbor"),
        Case("export: bare", "ledger export ledger.db bare --without-attestations"),
        Case("export: the directory exists", "ledger export ledger.db export", code=1),
        Case("export: another key", "ledger export ledger.db other --ledger-key alice.key", code=1),
        Case("export: no directory", "ledger export ledger.db", code=2),
        Case(
            "show: of an export",
            "ledger show export --key ledger.pub --owner-key owner.pub --content {content} --nonce {nonce}",
        ),
        Case("show: header of an export", "ledger show export --key ledger.pub --header"),
        Case("show: an export without its key", "ledger show export", code=2),
        Case("witness-request", "ledger witness-request ledger.db asked"),
        Case("witness-request: more than there is", "ledger witness-request ledger.db more --since 999", code=1),
        Case("witness-request: no file for it", "ledger witness-request ledger.db", code=2),
        Case("witness-answer", "ledger witness-answer ledger.db asked answered --key witness.pub", before=witness_answers),
        Case("witness-answer: a key that nobody named", "ledger witness-answer export asked answered", code=1),
        Case("witness-answer: no answer", "ledger witness-answer ledger.db asked nowhere --key witness.pub", code=2),
        Case("an auditor's key", "ledger auditor-key anna.pub", keep={"anna": "key"}),
        Case("an auditor cosigns", "ledger cosign export anna.note --key anna.key --log-key ledger.pub --first"),
        Case("merge", "ledger merge export anna.note --key {anna}"),
        Case("merge: into the ledger", "ledger merge ledger.db anna.note --key {anna}"),
        Case("merge: lines of a key that nobody named", "ledger merge export anna.note"),
        Case("merge: into another export of the same checkpoint", "ledger merge bare anna.note --key {anna}"),
        Case("merge: what is no note", "ledger merge export policy.toml --key {anna}", code=1),
        Case("merge: no note", "ledger merge export", code=2),
        Case("rotate-key", "ledger rotate-key ledger.db"),
        Case("an export under the new key", "ledger export ledger.db later --without-attestations"),
        Case("merge: of another checkpoint", "ledger merge later anna.note --key {anna}", code=1),
        Case("rotate-key: a key that is not the ledger's", "ledger rotate-key ledger.db --ledger-key alice.key", code=1),
        Case("rotate-key: no ledger", "ledger rotate-key", code=2),
        Case("fsck: after a change of keys", "ledger fsck ledger.db"),
        Case("fsck: a public key is missing", "ledger fsck ledger.db", code=1, before=_damage),
    ],
)

_COSIGN = "--log-key ledger.pub --first --summary"

RETAINING = Scenario(
    "ledger-retain",
    retaining,
    [
        Case("retain: a summary", "ledger retain ledger.db"),
        Case("retain: nobody vouches for it", "ledger retain ledger.db --prune", code=1),
        Case("its export", "ledger export ledger.db export --registry registry.cbor"),
        Case("an auditor vouches", f"ledger cosign export anna.note --key anna.key --name auditor.example/anna {_COSIGN}"),
        Case("another one does", f"ledger cosign export ben.note --key ben.key --name auditor.example/ben {_COSIGN}"),
        Case("merge: vouchers", "ledger merge ledger.db anna.note ben.note"),
        Case("retain: too early", "ledger retain ledger.db --prune", code=1),
        Case("retain: bodies go", "ledger retain ledger.db --prune", before=lambda place: _one_more_epoch(place)),
        Case("retain: no ledger", "ledger retain", code=2),
        Case("fsck: pruned", "ledger fsck ledger.db"),
        Case("show: pruned", "ledger show ledger.db"),
        Case("export: pruned", "ledger export ledger.db lean --registry registry.cbor"),
        Case("verify: pruned", "ledger verify lean --key ledger.pub"),
        Case("prove: pruned", "ledger prove lean gone.proof --leaf 2", code=1),
    ],
)


def _one_more_epoch(directory: Path) -> None:
    from ledger.log import Ledger
    from tests.worlds.ledgers import SIGNER, Driver

    with Ledger.open(directory / "ledger.db", SIGNER) as ledger:
        driver = Driver(ledger, now=ledger.state.last_time, streams=500)
        ledger.resume(ledger.state.position, ledger.pin(), now=driver.tick())
        driver.steps(1)
        driver.epoch()


DROPPING = Scenario(
    "ledger-drop",
    dropping,
    [
        Case("retain: bodies and hashes at once", "ledger retain ledger.db --drop-hashes --prune", code=2),
        Case("prove: before hashes go", "ledger prove ledger.db before.proof --leaf 1"),
        Case("retain: hashes go", "ledger retain ledger.db --drop-hashes"),
        Case("retain: no more hashes", "ledger retain ledger.db --drop-hashes", code=1),
        Case("fsck: hashes are gone", "ledger fsck ledger.db"),
        Case("show: who withdrew", "ledger show ledger.db"),
        Case("verify-proof: of a leaf that is gone", "ledger verify-proof before.proof --key ledger.pub"),
    ],
)

SERVED = Scenario(
    "ledger-init",
    nothing,
    [
        Case("init", "ledger init {url}?schema=frozen --writer trainer"),
        Case("init: once more, before the run began", "ledger init {url}?schema=frozen --writer trainer"),
        Case("init: no such role", "ledger init {url}?schema=other --writer nobody", code=1),
        Case("init: a ledger in a file needs none", "ledger init ledger.db --writer trainer", code=2),
    ],
    beside=served,
    missing=server_missing,
)
