"""Makes the texts of `dptrain generate`, shows how far it is, and ends between two tokens when a signal comes."""

import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from attest.schema.plain import visible
from dptrain.cli.generate.asked import Asked
from dptrain.cli.generate.shown import made_text
from dptrain.cli.inputs import load_training
from dptrain.cli.options import wrong_if
from dptrain.cli.output import counting
from dptrain.cli.results import Result, Told
from dptrain.errors import ConfigError
from dptrain.inference.invisibleink.pool import Pool
from dptrain.inference.invisibleink.retrieval import Corpus, Retrieval, words_of_queries
from dptrain.inference.invisibleink.run import Answers, Made, Run, Setting
from dptrain.inference.invisibleink.run.purse import payer
from dptrain.inference.invisibleink.run.run import PUBLIC, prepared
from dptrain.inference.invisibleink.run.setting import going_on
from dptrain.programs import quiet_libraries
from dptrain.progress import progress_bar
from ledger.budget.rho import NANO, epsilon_of_rho


def made(asked: Asked) -> Result:
    """Makes the texts, and returns what was made."""
    asked.refuse_wrong_use()
    wrong_if(asked.model is None, "give --model, a folder or a name of the hub; or --plan, which needs none")
    wrong_if(asked.out is None, "give --out, the folder of the run")
    assert asked.out is not None
    plan, task = asked.numbers, asked.prompts
    folder = prepared(asked.out)
    purse = asked.purse(folder)
    salt = bytes(32) if asked.retrieves else purse.salt()
    references = asked.rows(salt)
    if asked.retrieves:
        wrong_if(not asked.asking, "give --queries, or one --query")
        _ = asked.score  # what is wrong is told before a model is loaded
    else:
        asked.batches(references, salt)  # likewise
    models = load_training("dptrain.inference.invisibleink.run.models")
    quiet_libraries()
    with counting(f"loading {asked.model}"):
        model, tokenizer, named = models.load(asked.model, dtype=asked.dtype, device=asked.device)
    from dptrain.inference.invisibleink import InvisibleInk

    ink = InvisibleInk(model, tokenizer, task, plan, minibatch=asked.minibatch, compile=asked.compile)
    spent = asked.spent(purse.cites())
    previous = () if spent is None else spent.previous
    with purse.open(plan, references, salt, epsilon=asked.epsilon, previous=previous) as log:
        withdrawing = asked.withdrawing(log, references)
        enter = _nothing if withdrawing is None else withdrawing.enter
        enter()
        references = going_on(folder, purse.admit(log, references, spent))
        setting = Setting.of(
            task, plan, references, task_name=asked.task, model=named, words=asked.words,
            budget={"name": purse.log.shown, "log_key": log.header.log_vkey},
            score=asked.score.digest if asked.retrieves else None,
        )  # fmt: skip
        if asked.retrieves:
            corpus = Corpus(Retrieval(references, asked.score), plan, log)
            with Answers(folder, setting, corpus, purse) as run, _signals() as signals:
                if asked.compile:
                    _compile(ink, _words_of_queries(run, asked), asked)
                found, export, left = _answers(run, ink, asked, signals), run.finish(), corpus.left()
        else:
            with Run(folder, setting, Pool(references, plan, log, salt), purse, enter) as run, _signals() as signals:
                if asked.compile:
                    _compile(ink, _words_of_labels(run, asked), asked)
                found, export = _texts(run, ink, asked, signals), run.finish()
        cap = log.header.cap(payer(plan)) or 0
    rule = None if references.rule is None else references.rule.generation
    cap = cap if rule is None else min(cap, rule.max_rho_nano)
    data: dict[str, Any] = {
        "out": str(folder),
        "texts": found.texts,
        "new": found.new,
        "lost": found.lost,
        "tokens": found.tokens,
        "exhausted": found.exhausted,
        "stopped": found.stopped,
        "epsilon": plan.epsilon,
        "epsilon_cap": epsilon_of_rho(cap / NANO, plan.delta),
        "delta": plan.delta,
        "guarantee": ink.privacy,
        "references": len(references),
        "gone": len(references.gone),
        "refused": dict(references.refused),
        "budget": purse.log.shown,
        "cautions": asked.cautions(references),
        "export": None if export is None else str(export),
        "key": str(folder / PUBLIC),
        "verify": None if export is None else f"dptrain ledger verify {export} --key {folder / PUBLIC}{asked.brought()}",
    }
    if asked.retrieves:
        data |= {"queries": len(asked.asking), "unanswered": len(run.unanswered(asked.asking)), "queries_left": left}
    short = found.exhausted and (asked.retrieves or asked.texts is not None or asked.one or not found.texts)
    return Told(data, made_text(data), signals.code if found.stopped else int(short))


