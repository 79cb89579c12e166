"""The file of a server: what it refuses, by name; and that nothing in it makes an answer cheaper, or noiseless, or unpaid."""

import copy
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dptrain.errors import ConfigError
from dptrain.serve.config import ServeConfig
from dptrain.serve.paying import Releases
from ledger.errors import AccountantError
from tests.worlds.listening import events, exact_delta, spoken
from tests.worlds.servers import CLASSES, ENCRYPTED, running, table


def refused(found: dict[str, Any], code: str, *words: str) -> str:
    with pytest.raises(ConfigError) as error:
        ServeConfig.of(found)
    assert error.value.code == code, error.value
    assert all(word in error.value.sentence for word in words), error.value.sentence
    return error.value.sentence


TABLES = [(), ("server",), ("gate",), ("classes", "plain"), ("budget",), ("budget", "caps", "user"), ("limits",)]


@pytest.mark.parametrize("path", TABLES, ids=".".join)
def test_a_key_that_is_not_known_is_refused_by_its_name(path: tuple[str, ...]) -> None:
    found = copy.deepcopy(table())
    inner = found
    for name in path:
        inner = inner[name]
    inner["unlimited"] = True
    refused(found, "SERVE_KEY", ".".join((*path, "unlimited")))


NEEDED = (
    "server gate classes tokens server.name gate.release gate.keys budget.log budget.key budget.caps classes.plain.artifacts "
    "budget.caps.user.delta"
)


@pytest.mark.parametrize("path", NEEDED.split())
def test_what_has_no_default_is_missed_by_its_name(path: str) -> None:
    found = copy.deepcopy(table())
    inner, *names = found, *path.split(".")
    for name in names[:-1]:
        inner = inner[name]
    del inner[names[-1]]
    refused(found, "SERVE_KEY", path)


WRONG: list[tuple[str, Any]] = [
    ("server.port", "8000"), ("server.port", 65536), ("server.port", True), ("server.streams", 0), ("server.streams", 1.5),
    ("server.waiting", -1), ("server.max_tokens", 0), ("server.body_bytes", 1), ("server.request_seconds", 0),
    ("server.request_seconds", math.inf), ("server.drain_seconds", -1), ("server.name", "Ümlaut"), ("server.threads", 0),
    ("gate.keys", []), ("gate.keys", "ledger.pub"), ("gate.release", 5), ("gate.minimum_size", 0), ("gate.revoked", ["xyz"]),
    ("gate.refresh_seconds", -1), ("gate.require_quorum", 1), ("classes", {}), ("classes", {"A b": {"artifacts": ["base"]}}),
    ("classes.plain.artifacts", []), ("classes.plain.mode", "clear"), ("classes.plain.encrypt", "yes"), ("tokens", 7),
    ("budget.caps", {"group": {"epsilon": 1.0, "delta": 1e-5}}), ("budget.caps.user.epsilon", 0),
    ("budget.caps.user.epsilon", math.inf), ("budget.caps.user.epsilon", "20"), ("budget.caps.user.delta", 0),
    ("budget.caps.user.delta", 1), ("budget.thresholds", [0]), ("budget.thresholds", [101]), ("budget.epoch_seconds", 0),
    ("limits.requests_per_minute", 0), ("limits.adapter_states_per_hour", 0), ("limits.key_sessions", 0),
    ("limits.requests_per_minute", None),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), WRONG, ids=[f"{path}={value}"[:50] for path, value in WRONG])
def test_a_value_of_the_wrong_kind_or_out_of_range_is_refused_by_its_name(path: str, value: Any) -> None:
    found = copy.deepcopy(table())
    inner, *names = found, *path.split(".")
    for name in names[:-1]:
        inner = inner[name]
    inner[names[-1]] = value
    refused(found, "SERVE_VALUE", path.partition(".")[0], names[-1])


def test_relative_paths_start_where_the_file_lies_and_urls_stay(tmp_path: Path) -> None:
    found = ServeConfig.of(table(gate={"granters": ["/etc/g.pub"]}, budget={"log": "b/budget.db"}), tmp_path)
    assert (found.gate.release, found.tokens) == (tmp_path / "release", tmp_path / "tokens.toml")
    assert found.gate.keys == [tmp_path / "ledger.pub"] and found.gate.granters == [Path("/etc/g.pub")]
    assert found.budget is not None and found.budget.log == str(tmp_path / "b/budget.db")
    url = "postgresql://host/base"
    remote = ServeConfig.of(table(budget={"log": url, "state": "marks"}), tmp_path).budget
    assert remote is not None and (remote.log, remote.state) == (url, tmp_path / "marks")


