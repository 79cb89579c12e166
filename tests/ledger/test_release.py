"""Releases: what the manifest says, that all of it is checked, and that it claims no more than is true."""

import hashlib
from dataclasses import replace
from fractions import Fraction

import pytest
from release_models import WEIGHTS, model, run_to_the_end, safetensors

from attest.descriptor import SignedBounds
from attest.policy import ClassRule, DepthRule
from ledger.errors import ExportRefused, LeafRefused, ReleaseRefused, StorageFailed
from ledger.leaves import Release, decode_leaf
from ledger.log import Ledger
from ledger.merkle import root
from ledger.note import NoteSigner
from ledger.release import MANIFEST, Manifest, check_release, open_manifest, release
from ledger.release.create import describe
from ledger.release.files import digested, listed
from ledger.release.manifest import sign_manifest
from ledger.replay import Replay
from ledger.replay.influence import artifacts, class_costs, influenced, withdrawals_root
from ledger.views.summary import class_summaries
from tests.worlds.attested_ledgers import attested_run, put_registry, registry_bytes
from tests.worlds.ledgers import (
    OTHER_KEY,
    SIGNER,
    START,
    Driver,
    admission,
    descriptor,
    header_spec,
    parameter,
    signed_policy,
    stack_of,
)
from tests.worlds.retained_ledgers import ANNA, BEN, grown, is_pruned, vouched_for


@pytest.fixture
def finished(path):
    driver = run_to_the_end(path)
    with driver.ledger:
        yield driver


@pytest.fixture
def released(finished, tmp_path):
    return release(finished.ledger, model(tmp_path / "model"), now=finished.tick())


def directory_of(released):
    return released.path.parent


def codes(report) -> set[str]:
    return {finding.code for finding in report.findings}


def test_a_release_passes_by_the_key_alone_and_its_leaf_stands_behind_what_it_cites(released, finished):
    report = check_release(directory_of(released), [SIGNER.vkey])
    assert (report.verdict, report.findings, report.newer_withdrawals) == ("TOLD", (), 0)
    assert report.manifest == released.manifest
    with finished.ledger.rows() as rows:
        leaf = decode_leaf([row.body for row in rows][released.seq])
    assert isinstance(leaf, Release) and leaf.size == leaf.seq == released.manifest.size
    assert leaf.manifest_digest == hashlib.sha256(released.path.read_bytes()).digest()


def test_the_manifest_lists_files_tensors_and_what_each_class_was_promised(released, finished):
    manifest = released.manifest
    assert [file.path for file in manifest.files] == ["config.json", "model.safetensors", "tokenizer/vocab.txt"]
    config, weights, _ = manifest.files
    assert config.sha256 == hashlib.sha256(b'{"layers": 3}\n').digest() and config.tensors is None
    assert {t.name: (t.dtype, list(t.shape), t.sha256) for t in weights.tensors} == {
        name: (dtype, shape, hashlib.sha256(data).digest()) for name, (dtype, shape, data) in WEIGHTS.items()
    }
    for row, told in zip(manifest.classes, class_summaries(finished.ledger.state), strict=True):
        assert (row.name, row.contributions, row.withdrawn) == (told.name, told.active + told.withdrawn, told.withdrawn)
        assert row.epsilon_micro / 1e6 == pytest.approx(told.epsilon, abs=2e-6)
        assert row.replace_micro / 1e6 == pytest.approx(told.epsilon_replace, abs=2e-6)
    assert (manifest.horizon, manifest.withdrawn, manifest.step) == (False, 2, 40)


def test_without_an_export_the_numbers_are_only_the_signers_word(released):
    (directory_of(released) / "export").rename(directory_of(released).parent / "elsewhere")
    assert check_release(directory_of(released), [SIGNER.vkey]).verdict == "SIGNED"
    elsewhere = directory_of(released).parent / "elsewhere"
    assert check_release(directory_of(released), [SIGNER.vkey], export=elsewhere).verdict == "TOLD"


