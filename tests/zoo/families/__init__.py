"""Every family, by kind; one list that names nothing twice."""

from tests.zoo.families.adapters import ADAPTERS
from tests.zoo.families.decoders import DECODERS
from tests.zoo.families.encoders import ENCODERS
from tests.zoo.families.experts import MIXTURES, STATE_SPACES
from tests.zoo.families.heads import HEADS
from tests.zoo.families.plain import PLAIN
from tests.zoo.families.series import SERIES
from tests.zoo.families.several import SEVERAL
from tests.zoo.families.sound import SOUNDS
from tests.zoo.families.translators import TRANSLATORS
from tests.zoo.families.vision import PICTURES, SCENES
from tests.zoo.family import Family, named

ZOO: dict[str, Family] = named(
    (
        *ENCODERS,
        *DECODERS,
        *MIXTURES,
        *STATE_SPACES,
        *TRANSLATORS,
        *HEADS,
        *PICTURES,
        *SCENES,
        *SOUNDS,
        *SEVERAL,
        *SERIES,
        *PLAIN,
        *ADAPTERS,
    )
)
"""Families by name, in the order in which the documents list them."""
