"""A run of `dptrain generate`: a folder with texts, their public numbers, and the budget that paid for them.

* `run`: makes the texts, and goes on where an earlier run ended.
* `answering`: answers queries, from what each retrieves of a corpus.
* `purse`: the budget log of a run, its key, and the salt by which ids of references become units of it.
* `setting`: the public numbers in run.json, by which another run is told from this one.
* `texts`: the file of texts, written a whole text at a time.
* `figures`: what a plan costs, and what it would be worth under other relations.
* `models`: loads a model; the one module here that needs torch.
"""

from dptrain.inference.invisibleink.run.answering import Answers
from dptrain.inference.invisibleink.run.figures import figures
from dptrain.inference.invisibleink.run.purse import Purse
from dptrain.inference.invisibleink.run.run import Made, Run
from dptrain.inference.invisibleink.run.setting import Setting
from dptrain.inference.invisibleink.run.texts import Text, Texts

__all__ = ["Answers", "Made", "Purse", "Run", "Setting", "Text", "Texts", "figures"]


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