def test_the_manifest_round_trips_and_no_other_bytes_mean_the_same(released):
    payload = released.manifest.to_cbor()
    assert Manifest.from_cbor(payload) == released.manifest
    for at in range(len(payload)):
        changed = bytearray(payload)
        changed[at] ^= 1
        try:
            found = Manifest.from_cbor(bytes(changed))
        except ReleaseRefused:
            continue
        assert found != released.manifest


def test_a_newer_export_tells_of_withdrawals_that_the_release_cannot_know(released, finished, tmp_path):
    finished.withdraw(4)
    newer = finished.ledger.export(tmp_path / "newer")
    report = check_release(directory_of(released), [SIGNER.vkey], export=newer)
    assert (report.verdict, report.newer_withdrawals) == ("TOLD", 1)


def test_a_key_that_changed_after_the_release_is_followed_from_the_pinned_one(released, finished, tmp_path):
    finished.ledger.rotate_key(NoteSigner(SIGNER.name, OTHER_KEY), now=finished.tick())
    newer = finished.ledger.export(tmp_path / "newer")
    report = check_release(directory_of(released), [SIGNER.vkey], export=newer)
    assert report.verdict == "TOLD", report.findings


def test_a_run_that_stops_early_is_promised_the_planned_horizon_and_not_less(run, tmp_path):
    run.admit(admission(1), admission(3, "sensitive"))
    run.steps(2)
    run.epoch()
    run.ledger.finish(now=run.tick())
    so_far = class_summaries(run.ledger.state)
    made = release(run.ledger, model(tmp_path / "model"), now=run.tick())
    assert made.manifest.horizon and any("planned horizon" in sentence for sentence in made.manifest.statements)
    for place, row in enumerate(made.manifest.classes):
        z = run.ledger.state.expenditure.multipliers(place, SignedBounds(*[(10**6, 10**6), (5 * 10**5, 3 * 10**6)][place]))
        planned = run.ledger.state.expenditure.of_group(place, z, (50,))
        assert so_far[place].epsilon < planned == pytest.approx(row.epsilon_micro / 1e6, abs=2e-6)
    assert check_release(tmp_path / "model", [SIGNER.vkey]).verdict == "TOLD"


def test_influence_is_a_closure_over_reads_and_writes():
    writes = {"a": {0}, "b": {1}, "c": {2}}
    apart = {"a": {0, 9}, "b": {1, 9}, "c": {2, 9}}
    assert influenced(writes, apart, {1}) == {"b"}
    assert influenced(writes, apart, {9}) == set()
    chain = apart | {"b": {0, 1}, "c": {1, 2}}
    assert influenced(writes, chain, {2}) == {"a", "b", "c"}, "a is read by b, which is read by c"
    assert influenced(writes, chain, {0}) == {"a"}, "nobody whom a reads"


def test_in_an_ordinary_stack_every_class_may_have_influenced_everything(run):
    full, base = artifacts(run.ledger.header, final=True)
    assert (full.name, base.name) == ("full", "base")
    assert full.influenced_by == base.influenced_by == (True, True)


def bound(*depths: DepthRule):
    """A policy of the classes open and sensitive with these depths."""
    bounds = {"clip_norm_micro": 10**6, "noise_multiplier_micro": 10**6, "sampling_rate": Fraction(1, 50)}
    rules = (ClassRule(name=name, depth=depth, **bounds) for name, depth in zip(("open", "sensitive"), depths, strict=True))
    return signed_policy(classes=tuple(rules))


def test_a_base_that_no_class_may_touch_is_exactly_independent_and_an_adapter_never_is(path):
    """All adapters are active in every forward: the gradients of one class see what the other has written."""
    spec = header_spec(
        bound(DepthRule(adapter="one"), DepthRule(adapter="lab-b")),
        stack=stack_of(
            1,
            parameter("layers.0.lab-b", adapter="lab-b"),
            parameter("layers.0.one", adapter="one"),
            parameter("head.weight", 5),
        ),
    )
    with Ledger.create(path, spec, SIGNER, now=START) as ledger:
        found = {part.name: part for part in artifacts(ledger.header, final=True)}
    assert set(found) == {"full", "base", "adapter:lab-b", "adapter:one"}
    assert found["base"].blocks == (2,) and found["base"].influenced_by == (False, False)
    assert found["adapter:lab-b"].blocks == (0,) and found["adapter:lab-b"].influenced_by == (True, True)


