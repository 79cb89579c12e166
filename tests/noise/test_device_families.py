"""Noise on the device, for every family: drawn there, or refused by name before anything is admitted or charged."""

import pytest

torch = pytest.importorskip("torch")

from dptrain import PrivateTraining  # noqa: E402
from dptrain.errors import ConfigError  # noqa: E402
from dptrain.noise import DeviceGaussian, Source, device, mechanism_of  # noqa: E402
from ledger.accountants.table import DEVICE, HOST, TABLE  # noqa: E402
from tests.vectors.conformance.correlated import COLUMNS, DENSE  # noqa: E402
from tests.worlds.trainer import Trainer, opening  # noqa: E402
from tests.worlds.training import World, make_world  # noqa: E402

CERTIFIED = 'exactness = "certified"\n'
TURNS = 'disclosure = "occurrences_public"\nsampling = { order = "cyclic" }\n'
BANDS = "{ bands = 3, coefficients = [1048576, -524288, -131073] }"
BUFFERS = f"{{ decays = [{1 << 39}], scales = [{1 << 38}] }}"
IN_FILE = {"banded": COLUMNS, "dense": DENSE}
EXTRA = {
    "gaussian": "",
    "laplace": CERTIFIED + 'accountant = "pld"\nnoise = { family = "laplace" }\n',
    "discrete_gaussian": CERTIFIED + 'accountant = "rdp"\nnoise = { family = "discrete_gaussian" }\n',
    "skellam": CERTIFIED + 'accountant = "rdp"\nnoise = { family = "skellam" }\n',
    "banded_toeplitz": TURNS + f'noise = {{ family = "banded_toeplitz", parameters = {BANDS.replace("-", "")} }}\n',
    "banded_inverse": TURNS + f'noise = {{ family = "banded_inverse", parameters = {BANDS} }}\n',
    "buffered_toeplitz": TURNS + f'noise = {{ family = "buffered_toeplitz", parameters = {BUFFERS} }}\n',
    "banded": TURNS
    + f'noise = {{ family = "banded", parameters = {{ bands = 3, normalized = true }}, digest = "{COLUMNS.digest.hex()}" }}\n',
    "dense": TURNS + f'noise = {{ family = "dense", digest = "{DENSE.digest.hex()}" }}\n',
}
"""What a policy says, by family."""

BUILTIN = [name for name in TABLE if "." not in name]
STEPS = 12


def world_of(family: str, tmp_path) -> World:
    own = IN_FILE[family].coefficients if family in IN_FILE else None
    rate = '"1/4"' if TURNS in EXTRA[family] else "0.5"
    return make_world(tmp_path, per_class=2, steps=STEPS, rate=rate, policy_extra=EXTRA[family], coefficients=own)


def test_every_family_that_a_policy_can_sign_is_asked_for_here() -> None:
    assert set(BUILTIN) == set(EXTRA) and {"gaussian"} == {name for name in BUILTIN if DEVICE in TABLE[name].generators}


@pytest.mark.parametrize("family", BUILTIN)
def test_a_family_is_drawn_where_the_run_says_or_refused_by_name_before_anything_is_admitted_drawn_or_charged(
    family: str, tmp_path
) -> None:
    world = world_of(family, tmp_path)
    before = sorted(path.name for path in world.root.rglob("*"))
    if DEVICE in TABLE[family].generators:
        trainer = Trainer(world, noise_generator="device").begin()
        assert isinstance(trainer.private.prepared.attempt.streams.noise, DeviceGaussian)
        trainer.close()
        return
    with pytest.raises(ConfigError) as refused:
        PrivateTraining.open(world.policy, world.corpus, **opening(world.ledger, noise_generator="device"))
    assert refused.value.code == "NOISE_GENERATOR" and f"family {family!r}" in refused.value.sentence
    assert "leave noise_generator at 'host'" in refused.value.sentence and "(on a device: gaussian)" in refused.value.sentence
    assert sorted(path.name for path in world.root.rglob("*")) == before, "no ledger, no key, no inbox"


