"""What a server tells of references and texts: counts by generation, and nothing of any of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.worlds.listening import asking, listening, logged, spoken, until
from tests.worlds.servers import Running
from tests.worlds.texts import REFERENCES, TOKENS, batches, tell, telling

SECRETS = ["quokka", "zanzibar", "ophelia", *(text for text in REFERENCES if len(text) > 6)]


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, str, list[str]]]:
    """A server that told all its texts and more, well and badly: (server, all its log at DEBUG, texts and ids)."""
    with logged() as lines, telling(tmp_path_factory.mktemp("busy")) as world:
        got = happened(world)
        yield world, "\n".join(lines), got


def happened(world: Running) -> list[str]:
    """Asks by every door until nothing is left, and for what there is not; one text fails in the middle."""
    model = world.service.artifacts.model("adapter:pub").model
    answers: list[str] = []

    def fails(module: Any, inputs: Any) -> None:
        raise RuntimeError(f"quokka {REFERENCES[0]}")

    hook = model.register_forward_pre_hook(fails)
    assert tell(world).status_code == 500
    hook.remove()
    with listening(world) as url, asking(world, url) as http:
        body = {"generation": "tales", "labels": {"kind": "orchard"}}
        for stream in (False, True):
            found = http.post("/v1/dp/generations", json={**body, "stream": stream})
            if not stream:
                answers += [found.json()["choices"][0]["text"], found.json()["id"]]
        words: list[dict[str, Any]] = [{"labels": {"kind": "zanzibar"}}, {"labels": {"ophelia": "x"}}]
        for wrong in (*words, {"zanzibar": "quokka"}, {"generation": "ophelia"}):
            assert http.post("/v1/dp/generations", json={**body, **wrong}).status_code in (400, 404)
    pieces = spoken(world, {"generation": "tales", "labels": {"kind": "boat"}}, kind="generation")
    answers.append("".join(piece["choices"][0]["text"] for piece in pieces))
    until(lambda: not world.service.scheduler.busy)
    for _ in range(2):
        assert tell(world).status_code == 403
    return answers


def test_no_log_has_a_reference_a_text_a_label_or_an_id(busy: tuple[Running, str, list[str]]) -> None:
    world, log, got = busy
    assert "/v1/dp/generations 200" in log and "/v1/dp/generations 403" in log
    for secret in (*SECRETS, *got, "orchard", "note-"):
        assert secret not in log, secret
    for batch in batches(world):
        for one in batch:
            assert one.unit.name[:12] not in log


def test_what_numbers_there_are_of_texts_are_counts_by_generation(busy: tuple[Running, str, list[str]]) -> None:
    world, _, got = busy
    text = world.http.get("/metrics", headers=world.headers("op")).text
    for secret in (*SECRETS, *got, "note-", "boat", "orchard"):
        assert secret not in text
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert set(sample.labels) <= {"route", "status", "reason", "model", "kind", "generation", "le"}
            if "generation" in sample.labels and not sample.name.endswith("_created"):
                assert sample.labels == {"generation": "tales"}
                found[sample.name] = sample.value
    # Four texts, one of which failed before its first token; refused were a word, a label, and what was asked behind the last.
    assert found == {
        "dptrain_generated_texts_total": 4.0,
        "dptrain_generated_tokens_total": 3.0 * TOKENS,
        "dptrain_generation_refusals_total": 4.0,
    }
    for name in ("first_token_seconds", "answer_seconds", "gate_and_budget_seconds"):
        assert f"dptrain_{name}_count 0.0" in text  # no time hangs on a reference


def test_the_operators_page_has_one_row_for_a_generation_and_none_for_a_reference(busy: tuple[Running, str, list[str]]) -> None:
    world, _, got = busy
    page = world.http.get("/operator", headers=world.headers("op")).text
    for secret in (*SECRETS, *got, "note-"):
        assert secret not in page
    rows = [" ".join(row.split()) for row in page.split("<tr>") if "<td>tales</td>" in row]
    assert len(rows) == 1 and all(f'<td class="n">{told}</td>' in rows[0] for told in ("0", "3 at δ 1e-05", "4"))
    for batch in batches(world):
        for one in batch:
            assert one.unit.name[:12] not in page


def test_a_client_hears_nothing_of_a_references_budget(busy: tuple[Running, str, list[str]]) -> None:
    world = busy[0]
    name = batches(world)[0][0].unit.name
    assert world.http.get(f"/v1/budgets/contribution:{name}", headers=world.headers()).status_code == 403
    assert world.http.get(f"/v1/budgets/contribution:{name}", headers=world.headers("op")).status_code == 200


def test_no_text_lies_on_the_disk_and_no_reference_but_where_the_operator_put_it(busy: tuple[Running, str, list[str]]) -> None:
    world, _, got = busy
    folder = world.config.tokens.parent
    kept = {"references.jsonl", "tale.toml", "tokens.kept", "tokens.toml"}
    for path in (each for each in Path(folder).rglob("*") if each.is_file() and each.name not in kept):
        content = path.read_bytes()
        for secret in (*SECRETS, *got, "note-"):
            assert secret.encode() not in content, path
