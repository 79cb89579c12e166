"""All scenarios, by the name of their golden file."""

from tests.frozen.scenarios.accounting import ACCOUNT, CALIBRATE
from tests.frozen.scenarios.attest import ATTEST
from tests.frozen.scenarios.auditing import AUDITING, RELEASE
from tests.frozen.scenarios.generating import GENERATING
from tests.frozen.scenarios.operating import DROPPING, OPERATING, RETAINING, SERVED
from tests.frozen.scenarios.reading import READING
from tests.frozen.scenarios.registry import REGISTRY
from tests.frozen.scenarios.rights import RIGHTS
from tests.frozen.scenarios.root import ROOT
from tests.frozen.scenarios.rules import GATE, PLAN, POLICIES
from tests.frozen.scenarios.serving import SERVING
from tests.frozen.scenarios.texts import TEXTS
from tests.frozen.scenarios.training import CHECK, DEMO, QUICKSTART, TRAINING

SCENARIOS = {
    scenario.group: scenario
    for scenario in (
        ROOT,
        ATTEST,
        REGISTRY,
        POLICIES,
        GATE,
        PLAN,
        ACCOUNT,
        CALIBRATE,
        OPERATING,
        RETAINING,
        DROPPING,
        SERVED,
        AUDITING,
        READING,
        TEXTS,
        RELEASE,
        RIGHTS,
        SERVING,
        TRAINING,
        GENERATING,
        QUICKSTART,
        CHECK,
        DEMO,
    )
}
"""In the order in which `python -m tests.frozen` runs them."""
