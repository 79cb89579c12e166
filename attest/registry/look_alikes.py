"""Names in a registry that a person takes for each other, by the skeleton of `attest.ids`."""

from collections.abc import Iterable

from attest.errors import RegistryRefused
from attest.ids import skeleton
from attest.registry.actions import Action, Enrol
from attest.registry.view import Registry


def look_alikes(names: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Returns the groups of different names that look alike, sorted."""
    groups: dict[str, set[str]] = {}
    for name in names:
        groups.setdefault(skeleton(name), set()).add(name)
    return tuple(sorted(tuple(sorted(group)) for group in groups.values() if len(group) > 1))


def require_unlike(actions: Iterable[Action], registry: Registry) -> None:
    """Refuses enrolments under a new name, or for a new principal, that looks like one that is there.

    The rule binds who writes, and not who reads: a registry with such names, by the will of its owner, is a registry.

    Args:
        actions: What is to be appended, in order.
        registry: The registry before.

    Raises:
        RegistryRefused: Code LOOK_ALIKE, naming both.
    """
    fresh = [action for action in actions if isinstance(action, Enrol)]
    if fresh:
        _require_unlike("contributor", [action.name for action in fresh], (registry.owner, *registry.by_name))
        known = (contributor.principal for contributor in registry.by_name.values())
        _require_unlike("principal", [action.principal for action in fresh], [name for name in known if name is not None])


def _require_unlike(what: str, names: Iterable[object], known: Iterable[str]) -> None:
    there = set(known)
    by_look = {skeleton(name): name for name in there}
    for name in names:
        # What is no text is refused as such, where the action is applied.
        if type(name) is not str or name in there:
            continue
        other = by_look.setdefault(skeleton(name), name)
        if other != name:
            raise RegistryRefused(
                "LOOK_ALIKE",
                f"{what} {ascii(name)[:80]} looks like {ascii(other)[:80]}, and a person takes one for the other: take another "
                "name, or say that it is meant, with --allow-look-alike",
            )
