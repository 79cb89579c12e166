"""Puts interrupts off while a step is being released, until the optimizer has taken it: a checkpoint can be saved then.

Noise that is correlated between steps has a state, and a release moves it on. So between the begin of a release and the step of
the optimizer there is no pair of weights and noise that belongs together, and an interrupt there would cost all steps since the
last checkpoint. The gap is as long as noise takes to draw; a Ctrl-C waits for it.
"""

import signal
import threading
import time
from types import FrameType
from typing import Any, Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

PATIENCE: Final = 5.0
"""Seconds behind a release for which an interrupt still waits for the optimizer, whose loop may be lost."""


class Interrupts:
    """Holds the handlers of signals while a step is released.

    Guarantee: a signal that is put off reaches the handler that was there, once, when `let` is called. A second one reaches it
    at once, and so does one for which Python has no handler, one that comes `PATIENCE` behind the release or later, and
    whatever is not a signal. Outside of the main thread, which alone gets signals, nothing is done.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._came: list[int] = []
        self._until: float | None = None
        self._own = self._put_off  # one object, to be told from the handlers of others

    def put_off(self) -> None:
        """Puts interrupts off from here on, with no limit of time until `released`."""
        self._until = None
        if self._before or threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler):
                self._before[number] = handler
                signal.signal(number, self._own)

    def released(self) -> None:
        """Says that the release is over, and the optimizer comes next."""
        self._until = time.monotonic() + PATIENCE

    def let(self) -> None:
        """Puts the handlers back, and has them get what came meanwhile."""
        self._restore()
        came, self._came = self._came, []
        for number in came:
            signal.raise_signal(number)

    def _put_off(self, number: int, frame: FrameType | None) -> None:
        late = self._until is not None and time.monotonic() > self._until
        handler = self._before.get(number)
        if late or self._came:
            self._restore()
            self._came = []
            if callable(handler):
                handler(number, frame)
            return
        self._came.append(number)

    def _restore(self) -> None:
        """Puts handlers back, but where others have taken our place since, as a notebook does for every cell."""
        before, self._before = self._before, {}
        if threading.current_thread() is not threading.main_thread():
            return
        for number, handler in before.items():
            if signal.getsignal(number) is self._own:
                signal.signal(number, handler)