def test_a_file_that_is_not_there_or_no_toml_is_refused(tmp_path: Path) -> None:
    for text in (None, "[server\n", "\xff\xfe"):
        path = tmp_path / "serve.toml"
        if text is not None:
            path.write_bytes(text.encode("latin-1"))
        with pytest.raises(ConfigError, match="SERVE_FILE"):
            ServeConfig.load(path)


def test_encrypt_goes_with_released_alone() -> None:
    for mode in ("plain", "split", "encrypted"):
        classes = {"c": {"artifacts": ["adapter:pub"], "mode": mode, "encrypt": True}}
        refused(table(classes=classes), "SERVE_VALUE", "classes.c.encrypt")


# --- nothing is released in clear, or unpaid ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["released", "split"])
@pytest.mark.parametrize("missing", ["budget", "release"])
def test_no_state_is_released_without_a_budget_and_without_noise(mode: str, missing: str) -> None:
    classes = {"c": {"artifacts": ["adapter:pub"], "mode": mode}}
    refused(table(classes=classes, **{missing: None}), "SERVE_KEY", f"[{missing}]")


LOUD: list[dict[str, Any]] = [
    {}, {"sigma": 0}, {"sigma": 0.0}, {"dp_sigma": 0}, {"sigma": -1.0}, {"sigma": 1e-300}, {"sigma": 5e-324},
    {"sigma": math.nan},
    {"sigma": math.inf}, {"sigma": "0"}, {"sigma": True}, {"sigma": 0.015, "clip": 1.0}, {"sigma": 4.0, "clip": 1e9},
    {"sigma": 4.0, "clip": 0.0}, {"sigma": 4.0, "clip": math.inf}, {"sigma": 4.0, "dp_sensitivity": 1e6}, {"epsilon": 0},
    {"epsilon": math.inf}, {"epsilon": 1e5}, {"epsilon": math.nan}, {"epsilon": True}, {"epsilon": 1.0, "delta": 0},
    {"epsilon": 1.0, "delta": 1.0}, {"epsilon": 1.0, "delta": math.nan}, {"epsilon": 1.0, "adjacency": "none"},
    {"epsilon": 1.0, "adjacency": "zero"}, {"epsilon": 1.0, "noise": False}, {"epsilon": 1.0, "enabled": False},
    {"epsilon": 1.0, "track_budget": False}, {"epsilon": 1.0, "charge": False}, {"epsilon": 1.0, "seed": 1},
    {"epsilon": 1.0, "tokens": 1}, {"epsilon": 1.0, "clip": None}, {"epsilon": 1.0, "space": "clear"},
    {"epsilon": 1.0, "shrink": math.inf}, {"epsilon": 1.0, "shrink": -1.0}, {"epsilon": 1.0, "shrink": math.nan},
    {"epsilon": 1.0, "max_epsilon": math.inf}, {"epsilon": 1.0, "max_epsilon": "no"}, {"preset": "none"}, {"preset": None},
    {"preset": "published", "sigma": 0.1}, {"preset": "published", "dp_sigma": 0}, {"preset": "published", "clip": 100.0},
    {"preset": "published", "dp_epsilon": 8.0}, {"preset": "published", "calibration": "classical"},
    {"epsilon": 8.0, "calibration": "classical"}, {"epsilon": 1.0, "dp_epsilon": 1.0}, {"epsilon": 3.0, "max_epsilon": 2.0},
    {"epsilon": 0.5, "calibration": "classical"}, {"preset": "published", "max_epsilon": 50.0},
    {"sigma": 4.0, "max_epsilon": 50.0},
]  # fmt: skip


@pytest.mark.parametrize("release", LOUD, ids=lambda each: "-".join(f"{k}={v}" for k, v in each.items()) or "none")
def test_no_option_releases_in_clear_or_with_noise_in_name_alone_or_is_not_heeded(release: dict[str, Any]) -> None:
    with pytest.raises((ConfigError, AccountantError)):
        ServeConfig.of(table(release=release, budget={"caps": {"user": {"epsilon": 10.0, "delta": 1e-5}}}))


