"""Reads the file of a server: `serve.toml`, strict, with relative paths from its directory.

Nothing in it can make an answer cheaper than it is: what a release costs follows from its noise, and caps stand in the budget
log, which never changes them.
"""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo

from dptrain.errors import ConfigError
from dptrain.inference.invisibleink.retrieval import ATTESTED, MOST_QUERY, QUERY
from dptrain.inference.preset import Parameters, parameters_of
from ledger.budget.generation import CONTRIBUTIONS

PLAIN: Final = "plain"
RELEASED: Final = "released"
SPLIT: Final = "split"
ENCRYPTED: Final = "encrypted"


def _from_base(value: Any, info: ValidationInfo) -> Any:
    base = (info.context or {}).get("base", Path())
    return base / value if isinstance(value, str) and value else value


def _place(value: Any, info: ValidationInfo) -> Any:
    return value if isinstance(value, str) and "://" in value else str(_from_base(value, info))


def _task(value: Any, info: ValidationInfo) -> Any:
    return str(_from_base(value, info)) if isinstance(value, str) and value.endswith(".toml") else value


File = Annotated[Path, BeforeValidator(_from_base)]
Location = Annotated[str, BeforeValidator(_place)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9._/-]{1,64}$")]
Share = Annotated[float, Field(gt=0, lt=1)]
Epsilon = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Table(BaseModel):
    """Is the base of all tables: no key that is not known, no number from a string, no value that changes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Listening(Table):
    """Says where the server listens, and how much it takes on: ``[server]``.

    Attributes:
        name: of the server; rights envelopes are for it, and for no other.
        host: address to listen at; put a proxy that speaks TLS before it.
        port: 0 for any that is free.
        threads: threads that compute tokens.
        streams: answers that are computed in turns.
        waiting: requests that wait for a turn; more are refused.
        max_tokens: most tokens of an answer.
        max_prompt: most tokens of a prompt.
        body_bytes: most bytes of a request's body.
        request_seconds: longest time of an answer.
        drain_seconds: how long running answers may take to end when the server stops.
    """

    name: Name
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    threads: Annotated[int, Field(ge=1, le=64)] = 1
    streams: Annotated[int, Field(ge=1, le=4096)] = 32
    waiting: Annotated[int, Field(ge=0, le=4096)] = 64
    max_tokens: Annotated[int, Field(ge=1, le=1 << 20)] = 256
    max_prompt: Annotated[int, Field(ge=1, le=1 << 20)] = 1024
    body_bytes: Annotated[int, Field(ge=1024, le=1 << 24)] = 65536
    request_seconds: Annotated[float, Field(gt=0, le=3600)] = 120.0
    drain_seconds: Annotated[float, Field(ge=0, le=3600)] = 20.0


class Gated(Table):
    """Says what is served, and whose word is taken for it: ``[gate]``.

    Attributes:
        release: directory of the release.
        keys: public keys of its ledger, got by another way than the release.
        base: directory of the base model below the adapters, where the release has adapters alone.
        export: a newer export of the ledger than that in the release.
        refresh_seconds: how often the export is read again; 0 for at SIGHUP alone.
        minimum_size: least leaves of the ledger that the release cites.
        owner_key: public key of the corpus owner whose policy is required.
        require_quorum: ask for cosignatures, as `dptrain release --check --require-quorum`.
        granters: public keys of who signs rights.
        revoked: serials of rights that count no more, in hex; what was revoked stays so until a restart.
    """

    release: File
    keys: Annotated[list[File], Field(min_length=1)]
    base: File | None = None
    export: File | None = None
    refresh_seconds: Annotated[float, Field(ge=0)] = 0.0
    minimum_size: Annotated[int, Field(ge=1)] = 1
    owner_key: File | None = None
    require_quorum: bool = False
    granters: list[File] = []
    revoked: list[Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]] = []


class Generation(Table):
    """Says how a generation class is answered: ``[classes.NAME]``.

    Attributes:
        artifacts: of the release, the most wanted first: the first that the rights admit answers.
        mode: `plain`, the artifact generates; `released`, the server runs the base model, and the adapter reads noised states;
            `split`, the client runs the base model and sends noised states; `encrypted`, it sends encrypted ones.
        encrypt: with `released`, the noised state goes to the adapter under encryption too.
    """

    artifacts: Annotated[list[str], Field(min_length=1)]
    mode: Literal["plain", "released", "split", "encrypted"] = PLAIN
    encrypt: bool = False


class Attested(Table):
    """Says which contributions are the references of a generation: ``[generations.NAME.attested]``.

    Attributes:
        policy: signed policy of the corpus.
        owner_key: public key of who signed it.
        registry: of the contributors.
        class_: of the policy; its generation rule has batch, clip norm, temperature, tokens and top_k.
        corpus: data with attestations beside it; contributions that were signed to generate are taken, and no others.
        withdrawals: folder of signed withdrawals, as `attest withdraw` writes them; one beside the log (`LOG.withdrawals`) is
            read too.
        by_data_class: a text takes references of one data class alone, which is a label of the task.
    """

    policy: File
    owner_key: File
    registry: File
    class_: Annotated[str, Field(alias="class", pattern=r"^[a-z0-9._/-]{1,64}$")]
    corpus: Annotated[list[File], Field(min_length=1)]
    withdrawals: File | None = None
    by_data_class: bool = False


class FromReferences(Table):
    """Says how texts are generated from private references: ``[generations.NAME]``.

    Attributes:
        task: name of one that comes along, or a file `.toml`.
        artifact: of the release, which generates; rights have to admit it, as a class.
        delta: at which epsilons are quoted.
        salt: file with the secret that names references in the budget log and puts them into batches; `--init` makes it. None
            with `retrieve`.
        references: file of the references, a line of JSON with `id` and `text` each; or give `attested`.
        retrieve: each request has a `query`, and its references are the B that answer it best; the corpus pays for each.
        weights: with `retrieve`: public list of weights of words, CSV with the head `word,weight`.
        most_query: with `retrieve`: most characters of a query.
        attested: contributions in their place, with the numbers of their class.
        labels: by label of the task the words that a client may choose from: public lists.
        label_list: public list of the label of each reference; a text then takes references of its own label alone.
        epsilon: of one text, for one reference; or give `clip`.
        clip: clip norm C, in place of `epsilon`.
        batch: B, references of one text.
        tokens: T, most tokens of one text; all are charged beforehand.
        tau: temperature.
        top_k: tokens out of which one is drawn, 0 for the whole vocabulary.
        minibatch: rows that go through the model at a time; all without.
        compile: whether each public shape is compiled before it is tested: faster texts, a later start, needs a C++ compiler.
        recheck_every: texts between two tests that rows are independent.
    """

    task: Annotated[str, Field(min_length=1), BeforeValidator(_task)]
    artifact: str
    delta: Share
    salt: File | None = None
    references: File | None = None
    retrieve: bool = False
    weights: File | None = None
    most_query: Annotated[int, Field(ge=1, le=MOST_QUERY)] = 512
    attested: Attested | None = None
    labels: dict[str, Annotated[list[Annotated[str, Field(max_length=200)]], Field(min_length=1, max_length=1000)]] = {}
    label_list: File | None = None
    epsilon: Epsilon | None = None
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    batch: Annotated[int, Field(ge=1, le=CONTRIBUTIONS)] | None = None
    tokens: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    tau: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    top_k: Annotated[int, Field(ge=0, le=1 << 20)] = 50
    minibatch: Annotated[int, Field(ge=1, le=65536)] | None = None
    compile: bool = False
    recheck_every: Annotated[int, Field(ge=1, le=1 << 20)] = 256

    @property
    def artifacts(self) -> list[str]:
        """Artifacts that may answer, as a generation class has them."""
        return [self.artifact]

    def problems(self, name: str) -> Iterator[str]:
        """Yields what does not fit together, by its name."""
        if (self.references is None) is (self.attested is None):
            yield f"generations.{name} has references or attested, one of the two: say where its references come from"
        numbers = ("epsilon", "clip", "batch", "tokens", "tau", "top_k")
        yield from self._problems_of_queries(name)
        if self.attested is not None:
            for key in (*numbers, "label_list"):
                if key in self.model_fields_set:
                    where = "the signed data class" if key == "label_list" else f"the rule of class {self.attested.class_}"
                    yield f"generations.{name}.{key} is that of {where}, which contributors signed; leave it out"
        else:
            if (self.epsilon is None) is (self.clip is None):
                yield f"generations.{name} has epsilon or clip, one of the two: the other follows from it"
            for key in ("batch", "tokens"):
                if getattr(self, key) is None:
                    yield f"generations.{name}.{key} is not set: it is public, and never taken from references; give it"
        for label, words in self.labels.items():
            if len(set(words)) != len(words):
                yield f"generations.{name}.labels.{label} has a word twice; give each once"


    def _problems_of_queries(self, name: str) -> Iterator[str]:
        if not self.retrieve:
            for key in ("weights", "most_query"):
                if key in self.model_fields_set:
                    yield f"generations.{name}.{key} goes with retrieve = true: else nothing is retrieved"
            return
        if self.attested is not None:
            yield f"generations.{name} retrieves: {ATTESTED}"
        if self.label_list is not None:
            sentence = "a query takes its references from the whole corpus, and labels form batches"
            yield f"generations.{name}.label_list: {sentence}; leave it out"
        if self.compile:
            sentence = "a step is compiled for each length of a query, which a request would wait for"
            yield f"generations.{name}.compile: {sentence}; leave it out"
        if QUERY in self.labels:
            yield f"generations.{name}.labels.{QUERY} is the query of a request, which has no list; leave it out"


class CapTable(Table):
    """Caps a kind of unit."""

    epsilon: Epsilon
    delta: Share


class Budgeted(Table):
    """Says where the budget is kept: ``[budget]``.

    Attributes:
        log: file on a local disk, or a `postgresql://` URL.
        key: private key that signs the log; `--init` makes it, and its public half beside it.
        state: directory of the mark of a log on a server.
        caps: by kind of unit, `user`, `corpus`, `session`, `contribution`, an epsilon and a delta; they stay those of `--init`.
        thresholds: percentages of a cap (of its rho) that the privacy officer is told of; likewise.
        webhook: URL that takes the notices; without it they are warnings of the log `dptrain.serve`.
        epoch_seconds: how often the log is signed.
        earlier: ledgers, or exports, of earlier runs over the corpus of `attested` references: what these spent there counts in
            limits over all runs; they stay those of `--init`.
        earlier_keys: public keys of earlier exports.
    """

    log: Location
    key: File
    state: File | None = None
    caps: dict[Literal["user", "corpus", "session", "contribution"], CapTable]
    thresholds: list[Annotated[int, Field(ge=1, le=100)]] = [50, 80, 100]
    webhook: str | None = None
    epoch_seconds: Annotated[float, Field(gt=0)] = 600.0
    earlier: list[Location] = []
    earlier_keys: list[File] = []


class Limits(Table):
    """Limits what one client may ask: ``[limits]``.

    Attributes:
        requests_per_minute: most requests of one client, and as many looks at its budget besides.
        adapter_states_per_hour: states that an adapter is applied to for one client by `split` and `encrypted`.
        streams_per_client: answers of one client that run or wait at a time.
        key_sessions: clients that have keys for encryption registered at a time.
    """

    requests_per_minute: Annotated[int, Field(ge=1)] = 600
    adapter_states_per_hour: Annotated[int, Field(ge=1)] = 4096
    streams_per_client: Annotated[int, Field(ge=1)] = 8
    key_sessions: Annotated[int, Field(ge=1, le=1024)] = 16


class ServeConfig(Table):
    """Holds the whole file.

    Attributes:
        tokens: file of those who may ask; `--add-token` writes it, and it has hashes alone.
        release: parameters of releases, a table: `epsilon` of one answer, or `sigma` of each state, or `preset = "published"`;
            `delta`, `clip`, `adjacency`, `calibration`; `space`, `state` or `rank`; `shrink`, a public factor; `max_epsilon`
            that an answer may ask for.
    """

    server: Listening
    gate: Gated
    classes: Annotated[dict[Name, Generation], Field(min_length=1)]
    tokens: File
    generations: dict[Name, FromReferences] = {}
    budget: Budgeted | None = None
    release: dict[str, Any] = {}
    limits: Limits = Limits()

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads a file.

        Raises:
            ConfigError: code SERVE_FILE, it cannot be read or is no TOML; SERVE_KEY or SERVE_VALUE, what stands in it.
        """
        path = Path(path)
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError("SERVE_FILE", f"cannot read {path}: {error.strerror or error}; name the server's file") from error
        except ValueError as error:
            raise ConfigError("SERVE_FILE", f"{path} is no TOML: {error}; mend the file") from error
        return cls.of(table, path.parent)

    @classmethod
    def of(cls, table: Mapping[str, Any], base: Path = Path()) -> Self:
        """Reads a table; relative paths start at ``base``. Raises ConfigError: code SERVE_KEY or SERVE_VALUE."""
        try:
            found = cls.model_validate(dict(table), context={"base": base})
        except ValidationError as error:
            raise _first(error) from error
        found.check()
        return found

    @property
    def modes(self) -> set[str]:
        """Modes of the classes."""
        return {each.mode for each in self.classes.values()}

    @property
    def parameters(self) -> Parameters:
        """Returns the parameters of releases, for whom a class needs them.

        Where noise is fixed no request has an epsilon, and ``max_epsilon`` is the published page's name of the cap.
        """
        ours = [key for key in OURS if not (self.fixed and key == "max_epsilon")]
        return parameters_of({key: value for key, value in self.release.items() if key not in ours})

    @property
    def fixed(self) -> bool:
        """Says whether each release has the same noise, in every answer."""
        return not {"sigma", "dp_sigma", "preset"}.isdisjoint(self.release)

    def check(self) -> None:
        """Raises ConfigError: code SERVE_VALUE or SERVE_KEY, tables do not fit together."""
        self._check_generations()
        for name, each in self.classes.items():
            if each.encrypt and each.mode != RELEASED:
                raise ConfigError("SERVE_VALUE", f"classes.{name}.encrypt goes with mode = 'released', got {each.mode!r}")
        if {RELEASED, SPLIT} & self.modes:
            if self.budget is None:
                sentence = "a class releases states and there is no table [budget]: no state is released that nothing paid for"
                raise ConfigError("SERVE_KEY", f"{sentence}; add [budget] with log, key and caps")
            if not self.release:
                sentence = "a class releases states and there is no table [release]"
                raise ConfigError("SERVE_KEY", f"{sentence}; give epsilon, or preset")
            asked, stated = self.parameters, self.budget.caps.get("user")
            if asked.cap is not None and (stated is None or (stated.epsilon, stated.delta) != (asked.cap, asked.delta)):
                told = "none" if stated is None else f"epsilon {stated.epsilon:g}, delta {stated.delta:g}"
                sentence = f"[release] has a cap of epsilon {asked.cap:g} at delta {asked.delta:g}, budget.caps.user is {told}"
                raise ConfigError("SERVE_VALUE", f"{sentence}; what is enforced is the budget's: give both the same")
            if any(each.encrypt for each in self.classes.values()) and self.release.get("space") == "rank":
                sentence = "encrypt takes whole states, and release.space is 'rank'"
                raise ConfigError("SERVE_VALUE", f"{sentence}; leave one of them out")
            for problem in _problems(self.release, asked.epsilon):
                raise ConfigError("SERVE_VALUE", problem)


    def _check_generations(self) -> None:
        """Refuses generations that nothing would pay for, or whose references could pay twice."""
        for name, each in self.generations.items():
            if name in self.classes:
                raise ConfigError("SERVE_VALUE", f"{name} is a class and a generation; rights name both: rename one of them")
            if each.salt is None and not each.retrieve:
                sentence = f"generations.{name}.salt is not set"
                raise ConfigError("SERVE_KEY", f"{sentence}; name a file, which --init makes: batches follow from it")
            for problem in each.problems(name):
                raise ConfigError("SERVE_VALUE", problem)
            if self.budget is None:
                sentence = f"generations.{name} generates from references and there is no table [budget]"
                raise ConfigError("SERVE_KEY", f"{sentence}: add [budget] with log, key and caps.contribution")
            payer, whom = ("corpus", "one document") if each.retrieve else ("contribution", "one reference")
            if payer not in self.budget.caps:
                sentence = f"generations.{name} is paid by {'the corpus' if each.retrieve else 'contributions'}"
                how = f"add what {whom} may spend over all texts"
                raise ConfigError("SERVE_KEY", f"{sentence} and budget.caps.{payer} is not set; {how}")
        if len({each.retrieve for each in self.generations.values()}) > 1:
            sentence = "some generations retrieve and some have batches, and charges of two adjacencies have no sum in one log"
            raise ConfigError("SERVE_VALUE", f"{sentence}: run two servers")
        given = [each for each in self.generations.values() if each.attested is None]
        if len({each.salt for each in given}) > 1:
            sentence = "two generations have salts of their own, and a reference of both would have two budgets"
            raise ConfigError("SERVE_VALUE", f"{sentence}; give one salt to all with references")
        if given and len(given) < len(self.generations):
            sentence = "some generations have references and some attested, and a log is for one of the two"
            raise ConfigError("SERVE_VALUE", f"{sentence}: where rules are signed nobody else pays; run two servers")