def test_a_band_beside_an_adapter_reaches_every_part(path):
    policy = bound(DepthRule(band=(Fraction(0), Fraction(1))), DepthRule(adapter="lab-b"))
    spec = header_spec(
        policy, stack=stack_of(1, parameter("layers.0.lab-b", adapter="lab-b"), parameter("layers.0.weight"))
    )
    with Ledger.create(path, spec, SIGNER, now=START) as ledger:
        assert {part.influenced_by for part in artifacts(ledger.header, final=True)} == {(True, True)}


def test_what_cannot_be_released_is_refused_and_leaves_no_leaf(run, path, tmp_path):
    directory = model(tmp_path / "model")

    def refusal() -> str:
        size = run.ledger.size
        with pytest.raises(ReleaseRefused) as caught:
            release(run.ledger, directory, now=run.tick())
        assert run.ledger.size == size and not (directory / MANIFEST).exists()
        return caught.value.code

    run.admit(admission(1))
    assert refusal() == "NOTHING"
    run.steps(1)
    window = run.charge()
    assert refusal() == "WINDOW_OPEN"
    run.ledger.settle(window, 4, now=run.tick())
    (directory / "NOT_PRIVATE").write_text("trained for comparison")
    assert refusal() == "NOT_PRIVATE"
    (directory / "NOT_PRIVATE").unlink()
    (directory / "link.bin").symlink_to(directory / "config.json")
    assert refusal() == "NOT_A_FILE"
    (directory / "link.bin").unlink()
    (directory / "Config.json").write_text("{}")
    assert refusal() == "CASE"
    (directory / "Config.json").unlink()
    (directory / "model.safetensors").write_bytes(safetensors(WEIGHTS) + b"\0")
    assert refusal() == "SAFETENSORS"
    (directory / "model.safetensors").write_bytes(safetensors(WEIGHTS))
    (directory / "export").mkdir()
    size = run.ledger.size
    with pytest.raises(ReleaseRefused, match="EXISTS"):
        release(run.ledger, directory, now=run.tick())
    assert run.ledger.size == size


def test_a_ledger_that_lies_about_a_release_is_refused_when_appended_and_by_the_audit(run):
    run.admit(admission(1))
    run.steps(1)
    with pytest.raises(LeafRefused, match="RELEASE"):
        run.ledger.record_release(bytes(32), bytes(32), 5, now=run.tick())
    assert run.ledger.record_release(bytes(32), bytes(32), 4, now=run.tick()) == run.ledger.size - 1


def test_a_closed_run_may_be_released_and_a_release_counts_nothing(finished):
    before = [row.epsilon for row in class_summaries(finished.ledger.state)]
    finished.ledger.record_release(bytes(32), bytes(32), 40, now=finished.tick())
    assert [row.epsilon for row in class_summaries(finished.ledger.state)] == before
    finished.withdraw(1)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda data: data[:-1], "ends inside a tensor"),
        (lambda data: data + b"\0", "its tensors end at"),
        (lambda data: data[:4], "header"),
        (lambda data: (1 << 40).to_bytes(8, "little") + data[8:], "claims"),
        (lambda data: data.replace(b"BF16", b"BF17"), "known dtype"),
        (lambda data: data.replace(b"[2, 3]", b"[2, 4]"), "does not take"),
        (lambda data: data.replace(b'"data_offsets": [0, 24]', b'"data_offsets": [1, 24]'), "begins at 1"),
        (lambda data: data.replace(b'"layers.2.weight"', b'"layers.0.weight"'), "a name stands twice"),
        (lambda data: data.replace(b"[2, 3]", b"[2,-3]"), "no lists of sizes"),
        (lambda data: data.replace(b'"BF16"', b"[  16]"), "known dtype"),
    ],
)
def test_a_file_that_is_no_whole_safetensors_file_is_refused(tmp_path, change, why):
    (tmp_path / "model.safetensors").write_bytes(change(safetensors(WEIGHTS)))
    with pytest.raises(ReleaseRefused, match=why) as caught:
        digested(tmp_path, "model.safetensors")
    assert caught.value.code == "SAFETENSORS"


