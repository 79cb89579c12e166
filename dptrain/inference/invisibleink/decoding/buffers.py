"""Keeps the keys and values of one text in buffers of its whole public length: no token makes them anew.

A buffer is made for one text, behind its prompts, and goes with it: no two texts share one, whether at once or in turn.
"""

from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer


class Kept(DynamicLayer):
    """Holds the keys and values of one layer; those so far are a view of the buffers.

    Attributes:
        whole: the buffers of keys and of values, shape (m, heads, L + T, width).
    """

    def __init__(self, layer: DynamicLayer, room: int) -> None:
        """Takes what a layer holds, which is empty afterwards, into buffers of ``room`` places."""
        super().__init__()
        self._count = layer.keys.shape[2]
        self.dtype, self.device, self.is_initialized = layer.keys.dtype, layer.keys.device, True
        self.whole = tuple(_longer(layer, name, room) for name in ("keys", "values"))
        self.keys, self.values = (one[:, :, : self._count] for one in self.whole)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **more: Any) -> tuple[Any, Any]:
        """Writes the next places, and returns all so far."""
        start = self._count
        self._count += key_states.shape[2]
        for one, new in zip(self.whole, (key_states, value_states), strict=True):
            one[:, :, start : self._count] = new
        self.keys, self.values = (one[:, :, : self._count] for one in self.whole)
        return self.keys, self.values


class Placed(DynamicLayer):
    """Writes at a place that is a tensor, and returns whole buffers: one graph does for every token."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, place: torch.Tensor) -> None:
        super().__init__()
        self.keys, self.values, self._place = keys, values, place
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **more: Any) -> tuple[Any, Any]:
        """Writes one place of the buffers, and returns them whole."""
        for one, new in ((self.keys, key_states), (self.values, value_states)):
            one.index_copy_(2, self._place, new)
        return self.keys, self.values

    def get_seq_length(self) -> Any:
        """Returns how many places are taken: a tensor, since a number would be that of one token for ever."""
        return self._place[0]

    def get_mask_sizes(self, *args: Any, **more: Any) -> tuple[int, int]:
        """Returns the length of a mask, which is that of the buffers, and where it begins."""
        return self.keys.shape[2], 0


def keep(cache: Any, length: int, room: int) -> None:
    """Moves what a cache holds into buffers, a layer at a time, so that no more than one layer is there twice.

    Guarantee: the buffers are new, and zero wherever nothing was written: nothing of another text is in them.

    Args:
        cache: of transformers, behind the prompts. length: of these. room: places of the buffers, L + T.

    Raises:
        ValueError: its layers are others than those of full attention, or hold something else; says what was found.
    """
    layers = getattr(cache, "layers", None)
    if not isinstance(cache, Cache) or not layers or cache.offloading:
        raise ValueError(f"keys and values are in a {type(cache).__name__}, expected a cache with layers")
    if others := sorted({type(layer).__name__ for layer in layers if type(layer) is not DynamicLayer}):
        raise ValueError(f"layers keep {', '.join(others)}, expected keys and values of all tokens (DynamicLayer)")
    for layer in layers:
        if any(one is None or one.dim() != 4 or one.shape[2] != length for one in (layer.keys, layer.values)):
            raise ValueError(f"a layer holds others than the {length} places of the prompts")
    for number in range(len(layers)):
        layers[number] = Kept(layers[number], room)


def placed(buffers: list[torch.Tensor], place: torch.Tensor) -> Cache:
    """Returns a cache over buffers, keys and values of each layer in turn, that writes at one place."""
    pairs = zip(buffers[::2], buffers[1::2], strict=True)
    return Cache(layers=[Placed(keys, values, place) for keys, values in pairs])


def _longer(layer: DynamicLayer, name: str, room: int) -> torch.Tensor:
    short = getattr(layer, name)
    setattr(layer, name, None)  # so that it goes before the next is made
    long = short.new_zeros((*short.shape[:2], room, short.shape[3]))
    long[:, :, : short.shape[2]] = short
    return long
