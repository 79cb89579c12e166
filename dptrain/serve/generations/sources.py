"""Reads what a generation of a server's file rests on: its task, its salt, its references, and the numbers of its texts.

Where contributors signed a class with a generation rule, all numbers are the rule's: the file has none, and the log holds every
reservation to it. References of the owner's own are named in the log by their ids under a salt, whose digest stands in the
log's header: with another salt each of them would have a new budget.
"""

import stat
import time

from attest.corpus import open_corpus
from attest.errors import FileRefused
from attest.files import atomic_write, read_limited
from attest.keys import load_public_key
from attest.policy import ClassRule, open_policy
from attest.registry import open_registry
from dptrain.errors import ConfigError
from dptrain.inference.invisibleink.formulas import IN_WORDS
from dptrain.inference.invisibleink.partition import SALT_SIZE, fresh_salt
from dptrain.inference.invisibleink.plan import NAME, Plan, mechanism, pinned, relation
from dptrain.inference.invisibleink.references import References
from dptrain.inference.invisibleink.retrieval import ADJACENCY, QUERY
from dptrain.inference.invisibleink.run.withdrawing import Withdrawing, beside
from dptrain.inference.invisibleink.tasks import Task
from dptrain.record.earlier_runs import Earlier
from dptrain.serve.config import FromReferences, ServeConfig
from ledger.budget import GenerationRule, Header, Mechanism
from ledger.budget.generation import ClassLimit, OverRuns
from ledger.budget.log import BudgetLog
from ledger.replay.earlier_runs import SpentRegistry


def task_of(name: str, table: FromReferences) -> Task:
    """Returns the task of a generation.

    Raises:
        ConfigError: code TASK, as `Task`; SERVE_VALUE, the lists of words are of other labels than the task has.
    """
    task = Task.read(table.task) if table.task.endswith(".toml") else Task.shipped(table.task)
    if table.retrieve and QUERY not in task.labels:
        sentence = f"generations.{name} retrieves, and its task has no place for the query"
        raise ConfigError("SERVE_VALUE", f"{sentence}; write {{{QUERY}}} into both of its prompts, and labels = [{QUERY!r}]")
    if set(table.labels) != set(task.labels) - ({QUERY} if table.retrieve else set()):
        sentence = f"generations.{name}.labels has lists of {sorted(table.labels)!r:.80}"
        raise ConfigError("SERVE_VALUE", f"{sentence}, the task has the labels {sorted(task.labels)!r:.80}; give one of each")
    if parted(table) and len(task.labels) != 1:
        sentence = f"generations.{name} takes the references of one label, and its task has {len(task.labels)}"
        raise ConfigError("SERVE_VALUE", f"{sentence}; give a task of one label, or leave label_list and by_data_class out")
    return task


def parted(table: FromReferences) -> bool:
    """Tells whether a text takes references of its own label alone."""
    return table.label_list is not None or (table.attested is not None and table.attested.by_data_class)


def salt_of(table: FromReferences) -> bytes:
    """Reads a salt; what retrieves needs none, and gets zeros. Raises ConfigError: code SALT, it is gone; `--init` makes it."""
    if table.salt is None:
        return bytes(SALT_SIZE)
    try:
        found = read_limited(table.salt, 4096, "salt")
    except FileRefused as error:
        sentence = f"the salt {table.salt} cannot be read: {error.sentence}"
        raise ConfigError("SALT", f"{sentence}; --init makes one, and a lost one is in no log: put it back") from error
    if stat.S_IMODE(table.salt.stat().st_mode) & 0o077:
        sentence = f"others can read the salt {table.salt}, and tell by it whose reference paid in an export"
        raise ConfigError("SALT", f"{sentence}; chmod 600 it")
    if len(found) < SALT_SIZE:
        raise ConfigError("SALT", f"the salt {table.salt} has {len(found)} bytes, at least {SALT_SIZE} are needed")
    return found


def make_salts(config: ServeConfig) -> None:
    """Makes the salts that the file names, where there are none yet; for nobody but their owner to read."""
    for path in sorted({each.salt for each in config.generations.values() if each.salt is not None}):
        if not path.exists():
            atomic_write(path, fresh_salt(), mode=0o600)