def test_the_record_says_how_far_the_run_was_at_each_release(run):
    run.admit(admission(1), admission(2), admission(3))
    run.steps(1)
    run.withdraw(2)
    run.ledger.record_release(bytes(32), bytes(32), 4, now=run.tick())
    run.admit(admission(4))
    run.ledger.record_release(bytes(32), bytes(32), 4, now=run.tick())
    found = run.ledger.state.releases.recorded
    assert [(item.admitted, item.withdrawn, item.final) for item in found] == [(3, 1, False), (4, 1, False)]


def test_withdrawals_count_by_the_size_that_a_release_cites():
    """A leaf at position n is not among the first n; the root is over the hashes in the order in which their leaves came."""
    late, early, last = (descriptor(n) for n in (1, 2, 3))
    withdrawals = {early: 3, late: 5, last: 6}
    assert [withdrawals_root(withdrawals, size) for size in (3, 4, 6, 7)] == [
        (count, root([early, late, last][:count])) for count in (0, 1, 2, 3)
    ]


@pytest.mark.parametrize(("dimensions", "why"), [(64, "does not take"), (65, "no lists"), (200_000, "no lists")])
def test_a_tensor_of_very_many_dimensions_is_refused_at_once(tmp_path, dimensions, why):
    """Their product would have millions of digits."""
    (tmp_path / "model.safetensors").write_bytes(safetensors({"a": ("F32", [2**61] * dimensions, b"")}))
    with pytest.raises(ReleaseRefused, match=why):
        digested(tmp_path, "model.safetensors")


def test_tensors_are_digested_in_the_librarys_own_files(tmp_path):
    torch = pytest.importorskip("torch")
    save_file = pytest.importorskip("safetensors.torch").save_file
    weights = {"a": torch.arange(6.0).view(2, 3), "b": torch.zeros(0), "c": torch.ones(4, dtype=torch.bfloat16)}
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    found = {tensor.name: tensor for tensor in digested(tmp_path, "model.safetensors").tensors}
    for name, tensor in weights.items():
        raw = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
        assert (found[name].shape, found[name].sha256) == (tuple(tensor.shape), hashlib.sha256(raw).digest())


def test_digesting_a_file_takes_no_memory_of_its_size(tmp_path):
    import tracemalloc

    big = safetensors({"a": ("U8", [1 << 26], bytes(1 << 26))})
    (tmp_path / "model.safetensors").write_bytes(big)
    tracemalloc.start()
    digested(tmp_path, "model.safetensors")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


@pytest.mark.parametrize("name", ["con", "AUX.txt", "a:b", "trailing ", "dot.", "back\\slash", "star*", "new\nline"])
def test_names_that_do_not_mean_one_file_everywhere_are_refused(tmp_path, name):
    (tmp_path / name).write_text("x")
    with pytest.raises(ReleaseRefused) as caught:
        listed(tmp_path)
    assert caught.value.code == "PATH"


def test_a_manifest_can_be_described_before_anything_is_signed_for_good(finished):
    own = class_costs(finished.ledger.state)
    assert all(cost is not None and 0 < cost[0] < cost[1] for cost in own)
    manifest = describe(finished.ledger, (), now=finished.tick())
    assert manifest.epsilon_micro("full", 0) == manifest.classes[0].epsilon_micro


def test_a_manifest_signed_by_nobody_whom_the_reader_trusts_is_not_opened(released):
    stranger = NoteSigner(SIGNER.name, OTHER_KEY).vkey
    with pytest.raises(ReleaseRefused, match="UNSIGNED"):
        open_manifest(released.path.read_bytes(), [stranger])
    report = check_release(directory_of(released), [stranger])
    assert report.verdict == "FAILED" and report.manifest is None


