"""Consent to a use: a contribution is used for what its contributor signed and its class has, and for nothing else."""

import hashlib
from dataclasses import replace
from fractions import Fraction

import pytest

from attest import cbor
from attest.corpus import Extent, Shard, ShardNumber, open_corpus, sign_corpus
from attest.descriptor import BUILT, GENERATE, PURPOSES, QUERY, TRAIN, SignedDescriptor
from attest.errors import AdmissionRefused, DescriptorRefused, GateFailed, PolicyRefused, VerdictsRefused
from attest.gate import Admitted, Gate, Seen, decide, judge_shard, merge_shards, run_gate
from attest.gate import gate as gate_module
from attest.gate.admission import Passed
from attest.gate.checks import Examiner, check_purpose, examine
from attest.gate.reading import Context, KeptReading, Verified
from attest.gate.verdicts import MergedReading, ShardReading
from attest.keys import public_bytes
from attest.policy import Policy, sign_policy, verify_policy
from attest.policy.classes import DecodingRule
from tests.worlds.gate import NOW, key_of

BOTH = (GENERATE, TRAIN)
SIGNED = {"none": None, "train": (TRAIN,), "generate": (GENERATE,), "both": BOTH}
"""Lists what a contributor may sign; none is train alone."""

ALLOWED = {"none": (TRAIN,), "train": (TRAIN,), "generate": (GENERATE,), "both": BOTH}

DECODING = DecodingRule(
    references=7, clip_norm_micro=500_000, temperature_micro=1_000_000, tokens=100, max_rho_nano=10**9, top_k=50
)
LEDGER_KEY, SHARD_KEY = key_of(60), key_of(61)


def purposes_of(policy: Policy, **words: tuple[str, ...]) -> Policy:
    """The policy with other purposes of some classes."""
    return replace(
        policy,
        classes=tuple(
            replace(rule, purposes=words[rule.name], generation=DECODING if GENERATE in words[rule.name] else None)
            if rule.name in words
            else rule
            for rule in policy.classes
        ),
    )


@pytest.fixture
def policy(world):
    """A policy whose class `sensitive` is for both, and whose class `open` for training alone."""
    return purposes_of(world.policy, sensitive=BOTH)


@pytest.fixture
def signed(world, policy):
    payload, message = sign_policy(policy, world.owner, owner="owner", registry_root=world.registry.root())
    return verify_policy(payload, message, public_bytes(world.owner))


@pytest.fixture
def corpus(world, tmp_path):
    """Records of which Alice signed three for each purpose, for both, and without saying any."""
    for name, words in SIGNED.items():
        data = tmp_path / "corpus" / f"{name}.jsonl"
        data.parent.mkdir(exist_ok=True)
        data.write_text("".join(f'{{"text": "{name} {n}"}}\n' for n in range(3)))
        sign_corpus(data, None, world.alice, replace(world.template, purposes=words))
    return open_corpus(tmp_path / "corpus")


def files(report):
    """How many contributions of each file were admitted, and the codes of the others."""
    found = {name: 0 for name in SIGNED}
    for item in report.admitted:
        found[item.locator.source.removesuffix(".jsonl")] += 1
    return found, {str(one.refusal.code) for one in report.refused}


def expected(purpose):
    return {name: 3 if purpose in words else 0 for name, words in ALLOWED.items()}, {"PURPOSE"}


@pytest.mark.parametrize("purpose", BUILT)
@pytest.mark.parametrize("name", SIGNED)
def test_a_contribution_is_admitted_to_what_its_contributor_signed_alone(world, policy, name, purpose):
    attestation = world.variant(purposes=SIGNED[name])
    found = world.code(attestation, policy=policy, purpose=purpose)
    assert found == ("ADMITTED" if purpose in ALLOWED[name] else "PURPOSE")


