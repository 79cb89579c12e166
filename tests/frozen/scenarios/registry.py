"""`dptrain registry`: what the owner of a corpus says of contributors and their keys."""

from pathlib import Path

from tests.frozen.scenario import Case, Scenario
from tests.frozen.worlds import DAY, clinic

_REGISTRY = "registry.cbor"


def _tables(directory: Path) -> None:
    raw = (directory / "carol.pub").read_text().split()[-1]
    (directory / "all.csv").write_text(f"key,contributor,classes,cap\n{raw},carol,sensitive general,7\n")
    (directory / "bad.csv").write_text("name\ncarol\n")
    (directory / "new").mkdir()


REGISTRY = Scenario(
    "registry",
    clinic,
    [
        Case("init", "registry init new/registry.cbor --key owner.key", before=_tables),
        Case("init: a registry exists", "registry init new/registry.cbor --key owner.key", code=1),
        Case("init: no key of an owner", "registry init new/other.cbor", code=2),
        Case("add", f"registry add {_REGISTRY} --pub bob.pub --class general --cap 9 --principal bob --days 30"),
        Case("add: a class that the policy lacks", "registry add new/registry.cbor --pub bob.pub --class open --key owner.key"),
        Case("add: many from a table", f"registry add {_REGISTRY} --from all.csv --class general"),
        Case("add: a table of another form", f"registry add {_REGISTRY} --from bad.csv --class general", code=1),
        Case("add: another owner", f"registry add {_REGISTRY} --pub anna.pub --class general --key alice.key", code=1),
        Case(
            "add: a name that looks like another",
            f"registry add {_REGISTRY} --pub anna.pub --class general --contributor b0b",
            code=1,
        ),
        Case("add: without a class", f"registry add {_REGISTRY} --pub anna.pub", code=2),
        Case("grant", f"registry grant {_REGISTRY} --contributor bob --class general --class sensitive --cap 2"),
        Case("grant: nothing", f"registry grant {_REGISTRY} --contributor carol --none"),
        Case("grant: nobody of that name", f"registry grant {_REGISTRY} --contributor zoe --none", code=1),
        Case("grant: neither classes nor none", f"registry grant {_REGISTRY} --contributor bob", code=2),
        Case("a contributor proves a key", f"attest prove --key bob.key --registry {_REGISTRY}"),
        Case("prove", f"registry prove {_REGISTRY} --statement bob-possession.cose"),
        Case("prove: once more", f"registry prove {_REGISTRY} --statement bob-possession.cose", code=1),
        Case("prove: no statement", f"registry prove {_REGISTRY}", code=2),
        Case("a contributor makes a key", "attest keygen alice --dir new"),
        Case("a contributor changes keys", f"attest rotate --key alice.key --new-key new/alice.key --registry {_REGISTRY}"),
        Case(
            "rotate: the old key ends too late",
            f"registry rotate {_REGISTRY} --statement alice-rotation.cose --old-until +900d",
            code=2,
        ),
        Case("rotate", f"registry rotate {_REGISTRY} --statement alice-rotation.cose --old-until +30d --days 365"),
        Case("rotate: what is no change of keys", f"registry rotate {_REGISTRY} --statement bob-possession.cose", code=1),
        Case("a contributor revokes a key", f"attest revoke --key new/alice.key --registry {_REGISTRY} --pub alice.pub"),
        Case("revoke: with the contributor's own statement", f"registry revoke {_REGISTRY} --statement alice-revocation.cose"),
        Case("revoke: as the owner", f"registry revoke {_REGISTRY} --contributor bob --at 2027-02-01"),
        Case(
            "revoke: a key that nobody has", f"registry revoke {_REGISTRY} --contributor bob --key-id 0000000000000000", code=1
        ),
        Case("revoke: who", f"registry revoke {_REGISTRY}", code=2),
        Case("show", f"registry show {_REGISTRY}"),
        Case("show: with its history", f"registry show {_REGISTRY} --history --owner-key owner.pub"),
        Case("show: another owner", f"registry show {_REGISTRY} --owner-key alice.pub", code=1),
        Case("show: no such file", "registry show nowhere.cbor", code=2),
        Case("verify", f"registry verify {_REGISTRY}", keep={"root": "root"}),
        Case(
            "verify: two names that look alike",
            f"registry add {_REGISTRY} --pub anna.pub --class general --contributor b0b --allow-look-alike",
        ),
        Case("verify: an earlier root", f"registry verify {_REGISTRY} --root {{root}} --owner-key owner.pub --now +1d"),
        Case("verify: a root of another", f"registry verify {_REGISTRY} --root {'00' * 32}", code=1),
        Case("verify: what is no root", f"registry verify {_REGISTRY} --root xyz", code=2),
        Case("set-clock: nothing is ahead", f"registry set-clock {_REGISTRY} --reason none", code=1),
        Case(
            "an entry is made ahead of time", f"registry grant {_REGISTRY} --contributor carol --class general", clock=90 * DAY
        ),
        Case("nothing follows it", f"registry grant {_REGISTRY} --contributor carol --none", code=1),
        Case("set-clock", f"registry set-clock {_REGISTRY} --reason 'the clock was ahead'"),
        Case("set-clock: no reason", f"registry set-clock {_REGISTRY}", code=2),
    ],
)