def references_of(table: FromReferences, salt: bytes, *, now: int | None = None) -> References:
    """Reads the references; contributions are judged at the gate for generation.

    Raises:
        ConfigError, FileRefused, and what policy, registry and gate raise: as `References.read` and `References.admitted`.
    """
    if table.attested is None:
        assert table.references is not None
        return References.read(table.references, salt=salt, labels=table.label_list)
    given = table.attested
    owner = load_public_key(given.owner_key)
    return References.admitted(
        [open_corpus(path) for path in given.corpus],
        open_policy(given.policy, owner),
        open_registry(given.registry, owner),
        given.class_,
        now=int(time.time()) if now is None else now,
        by_data_class=given.by_data_class,
    )


def enter_withdrawals(table: FromReferences, references: References, log: BudgetLog) -> None:
    """Enters into the log what contributors or the owner of the corpus withdrew: signed withdrawals in the folder of the file,
    and in that beside the log (`LOG.withdrawals`). References of the owner's own have none.

    Raises:
        ConfigError: as `Withdrawing.enter`.
    """
    if (given := table.attested) is None:
        return
    owner = load_public_key(given.owner_key)
    folders = [*([] if given.withdrawals is None else [given.withdrawals]), *beside(log)]
    how = {"references": references, "classes": {given.class_}, "folders": folders}
    Withdrawing(log, owner, open_registry(given.registry, owner), **how).enter()


def require_rule(references: References, header: Header) -> None:
    """Holds the rule by which contributions were admitted against those of the header.

    Guarantee: returns only if the header has the rule of the very policy that was read, so that contributions are never held to
    an older one than they were read under.

    Raises:
        ConfigError: code RULE, it has not.
    """
    if references.rule is not None and references.signed_rule not in header.generation:
        sentence = f"the policy of class {references.rule.name} was signed anew, and the budget log does not have its rule"
        raise ConfigError("RULE", f"{sentence}; a log keeps its rules: put back the policy of the log, or begin another log")


def plan_of(table: FromReferences, rule: ClassRule | None) -> Plan:
    """Returns the numbers of a text: those of the signed rule where there is one, else those of the file.

    Guarantee: of contributions no number comes from anywhere but the generation rule of their class.

    Raises:
        AccountantError: a number is out of range.
    """
    if rule is not None:
        assert rule.generation is not None
        return Plan.of_rule(rule.generation, delta=table.delta)
    assert table.batch is not None and table.tokens is not None
    k, between = table.top_k or None, adjacency_of(table)
    if table.clip is not None:
        return Plan(table.batch, table.tokens, table.clip, table.delta, table.tau, k, between)
    assert table.epsilon is not None
    how = {"delta": table.delta, "batch": table.batch, "tokens": table.tokens, "tau": table.tau, "k": k, "adjacency": between}
    return Plan.for_epsilon(table.epsilon, **how)


def adjacency_of(table: FromReferences) -> str:
    """Returns between what the epsilon of a generation holds."""
    return ADJACENCY if table.retrieve else "zero-out"


def rules_of(config: ServeConfig) -> list[GenerationRule]:
    """Returns the signed rules by which contributions generate here: what the header of their log has.

    Raises:
        ConfigError: code SERVE_VALUE, two policies have a class of one name. Else as `open_policy` and `GenerationRule.of`.
    """
    found: dict[str, GenerationRule] = {}
    for name, each in config.generations.items():
        if each.attested is not None:
            signed = open_policy(each.attested.policy, load_public_key(each.attested.owner_key))
            rule = GenerationRule.of(signed, each.attested.class_)
            if found.setdefault(rule.name, rule) != rule:
                sentence = f"generations.{name} has a class {rule.name} of another policy than a generation before it"
                raise ConfigError("SERVE_VALUE", f"{sentence}; a log has one class of a name: run two servers")
    return list(found.values())