@pytest.mark.parametrize("served", [(TRAIN,), (GENERATE,), BOTH], ids="+".join)
@pytest.mark.parametrize("purpose", BUILT)
def test_a_class_admits_to_what_the_policy_gives_it_alone(world, served, purpose):
    """Whoever signed for both is used for what the class has."""
    found = world.code(world.variant(purposes=BOTH), policy=purposes_of(world.policy, sensitive=served), purpose=purpose)
    assert found == ("ADMITTED" if purpose in served else "PURPOSE")


def test_the_sentences_say_what_was_signed_what_was_asked_for_and_what_to_do(world, policy):
    unsigned = world.judge(world.sign(), policy=policy, purpose=GENERATE)
    assert "signed for train, asked for is generate" in unsigned.sentence and "--purpose generate" in unsigned.sentence
    untrained = world.judge(world.variant(purposes=(GENERATE,)), policy=policy)
    assert "signed for generate, asked for is train" in untrained.sentence and "--purpose train" in untrained.sentence
    unserved = world.judge(world.variant(purposes=BOTH), purpose=GENERATE)
    assert "class sensitive is for train, asked for is generate" in unserved.sentence and "the owner adds" in unserved.sentence


def test_training_is_what_everybody_asks_for_who_names_no_purpose(world, policy):
    attestation, digest = world.variant(purposes=(GENERATE,)), world.descriptor.content_hash
    known = {"policy": policy, "registry": world.registry, "now": NOW}
    outcomes = (
        examine(attestation, digest, **known),
        decide(attestation, digest, seen=Seen(), **known),
        Examiner(*known.values()).examine(attestation.descriptor, attestation.sign1, attestation.opening, digest),
    )
    assert [str(outcome.code) for outcome in outcomes] == ["PURPOSE"] * 3


@pytest.mark.parametrize("purpose", [QUERY, "", "TRAIN", "sell", None])
def test_a_use_that_nobody_serves_is_refused_before_anything_is_judged(world, policy, purpose):
    with pytest.raises(GateFailed) as caught:
        Gate(policy, world.registry, purpose=purpose)
    assert caught.value.code == "PURPOSE" and "expected generate or train" in caught.value.sentence
    with pytest.raises(GateFailed) as caught:
        world.judge(world.variant(purposes=BOTH), policy=policy, purpose=purpose)
    assert caught.value.code == "PURPOSE"


def test_on_return_the_contributor_signed_for_this_purpose_and_the_policy_gives_it_to_the_class(world, policy):
    """Over every pair of what is signed and served, `query` included, which no policy can give and nobody sign."""
    sensitive = policy.classes[0]
    for name, words in SIGNED.items():
        for served in ((TRAIN,), (GENERATE,), BOTH):
            for purpose in PURPOSES:
                rule = replace(sensitive, purposes=served, generation=DECODING if GENERATE in served else None)
                assert (rule.generation is not None) == (GENERATE in rule.purposes)
                terms = replace(world.descriptor, purposes=words)
                assert terms.allows(purpose) == (purpose in ALLOWED[name]) == terms.signed.allows(purpose)
                if purpose in ALLOWED[name] and purpose in served:
                    check_purpose(terms, rule, purpose)
                    continue
                with pytest.raises(AdmissionRefused) as caught:
                    check_purpose(terms, rule, purpose)
                assert caught.value.code == "PURPOSE"


# --- what is learned for one use ------------------------------------------------------------------