OURS: Final = ("space", "shrink", "max_epsilon")
"""Keys of ``[release]`` that are the server's."""


def _problems(release: Mapping[str, Any], epsilon: float | None) -> Iterator[str]:
    if release.get("calibration", "analytic") != "analytic":
        yield f"release.calibration is {release['calibration']!r}; a server calibrates each answer analytically: leave it out"
    if release.get("space", "state") not in ("state", "rank"):
        yield f"release.space is {release['space']!r}, expected 'state' or 'rank'"
    for key, least in (("shrink", 0.0), ("max_epsilon", 0.0)):
        value = release.get(key, 1.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < float("inf"):
            yield f"release.{key} is {value!r}, expected a finite number of at least {least:g}"
        elif key in release and key == "max_epsilon" and epsilon is not None and epsilon > value:
            yield f"release.max_epsilon is {value:g}, below the epsilon {epsilon:g} of an answer that asks for none"


def _first(error: ValidationError) -> ConfigError:
    """Returns the first thing that pydantic found, as this project says it."""
    found = error.errors(include_url=False)[0]
    where = ".".join(map(str, found["loc"]))
    more = f"; {error.error_count() - 1} more" if error.error_count() > 1 else ""
    if found["type"] == "extra_forbidden":
        return ConfigError("SERVE_KEY", f"the server's file has no key {where}; docs/serving.md lists them{more}")
    if found["type"] == "missing":
        return ConfigError("SERVE_KEY", f"the server's file does not set {where}, which has no default{more}")
    return ConfigError("SERVE_VALUE", f"{where} is {found['input']!r:.80}: {found['msg']}{more}")
