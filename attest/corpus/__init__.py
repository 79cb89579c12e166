"""The corpus on disk: data, the attestations beside it, and the signing of both.

* `corpus`: reads data with their attestations, and finds attestations by the content that they claim.
* `records`: cuts files into contributions. `signing`: writes the attestations of a corpus.
* `shards`: cuts a corpus into parts that several processes read.
* `anchor`: the signed record that leads from a content to its contribution in every ledger.
* `digests`: a map from digests to numbers in bounded memory.
"""

from attest.corpus.corpus import Contents, Corpus, Item, open_corpus
from attest.corpus.records import Locator
from attest.corpus.shards import Extent, Shard, ShardNumber
from attest.corpus.signing import SigningTemplate, copy_unique, sign_content, sign_corpus

__all__ = [
    "Contents", "Corpus", "Extent", "Item", "Locator", "Shard", "ShardNumber", "SigningTemplate", "copy_unique", "open_corpus",
    "sign_content", "sign_corpus",
]  # fmt: skip


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