@pytest.mark.parametrize("purpose", BUILT)
def test_a_form_learned_for_one_use_or_class_passes_no_other(world, policy, purpose):
    """Until forms and patterns are known: then everything that resembles them is presented."""
    policy = purposes_of(policy, open=(TRAIN,))
    examiner = Examiner(policy, world.registry, NOW, purpose=purpose)

    def outcome(number, key=world.alice, **changes):
        content = hashlib.sha256(b"%d" % number).digest()
        descriptor = replace(world.template, **changes).descriptor(content)
        attestation = world.sign(descriptor, key)
        found = examiner.examine(attestation.descriptor, attestation.sign1, attestation.opening, content)
        alone = examine(attestation, content, policy=policy, registry=world.registry, now=NOW, purpose=purpose)
        assert found == alone
        return "ADMITTED" if isinstance(found, Passed) else str(found.code)

    for number in range(6):
        assert outcome(number, purposes=BOTH) == "ADMITTED"
        assert outcome(number, purposes=(purpose,)) == "ADMITTED"
    assert examiner._known and any(examiner._patterns.values())
    other = GENERATE if purpose == TRAIN else TRAIN
    for number in range(6):
        assert outcome(number, purposes=(other,)) == "PURPOSE"
        assert outcome(number, purposes=None) == ("ADMITTED" if purpose == TRAIN else "PURPOSE")
        of_open = outcome(number, world.bob, contributor="bob", admissibility_class="open", purposes=BOTH)
        assert of_open == ("ADMITTED" if purpose == TRAIN else "PURPOSE")


@pytest.mark.one_in(7)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("purpose", BUILT)
def test_a_corpus_is_judged_for_one_use_in_every_process(world, policy, corpus, purpose, workers, monkeypatch):
    monkeypatch.setattr(gate_module, "PARALLEL_FROM", 0)
    started = []
    take = gate_module.Workers.take

    def waited(self, work):
        while not all(worker.ready for worker in self._workers):
            self.pump(None)
        started.append(len(self._workers))
        return take(self, work)

    monkeypatch.setattr(gate_module.Workers, "take", waited)
    report = run_gate(corpus, policy, world.registry, now=NOW, workers=workers, purpose=purpose)
    assert files(report) == expected(purpose) and bool(started) == (workers > 1)


def test_a_withdrawn_contribution_is_refused_for_every_use(world, policy):
    attestation = world.variant(purposes=BOTH)
    for purpose in BUILT:
        gone = Seen(withdrawn=frozenset({hashlib.sha256(attestation.descriptor).digest()}))
        assert world.code(attestation, policy=policy, purpose=purpose, seen=gone) == "WITHDRAWN"


# --- what is kept of one use ----------------------------------------------------------------------


@pytest.mark.parametrize("purpose", BUILT)
def test_what_was_remembered_for_one_use_is_refused_for_another(world, policy, corpus, purpose):
    other = GENERATE if purpose == TRAIN else TRAIN
    memory = Verified(purpose=purpose)
    report = run_gate(corpus, policy, world.registry, now=NOW, workers=1, remember=memory, purpose=purpose)
    assert files(report) == expected(purpose) and memory.checked == sum(expected(purpose)[0].values())
    with pytest.raises(GateFailed) as caught:
        run_gate(corpus, policy, world.registry, now=NOW, workers=1, remember=memory, purpose=other)
    assert caught.value.code == "PURPOSE" and f"passed to {purpose}, asked for is {other}" in caught.value.sentence


@pytest.mark.parametrize("purpose", BUILT)
def test_a_reading_kept_for_one_use_spares_no_signature_for_another(world, policy, signed, corpus, tmp_path, purpose):
    """Those for both are in it, and verified again all the same."""
    other = GENERATE if purpose == TRAIN else TRAIN

    def read(what):
        reading = KeptReading(tmp_path / "reading", LEDGER_KEY, Context.of(signed, world.registry, purpose=what))
        report = run_gate(corpus, signed.policy, world.registry, now=NOW, workers=1, remember=reading, purpose=what)
        assert files(report) == expected(what)
        return reading

    read(purpose).keep()
    assert read(purpose).spared == sum(expected(purpose)[0].values())
    crossed = read(other)
    assert crossed.spared == 0 and "made under another purpose" in crossed.told