def spent_of(config: ServeConfig, header: Header | None = None) -> SpentRegistry | None:
    """Returns what contributions spent in the earlier ledgers that the file names; None where it names none.

    Args:
        header: of the log that is there; None of a new one.

    Raises:
        ConfigError: code SERVE_VALUE, the file names earlier ledgers and nobody whose spending would count. Else as
            `Earlier.registry`.
    """
    given = next((each.attested for each in config.generations.values() if each.attested is not None), None)
    earlier = () if config.budget is None else config.budget.earlier
    if config.budget is None or not earlier:
        return None
    if given is None:
        sentence = "budget.earlier names ledgers, and no generation has attested references"
        raise ConfigError("SERVE_VALUE", f"{sentence}: nobody's spending there would count; leave it out")
    cites = None if header is None else () if header.over_runs is None else header.over_runs.previous
    owner = load_public_key(given.owner_key)
    found = Earlier(earlier, keys=config.budget.earlier_keys).registry(cites, owner)
    if header is None:
        found.require_countable(open_policy(given.policy, owner).policy.corpus, int(time.time()))
    return found


def over_runs_of(config: ServeConfig) -> OverRuns | None:
    """Returns what the header of a new log says of limits over all runs; None where the file has no attested references.

    Raises:
        As `spent_of` and `open_policy`.
    """
    spent = spent_of(config)
    if not rules_of(config):
        return None
    return OverRuns(() if spent is None else spent.previous, tuple(limits_of(config)))


def limits_of(config: ServeConfig) -> list[ClassLimit]:
    """Returns what the signed policies let contributions of the classes of a file spend over all runs, by class.

    Raises:
        As `open_policy`.
    """
    found: dict[str, ClassLimit] = {}
    for each in config.generations.values():
        if each.attested is not None:
            signed = open_policy(each.attested.policy, load_public_key(each.attested.owner_key))
            found |= {one.name: one for one in OverRuns.of(signed, [each.attested.class_]).limits}
    return [found[name] for name in sorted(found)]


def mechanism_of(config: ServeConfig) -> Mechanism | None:
    """Returns what the header of a new log says of texts from references; None where the file has no generations.

    Guarantee: a log that `--init` made is opened with the salt under which its references were named, and with no other, so
    that no reference gets a new budget.
    """
    if not config.generations:
        return None
    given = next((each for each in config.generations.values() if each.attested is None), None)
    if given is not None and given.retrieve:  # the corpus pays, and needs no salt
        return mechanism(adjacency=ADJACENCY)
    return mechanism(None if given is None else salt_of(given))


def require_header(config: ServeConfig, header: Header) -> None:
    """Holds the header of a log against the file.

    Raises:
        ConfigError: code MECHANISM, the log is for no texts from references, or for other neighbours; SALT, it was made with
            another salt; RULE, it has other signed rules than the policies of the file, or rules where the file has references
            of the owner's own.
    """
    asked, stated = mechanism_of(config), header.mechanism(NAME)
    if asked is None:
        return
    rules, over = rules_of(config), header.over_runs
    if {*limits_of(config)} - {*(() if over is None else over.limits)}:
        sentence = "the budget log does not have the limits over all runs that the policies of the file have"
        raise ConfigError("RULE", f"{sentence}; begin another log")
    if set(rules) - set(header.generation) or (header.generation and not rules):
        has, asks = (", ".join(rule.name for rule in found) or "none" for found in (header.generation, rules))
        sentence = f"the budget log has the signed rules of {has}, the file asks for {asks}"
        raise ConfigError("RULE", f"{sentence}, or they are of another policy; a log keeps its rules: begin another log")
    if stated is None:
        sentence = f"the budget log has no mechanism {asked.name}, by which texts from references are paid"
        raise ConfigError("MECHANISM", f"{sentence}; it was made before there were generations: begin another log")
    between = adjacency_of(next(iter(config.generations.values())))  # one of all
    if not pinned(relation(between, 1), stated):
        sentence = f"the budget log was not made for charges between {IN_WORDS[between]} ({between}, one record)"
        raise ConfigError("MECHANISM", f"{sentence}, and charges of two kinds have no sum; begin another log")
    named = any(each.attested is None and not each.retrieve for each in config.generations.values())
    if named and stated.parameters not in (asked.parameters, mechanism().parameters):
        sentence = "the budget log names references under another salt, and each would have a new budget"
        raise ConfigError("SALT", f"{sentence}; put the salt back with which the log was made")