def _compile(ink: Any, words: Iterable[dict[str, str]], asked: Asked) -> None:
    """Compiles and tests the step for each public length of the texts to come, which would else happen within the first."""
    from dptrain.inference.invisibleink.rows import Prompts

    lengths = {Prompts(ink.tokenizer, asked.prompts, one).length: one for one in words}
    for number, one in enumerate(lengths.values(), 1):
        with counting(f"compiling step {number} of {len(lengths)}, which may take minutes, and testing its rows"):
            ink.check(one)


def _words_of_labels(run: Run, asked: Asked) -> Iterator[dict[str, str]]:
    """Yields the public words of each label of which a text is to come."""
    for label in run.pool.sizes if asked.texts is None or run.texts_of(asked.label) < asked.texts else ():
        if asked.label in (None, label) and run.pool.left(label):
            yield asked.prompts.words(label, asked.words)


def _words_of_queries(run: Answers, asked: Asked) -> Iterator[dict[str, str]]:
    """Yields those of each query that has no text yet, as long as the corpus can pay."""
    given = words_of_queries(asked.prompts, asked.asking, asked.words)
    for one in run.unanswered(asked.asking)[: 1 if asked.one else None] if run.pool.left() != 0 else ():
        yield given[one]


def _nothing() -> int:
    return 0


def _texts(run: Run, ink: Any, asked: Asked, signals: "_Signals") -> Made:
    """Makes as many texts as were asked for, with a bar, or with the text itself as it comes."""
    there = run.texts_of(asked.label)
    texts = there + 1 if asked.one else asked.texts
    if asked.texts is not None and not run.texts.begun:
        labels = [asked.label] if asked.label is not None else list(run.pool.sizes)
        most = sum(run.pool.left(label) for label in labels)
        if asked.texts > most:
            raise ConfigError("TEXTS", f"{asked.texts} texts were asked for, the budget holds {most} at most; see --plan")
    how: dict[str, Any] = {"texts": texts, "label": asked.label, "words": asked.words, "stop": signals.came}
    if asked.one and not asked.json:
        return _as_it_comes(asked, lambda piece: run.generate(ink, **how, piece=piece))
    total = sum(run.pool.sizes.values()) if texts is None else texts
    with progress_bar("texts", lambda: total) as progress:
        return run.generate(ink, **how, told=progress)


def _answers(run: Answers, ink: Any, asked: Asked, signals: "_Signals") -> Made:
    """Answers the queries that are open, with a bar; one that was asked alone is shown as it comes."""
    most = 1 if asked.one else None
    how: dict[str, Any] = {"words": asked.words, "most": most, "stop": signals.came}
    if (asked.one or asked.query is not None) and not asked.json:
        return _as_it_comes(asked, lambda piece: run.answer(ink, asked.asking, **how, piece=piece))
    open_ = len(run.unanswered(asked.asking)[:most])
    total = run.texts.whole + open_
    with progress_bar("texts", lambda: total) as progress:
        return run.answer(ink, asked.asking, **how, told=progress)


def _as_it_comes(asked: Asked, make: Callable[[Callable[[str], None]], Made]) -> Made:
    """Shows a text while it is made, with its opening words."""
    begun: list[str] = []

    def shown(piece: str) -> None:
        _shown(piece if begun else asked.prompts.opening + piece)
        begun.append(piece)

    found = make(shown)
    print("\n" * bool(found.new), end="", flush=True)
    return found


def _shown(piece: str) -> None:
    """Prints a piece of a text: nothing in it moves the cursor."""
    sys.stdout.write(visible(piece, lines=True))
    sys.stdout.flush()


@dataclass
class _Signals:
    """Remembers that a signal came, as an exit code; what is under way looks here between two tokens."""

    code: int = 0

    def came(self) -> bool:
        return self.code != 0


@contextmanager
def _signals() -> Iterator[_Signals]:
    """Takes Ctrl-C and a request to end until the end; the same signal a second time ends the program at once."""
    found = _Signals()

    def note(number: int, frame: object) -> None:
        found.code = 128 + number
        signal.signal(number, before[number])

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield found
    finally:
        for number, old in before.items():
            signal.signal(number, old)
