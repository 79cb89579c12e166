"""`dptrain account` and `dptrain calibrate`: figures that no world is needed for."""

from tests.frozen.scenario import Case, Scenario
from tests.frozen.worlds import nothing

_RUN = "--sampling-rate 0.01 --steps 1000 --delta 1e-5"
_FULL = "--sampling-rate 1 --steps 100 --delta 1e-5"

ACCOUNT = Scenario(
    "account",
    nothing,
    [
        Case("a run of one level", f"account --noise-multiplier 1 {_RUN}"),
        Case("of another family", "account --noise-multiplier 4 --sampling-rate 1 --steps 5 --delta 1e-5 --family laplace"),
        Case("of two phases", "account --phase 1.5,1,50 --phase 1,1,50 --delta 1e-5"),
        Case(
            "caps, groups and examples",
            f"account --noise-multiplier 4 {_FULL} --max-occurrences 20 --group-size 3 --examples 2",
        ),
        Case(
            "every accountant beside the other",
            "account --noise-multiplier 2 --sampling-rate 1 --steps 5 --delta 1e-5 --compare",
        ),
        Case("a curve over steps", "account --noise-multiplier 2 --sampling-rate 1 --steps 8 --delta 1e-5 --curve steps"),
        Case("a curve over delta", "account --noise-multiplier 2 --sampling-rate 1 --steps 8 --delta 1e-5 --curve delta"),
        Case(
            "a curve that is drawn",
            "account --noise-multiplier 2 --sampling-rate 1 --steps 8 --delta 1e-5 --curve steps --plot curve.svg",
        ),
        Case("no noise", f"account --noise-multiplier 0 {_RUN}"),
        Case("an accountant that is none", f"account --noise-multiplier 1 {_RUN} --accountant gdp", code=1),
        Case(
            "a delta below what can be computed",
            "account --noise-multiplier 1 --sampling-rate 0.01 --steps 10 --delta 1e-13",
            code=1,
        ),
        Case("no steps", "account --noise-multiplier 1 --sampling-rate 0.01 --delta 1e-5", code=2),
        Case("no delta", "account --noise-multiplier 1", code=2),
    ],
)

CALIBRATE = Scenario(
    "calibrate",
    nothing,
    [
        Case("the least noise", "calibrate --epsilon 0.5 --sampling-rate 0.01 --steps 200 --delta 1e-6"),
        Case("with a clip norm", "calibrate --epsilon 2 --sampling-rate 1 --steps 10 --delta 1e-5 --clip-norm 0.5"),
        Case("the most steps", "calibrate --epsilon 2 --sampling-rate 1 --noise-multiplier 4 --delta 1e-5 --solve steps"),
        Case(
            "the largest rate",
            "calibrate --epsilon 2 --steps 10 --noise-multiplier 1 --delta 1e-5 --solve rate --accountant rdp",
        ),
        Case("expected occurrences", "calibrate --epsilon 2 --occurrences 5 --steps 10 --delta 1e-5 --accountant rdp"),
        Case("public occurrences", "calibrate --epsilon 2 --occurrences 5 --delta 1e-5 --disclosure occurrences_public"),
        Case(
            "the most public occurrences",
            "calibrate --epsilon 2 --noise-multiplier 4 --delta 1e-5 --disclosure occurrences_public --solve occurrences",
        ),
        Case("phases", "calibrate --epsilon 2 --phase 1.5,1,5 --phase 1,1,5 --delta 1e-5"),
        Case("every accountant beside the other", "calibrate --epsilon 2 --sampling-rate 1 --steps 10 --delta 1e-5 --compare"),
        Case("more occurrences than steps", "calibrate --epsilon 2 --occurrences 11 --steps 10 --delta 1e-5", code=1),
        Case(
            "one occurrence spends more",
            "calibrate --epsilon 0.1 --noise-multiplier 1 --delta 1e-5 --disclosure occurrences_public --solve occurrences",
            code=1,
        ),
        Case("options that do not go together", "calibrate --epsilon 2 --phase 1,1,5 --steps 3 --delta 1e-5", code=2),
        Case("no epsilon", "calibrate --delta 1e-5", code=2),
    ],
)