QUIET: list[dict[str, Any]] = [
    {"epsilon": 4.0}, {"epsilon": 900.0}, {"sigma": 0.016}, {"sigma": 1e200}, {"epsilon": 1e-3}, {"epsilon": 4.0, "clip": 1e-6},
    {"epsilon": 4.0, "clip": 1e6}, {"sigma": 1.0, "adjacency": "replace_null"}, {"epsilon": 4.0, "shrink": 0.0},
    {"epsilon": 4.0, "space": "rank"}, {"epsilon": 4.0, "max_epsilon": 900.0},
]  # fmt: skip


@pytest.mark.parametrize("release", QUIET, ids=lambda each: "-".join(f"{k}={v}" for k, v in each.items()))
def test_whatever_the_file_says_each_release_has_noise_and_costs_at_least_what_that_is_worth(release: dict[str, Any]) -> None:
    made = Releases(ServeConfig.of(table(release=release)))
    for tokens in (1, 7, 64):
        worth = made.of(tokens, None).worth
        apart = (2 if worth.adjacency == "replace_one" else 1) * worth.clip / worth.sigma
        assert 0 < apart <= 128 and worth.releases == tokens
        assert worth.nano_rho >= 1 and worth.nano_rho >= apart**2 / 2 * 1e9 * (1 - 1e-12)


# --- the published parameters -------------------------------------------------------------------------------------------

TEN = {"caps": {"user": {"epsilon": 10.0, "delta": 1e-5}}}
PAGE = {"dp_epsilon": 1.0, "dp_delta": 1e-5, "dp_sensitivity": 1.0, "dp_sigma": 4.8448, "max_epsilon": 10.0}
WORTH = "1.6104 for two inputs (replace_one), 0.7510 for one input against none (replace_null), at delta 1e-5"
"""Epsilon of one release, as the exact delta of Balle and Wang says; rounded to three digits: 1.610 and .751."""


@pytest.mark.parametrize(
    "release", [{"preset": "published"}, {"preset": "published", **PAGE}, PAGE], ids=["preset", "both", "page"]
)
def test_the_published_set_says_what_it_is_worth_at_start_and_with_each_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, release: dict[str, Any]
) -> None:
    with running(tmp_path, release=release, budget=TEN) as world:
        starts = [line for line in caplog.messages if "asked for: epsilon 1" in line]
        assert len(starts) == 1 and WORTH in starts[0]
        body = {"model": "released", "prompt": "the boat", "max_tokens": 2}
        whole = world.post("/v1/completions", body).json()["privacy"]["release"]
        by_events = events(world.post("/v1/completions", {**body, "stream": True}).text)
        by_socket = spoken(world, body)
        split = world.post("/v1/split", {"model": "split", "releases": 2}).json()["privacy"]["release"]
        for told in (whole, split, *(each[n]["privacy"]["release"] for each in (by_events, by_socket) for n in (0, -1))):
            assert WORTH in told["one_release"] and "2 releases together: epsilon 2.37" in told["statement"]
            assert (told["sigma"], told["clip"], told["delta"], told["releases"]) == (4.8448, 1.0, 1e-5, 2)
        for model, path in (("released", "/v1/completions"), ("split", "/v1/split")):
            more = {"prompt": "the boat"} if model == "released" else {"releases": 1}
            answer = world.post(path, {"model": model, "epsilon": 1.0, **more})
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "EPSILON")


def test_the_figures_of_the_published_set_are_those_that_an_exact_delta_gives() -> None:
    for apart, epsilon in ((2 / 4.8448, 1.6104), (1 / 4.8448, 0.7510)):
        assert exact_delta(apart, epsilon) <= 1e-5 < exact_delta(apart, epsilon - 2e-4)


def test_the_world_of_these_tests_has_every_mode() -> None:
    found = ServeConfig.of(table(classes=CLASSES | ENCRYPTED))
    assert found.modes == {"plain", "released", "split", "encrypted"}
    assert ServeConfig.of(tomllib.loads('tokens = "t"\n[server]\nname = "a"\n[gate]\nrelease = "r"\nkeys = ["k"]\n'
                                        '[classes.c]\nartifacts = ["base"]\n')).limits.requests_per_minute == 600  # fmt: skip