@pytest.mark.parametrize("purpose", BUILT)
def test_a_verdict_for_one_use_counts_for_no_other(world, signed, corpus, tmp_path, purpose):
    other = GENERATE if purpose == TRAIN else TRAIN
    path = tmp_path / "1.verdicts"
    known = (corpus, signed, world.registry)
    judge_shard(*known, ShardNumber(1, 1), path, SHARD_KEY, now=NOW, workers=1, purpose=purpose)
    merged = merge_shards(*known, [path], SHARD_KEY, workers=1, purpose=purpose)
    assert files(merged) == expected(purpose)
    with pytest.raises(VerdictsRefused) as caught:
        merge_shards(*known, [path], SHARD_KEY, workers=1, purpose=other)
    assert caught.value.code == "PURPOSE" and "for another purpose" in caught.value.sentence
    reading = Verified(purpose=other)
    with pytest.raises(VerdictsRefused) as caught:
        merge_shards(*known, [path], SHARD_KEY, workers=1, purpose=purpose, remember=reading)
    assert caught.value.code == "PURPOSE" and f"of what may {other}" in caught.value.sentence


def test_tags_of_one_use_are_none_of_another(world, signed, corpus, tmp_path):
    """Even of one attestation that is for both, under one key: no entry can be moved from one file to the other."""
    (item, *_) = (item for item in corpus if item.locator.source == "both.jsonl")
    part = Shard(corpus, ShardNumber(1, 1), Extent.of(corpus))
    tags = set()
    for purpose in BUILT:
        context = Context.of(signed, world.registry, purpose=purpose)
        kept = KeptReading(tmp_path / purpose, LEDGER_KEY, context)
        shard = ShardReading(part, signed, world.registry, NOW, tmp_path / f"{purpose}.v", SHARD_KEY, purpose=purpose)
        shard.keep()
        paths = [tmp_path / f"{purpose}.v"]
        whole = MergedReading(paths, signed, world.registry, Extent.of(corpus), SHARD_KEY, purpose=purpose)
        tags |= {reading.tag(item.attestation, item.content_hash) for reading in (kept, shard)}
        assert {kept.purpose, shard.purpose, whole.purpose} == {purpose}
    assert len(tags) == 4


def test_a_gate_admits_to_one_use_what_was_admitted_to_another_before(world, policy, corpus):
    """Each use is an epoch of its own."""
    for purpose in BUILT:
        outcomes = [*Gate(policy, world.registry, workers=1, purpose=purpose).judge(corpus, now=NOW)]
        assert sum(isinstance(outcome, Admitted) for outcome in outcomes) == sum(expected(purpose)[0].values())


def equal(world, tmp_path, words=BOTH):
    """Three records of one content, each signed, and the first attestation once more."""
    data = tmp_path / "equal" / "rows.jsonl"
    data.parent.mkdir()
    data.write_text('{"text": "the same"}\n' * 3)
    sign_corpus(data, None, world.alice, replace(world.template, purposes=words))
    items = [*open_corpus(data.parent)]
    return [*items, items[0]]


def codes(outcomes):
    return ["ADMITTED" if isinstance(one, Admitted) else str(one.refusal.code) for one in outcomes]


def test_to_generation_equal_contents_are_each_a_contribution_and_an_attestation_is_good_for_once(world, policy, tmp_path):
    """Else a payload would decide whether another person's is a reference, and so who shares a batch."""
    items = equal(world, tmp_path)
    for workers in (1, 2):
        gate = Gate(policy, world.registry, workers=workers, purpose=GENERATE)
        assert codes(gate.judge(items, now=NOW)) == ["ADMITTED"] * 3 + ["REPLAYED"]
        gate = Gate(policy, world.registry, workers=workers)
        assert codes(gate.judge(items, now=NOW)) == ["ADMITTED"] + ["DUPLICATE_CONTENT"] * 2 + ["REPLAYED"]


