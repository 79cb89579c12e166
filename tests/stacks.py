"""Random stacks of layers and random depths over them, for tests of blocks."""

from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from attest.policy import DepthRule
from attest.schedule.stack import EMBEDDINGS, HEAD, NO_TOWER, Division, Stack, StackTensor, Tower

MASKS = st.none() | st.sets(st.integers(0, 5), min_size=1).map(lambda found: tuple(sorted(found)))
ENDS = st.none() | st.booleans()


@st.composite
def depths(draw) -> DepthRule:
    form = draw(st.sampled_from(["band", "band", "layers", "set", "adapter"]))
    if form == "adapter":
        return DepthRule(adapter=draw(st.sampled_from(["one", "two"])))
    if form == "set":
        words = st.sampled_from(["*", "a.layers.*", "layers.[0-2].*", "*.[!w]*", "?eft.*", "*weight", "embed*", "[a-b].*.0.*"])
        return DepthRule(patterns=tuple(draw(st.sets(words, min_size=1))))
    more: dict[str, Any] = {"embeddings": draw(ENDS), "head": draw(ENDS), "heads": draw(MASKS), "experts": draw(MASKS)}
    if form == "layers":
        return DepthRule(layers=tuple(sorted(draw(st.sets(st.integers(0, 4), min_size=1)))), **more)
    low, high = sorted(draw(st.tuples(st.integers(0, 7), st.integers(8, 12))))
    return DepthRule(band=(Fraction(low, 12), Fraction(high, 12)), **more)


@st.composite
def divisions(draw) -> Division:
    count = draw(st.sampled_from([2, 4, 6]))
    kind = draw(st.sampled_from(["heads", "experts"]))
    form = draw(st.sampled_from(["each", "pairs", "fused", "all", "one", "nobody"]))
    each = tuple((o, o + 1, 1) for o in range(count))
    pairs = tuple((o, o + 2, 1) for o in range(0, count, 2))
    owners = {
        "each": each,
        "pairs": pairs,
        "fused": tuple(sorted([*each, *((first, stop, 2) for first, stop, _ in pairs if stop - first > 1)])),
        "all": ((0, count, 1),),
        "one": ((1, 2, 1),),
        "nobody": (),
    }[form]
    return Division(kind, count, owners)


@st.composite
def stacks(draw) -> Stack:
    single = draw(st.booleans())
    if single:
        towers = (Tower(NO_TOWER, "", tuple(f"layers.{k}" for k in range(draw(st.integers(1, 5))))),)
    else:
        towers = tuple(
            Tower(name, name, tuple(f"{name}.layers.{k}" for k in range(draw(st.integers(1, 3))))) for name in ("b", "a")
        )
    found = []
    for number in range(draw(st.integers(1, 8))):
        tower = draw(st.sampled_from(towers))
        adapter = draw(st.sampled_from([None, None, None, "one", "two"]))
        names, places = [], set()
        for alias in range(draw(st.sampled_from([1, 1, 1, 2]))):
            if draw(st.booleans()):
                place = draw(st.integers(0, len(tower.layers) - 1))
                names.append(f"{tower.layers[place]}.part{number}.{draw(st.sampled_from(['weight', 'bias']))}{alias}")
                places.add((tower.name, place))
            else:
                names.append(f"left.embed{number}.{alias}")
                ends = draw(st.sampled_from([(EMBEDDINGS,), (HEAD,), (EMBEDDINGS, HEAD)]))
                places.update((tower.name if alias else NO_TOWER, end) for end in ends)
        if adapter is not None and draw(st.booleans()):
            places.update((tower.name, place) for place in range(len(tower.layers)))
        own = tuple(draw(st.lists(divisions(), max_size=2)))
        trained = draw(st.sampled_from([True, True, True, False]))
        found.append(
            StackTensor(tuple(sorted(names)), 720 * draw(st.integers(1, 3)), tuple(sorted(places)), adapter, own, trained)
        )
    return Stack(towers, tuple(sorted(found, key=lambda tensor: tensor.names)))
