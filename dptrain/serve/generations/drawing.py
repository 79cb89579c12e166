"""Computes the tokens of one text from references, in the turns of the scheduler: a second kind of what has a `step`.

A token is private once it is drawn, so it is sent at once. Nothing of the text is kept for another: each has rows, a cache and
entropy of its own.
"""

from collections.abc import Callable

from dptrain.inference.invisibleink.generator import Stream


class Drawing:
    """Computes one text that was paid for, a token at a time; of one thread at a time.

    Guarantee: however the text ends, exactly the tokens whose forward pass never began go back to the references that paid;
    after an error none do. `settle` is what ends it, and nothing is computed behind it.

    Attributes:
        computed: tokens so far. text_tokens: those of them that were drawn. prompt: public length of the prompts.
        finish: why the text ended, None before. require: raises once the text may not go on.
    """

    def __init__(self, text: Stream, prompt: int, require: Callable[[], None]) -> None:
        """``require``: raises once the text may not go on; it is asked before every token."""
        self._text: Stream | None = text
        self.prompt, self.require = prompt, require
        self.computed, self.text_tokens = 0, 0
        self.finish: str | None = None

    @property
    def over(self) -> bool:
        """Tells whether nothing more is computed: a text ends where its last token is drawn."""
        return self.finish is not None

    def step(self) -> str:
        """Draws the next token, and returns the text that it completes, which may be empty. Sets `finish` at the end."""
        text = self._text
        assert text is not None, "a text that ended goes on"
        self.require()
        try:
            found = next(text)
        finally:
            self.computed = text.computed
        self.text_tokens = found.number
        self.finish = text.finish
        return found.text

    def silently(self) -> bool:
        """Returns False: where nobody reads, nothing is computed on, since every token so far was private."""
        return False

    def settle(self) -> None:
        """Ends the text, and gives back what was never computed."""
        if self._text is not None:
            self._text.close()

    def forget(self) -> None:
        """Lets the model, the cache and the rows go."""
        self._text = None