def test_a_decision_for_generation_compares_no_contents_and_knows_an_attestation_again(world, policy, tmp_path):
    how = {"policy": policy, "registry": world.registry, "now": NOW}
    items = equal(world, tmp_path)
    for purpose, expected in ((GENERATE, ["", "", "", "REPLAYED"]), (TRAIN, ["", *["DUPLICATE_CONTENT"] * 2, "REPLAYED"])):
        seen, found = Seen(), []
        for item in items:
            outcome = decide(item.attestation, item.content_hash, seen=seen, purpose=purpose, **how)
            found.append(str(getattr(outcome, "code", "")))
            if not found[-1]:
                seen.note(outcome, NOW)
        assert found == expected


def test_no_fingerprint_is_compared_for_generation(world, policy):
    Gate(policy, world.registry, fingerprint=lambda item: b"")
    with pytest.raises(GateFailed, match="compares contents") as caught:
        Gate(policy, world.registry, fingerprint=lambda item: b"", purpose=GENERATE)
    assert caught.value.code == "PURPOSE"


# --- what is signed -------------------------------------------------------------------------------


def test_purposes_are_in_the_signed_bytes_in_one_form(world):
    seen = set()
    for words in SIGNED.values():
        data = replace(world.descriptor, purposes=words).to_cbor()
        assert SignedDescriptor.from_cbor(data).purposes == words
        seen.add(data)
    assert len(seen) == len(SIGNED)
    for wrong, code in (([TRAIN, GENERATE], "RANGE"), ([GENERATE, GENERATE], "RANGE"), ([], "RANGE"), (["sell"], "RANGE")):
        with pytest.raises(DescriptorRefused) as caught:
            SignedDescriptor.from_cbor(cbor.encode(cbor.decode(world.descriptor.to_cbor()) | {16: wrong}))
        assert caught.value.code == code


@pytest.mark.parametrize("words", [(QUERY,), (GENERATE, QUERY), (QUERY, TRAIN), PURPOSES], ids="+".join)
def test_nobody_signs_for_queries_yet(world, words):
    with pytest.raises(DescriptorRefused) as caught:
        replace(world.descriptor, purposes=words)
    assert caught.value.code == "PURPOSE" and "query, which is specified, not built yet" in caught.value.sentence


# --- what a class may promise ---------------------------------------------------------------------


def test_a_rule_of_decoding_pays_for_one_text_at_least_and_says_the_numbers():
    exact = Fraction(10**9) * 500_000**2 / (2 * 7**2 * 1_000_000**2)
    assert DECODING.token_nano == -(-exact.numerator // exact.denominator) == 2_551_021
    least = 100 * 2_551_021
    assert replace(DECODING, max_rho_nano=least).text_nano == least
    with pytest.raises(PolicyRefused) as caught:
        replace(DECODING, max_rho_nano=least - 1)
    assert caught.value.code == "RANGE"
    for told in ("100 tokens", "0.255102100", "0.002551021 a token", "0.255102099", "raise max_rho"):
        assert told in caught.value.sentence, told


@pytest.mark.parametrize(
    "change", [{"tokens": 101}, {"references": 6}, {"clip_norm_micro": 500_001}, {"temperature_micro": 999_999}]
)
def test_every_number_of_a_rule_counts_in_what_a_text_costs(change):
    tight = replace(DECODING, max_rho_nano=DECODING.text_nano)
    with pytest.raises(PolicyRefused):
        replace(tight, **change)


def test_a_token_costs_something_however_small_and_large_numbers_are_exact():
    """Doubles would say zero, or round."""
    free = DecodingRule(references=65535, clip_norm_micro=1, temperature_micro=10**15, tokens=7, max_rho_nano=7)
    assert (free.token_nano, free.text_nano) == (1, 7)
    dear = {"references": 3, "clip_norm_micro": 10**9 + 7, "temperature_micro": 10**6, "tokens": 1}
    due = Fraction(10**9 * (10**9 + 7) ** 2, 18 * 10**12)
    up = -(-due.numerator // due.denominator)
    assert DecodingRule(max_rho_nano=up, **dear).token_nano == up > due > up - 1
    with pytest.raises(PolicyRefused):
        DecodingRule(max_rho_nano=up - 1, **dear)