@pytest.mark.parametrize(
    "changes",
    [{"size": 1}, {"root": bytes(32)}, {"withdrawals_root": bytes(32)}, {"step": 41}],
    ids=["cites other leaves", "other root", "other withdrawals", "step never charged"],
)
def test_an_auditor_finds_a_release_leaf_that_is_not_true(released, finished, changes):
    with finished.ledger.rows() as rows:
        leaves = [decode_leaf(row.body) for row in rows][: released.seq + 1]
    state = Replay(leaves[0], lambda size: released.manifest.root, recompute=False)
    for leaf in leaves[1:-1]:
        assert state.apply(leaf) == []
    assert [problem.code for problem in state.apply(replace(leaves[-1], **changes))] == ["RELEASE"]


def test_a_release_that_the_export_does_not_show_as_recorded_fails_and_says_which_export_would_do(finished, tmp_path):
    finished.ledger.sign_checkpoint()
    before = finished.ledger.export(tmp_path / "before")
    made = release(finished.ledger, model(tmp_path / "model"), now=finished.tick())
    report = check_release(tmp_path / "model", [SIGNER.vkey], export=before)
    assert (report.verdict, codes(report)) == ("FAILED", {"UNRECORDED"})
    assert f"at least {made.seq + 1} leaves" in report.findings[0].sentence
    assert check_release(tmp_path / "model", [SIGNER.vkey], export=made.export).verdict == "TOLD"


def test_a_release_outlives_the_pruning_of_its_ledger(path, tmp_path):
    """The same manifest, checked against an export from which bodies of admissions and expenditures are gone."""
    with grown(path).ledger as ledger:
        driver = Driver(ledger, now=ledger.state.last_time + 1)
        made = release(ledger, model(tmp_path / "model"), now=driver.tick())
        ledger.summarise(now=driver.tick())
        vouched_for(driver, ANNA, BEN)
        driver.steps(1)
        driver.epoch()
        assert ledger.prune() > 0
        lean = ledger.export(tmp_path / "lean")
    report = check_release(tmp_path / "model", [SIGNER.vkey], export=lean)
    assert is_pruned(report) and report.findings == ()
    first, *others = made.manifest.classes
    less = replace(made.manifest, classes=(replace(first, epsilon_micro=first.epsilon_micro - 3), *others))
    made.path.write_bytes(sign_manifest(less, SIGNER))
    assert "EPSILON" in codes(check_release(tmp_path / "model", [SIGNER.vkey], export=lean))


def test_the_ledger_tells_of_a_release_before_its_manifest_is_there(finished, tmp_path, monkeypatch):
    """A disk that refuses the manifest leaves a leaf without one, never a manifest without a leaf; then again."""
    directory, size = model(tmp_path / "model"), finished.ledger.size

    def full(path, data):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("ledger.release.create.atomic_write", full)
        with pytest.raises(StorageFailed, match="No space left"):
            release(finished.ledger, directory, now=finished.tick())
    assert finished.ledger.size == size + 1 and not (directory / MANIFEST).exists()
    release(finished.ledger, directory, now=finished.tick())
    assert check_release(directory, [SIGNER.vkey]).verdict == "TOLD"


def test_a_release_packs_what_was_signed_and_the_registry(tmp_path):
    driver = attested_run(tmp_path / "ledger.db")
    driver.whole_run()
    with driver.ledger as ledger:
        made = release(ledger, model(tmp_path / "model"), now=driver.tick(), registry=put_registry(tmp_path))
        assert (made.export / "registry").read_bytes() == bytes(registry_bytes())
        assert (made.export / "attestations").is_dir()
        bare = release(ledger, model(tmp_path / "bare"), now=driver.tick(), attestations=False)
        assert not (bare.export / "attestations").exists() and not (bare.export / "registry").exists()
    for made in ("model", "bare"):
        assert not check_release(tmp_path / made, [SIGNER.vkey]).findings


def test_a_release_with_another_registry_is_refused_before_anything_is_recorded(finished, tmp_path):
    size = finished.ledger.size
    with pytest.raises(ExportRefused, match="REGISTRY"):
        release(finished.ledger, model(tmp_path / "model"), now=finished.tick(), registry=put_registry(tmp_path))
    assert finished.ledger.size == size and not (tmp_path / "model" / MANIFEST).exists()
