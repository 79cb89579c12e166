"""Every story, in the order in which `python -m tests.frozen --update` tells them."""

from tests.frozen.stories.accounting import ACCOUNT, CALIBRATE
from tests.frozen.stories.attest import ATTEST
from tests.frozen.stories.auditing import AUDITING, RELEASE
from tests.frozen.stories.operating import DROPPING, OPERATING, RETAINING, SERVED
from tests.frozen.stories.reading import READING
from tests.frozen.stories.registry import REGISTRY
from tests.frozen.stories.root import ROOT
from tests.frozen.stories.rules import GATE, PLAN, POLICIES
from tests.frozen.stories.training import DEMO, TRAINING

STORIES = {
    story.group: story
    for story in (
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
        RELEASE,
        TRAINING,
        DEMO,
    )
}
"""By the name of the golden file."""