@pytest.mark.parametrize("family", [name for name in BUILTIN if DEVICE not in TABLE[name].generators])
def test_a_policy_of_a_family_that_is_refused_on_the_device_opens_with_noise_of_the_processor(family: str, tmp_path) -> None:
    """The control: it is the generator that is refused, and not the policy."""
    world = world_of(family, tmp_path)
    with PrivateTraining.open(world.policy, world.corpus, **opening(world.ledger), progress=False) as private:
        assert private.policy.mechanism.name == family and private.opened.gate.admitted


@pytest.mark.parametrize("family", [name for name in BUILTIN if DEVICE not in TABLE[name].generators])
def test_nobody_who_skips_open_gets_noise_of_the_processor_in_the_place_of_the_devices(family: str) -> None:
    with pytest.raises(Exception, match=f"noise of family '{family}' is drawn on host, not on 'device'") as refused:
        mechanism_of(family, Source(bytes(16), 0, bytes(32), bits=20, generator=DEVICE))
    assert refused.value.code == "NOISE_FAMILY"


@pytest.mark.parametrize("family", [name for name in BUILTIN if DEVICE in TABLE[name].generators])
def test_noise_of_an_address_does_not_hang_on_the_parts_or_the_turns_in_which_it_is_drawn(family: str, monkeypatch) -> None:
    """A device takes other numbers of blocks at a time than a processor; bits are those of the address."""

    def released(blocks: int, parts: list[int]) -> torch.Tensor:
        monkeypatch.setitem(device.BLOCKS, "cpu", blocks)
        mechanism = mechanism_of(family, Source(bytes(16), 0, bytes(range(32)), bits=32, generator=DEVICE))
        total, place = torch.linspace(-2.0, 2.0, 3001, dtype=torch.float64), 0
        for size in parts:
            mechanism.release_(total[place : place + size], 0.7, 3.0, step=2, lane=1, offset=place)
            place += size
        return total

    whole = released(1 << 15, [3001])
    assert torch.equal(whole, released(16, [3001])) and torch.equal(whole, released(device.MOST_BLOCKS, [5, 1016, 1980]))
    assert not torch.equal(whole, torch.linspace(-2.0, 2.0, 3001, dtype=torch.float64) / 3.0)
    assert HOST in TABLE[family].generators


INJECTIONS = {
    "scheduled": ("", 1),
    "per_microbatch": ('noise = { injection = "per_microbatch", microbatches = 3 }\n', 3),
    "per_sample": ('disclosure = "occurrences_public"\nnoise = { injection = "per_sample" }\n', 1),
}
"""What a policy says, by injection, and how many draws make up the noise of a release."""


@pytest.mark.one_in(9)
@pytest.mark.parametrize("injection", INJECTIONS)
def test_every_injection_of_gaussian_noise_is_drawn_on_the_device(injection: str, tmp_path, monkeypatch) -> None:
    text, draws = INJECTIONS[injection]
    release, seen = DeviceGaussian.release_, []

    def listening(self: DeviceGaussian, total: torch.Tensor, std: float, normalizer: float, **where) -> torch.Tensor:
        seen.append(where["draws"])
        return release(self, total, std, normalizer, **where)

    monkeypatch.setattr(DeviceGaussian, "release_", listening)
    world = make_world(tmp_path, steps=1, policy_extra=text)
    trainer = Trainer(world, noise_generator="device", insecure_test_key=bytes(32))  # who is drawn is fixed, too
    trainer.run()
    assert trainer.private.policy.noise_injection == injection
    releases = len(trainer.private.prepared.router.tensors)
    assert set(seen) == {draws} and (len(seen) == releases or injection == "per_sample")  # where nobody was drawn is no noise
    assert all(bool(parameter.isfinite().all()) for parameter in trainer.model.parameters())
    trainer.close()
