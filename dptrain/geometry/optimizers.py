"""Optimizers that move LoRA pairs along their tangent space, and all other parameters by an optimizer of the user's choice.

A run hands a pair's release over as a `Tangent`; ``p.grad`` of its factors stays empty. What an optimizer makes of it follows
from released directions and public factors of that pair alone, so nothing mixes pairs (statement A, docs/guarantee.md).
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from dptrain.errors import ConfigError, NotPrivateUse
from dptrain.geometry.lora_tangent import LoraTangent, Tangent, small
from dptrain.geometry.pairs import find_pairs
from dptrain.sandbox.isolation import compose

_MOST = 1e30

Others = torch.optim.Optimizer | Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class TangentOptimizer(torch.optim.Optimizer):
    """Moves pairs by what was released for them, by truncated SVD, and leaves the rest to another optimizer.

    The other one holds every trainable parameter. It moves those that have a gradient: what is no factor of a pair, and the
    factors themselves in steps in which a pair takes plain ones, as where its rank has fallen or nothing is noised.

    ``param_groups`` begins with the group of the pairs and goes on with those of the other optimizer, so that a scheduler
    drives both. State and checkpoints have the form of every optimizer of torch. Step hooks are this optimizer's: the other one
    is stepped without any, so that nothing acts between the check of what was released and its use.

    Args:
        model: the pairs are found in it; see `dptrain.geometry.pairs.find_pairs`.
        others: an optimizer of all trainable parameters, its class, or what makes it of them; with its own learning rate.
        lr: of the pairs, in units of Z = A B^T. weight_decay: part of Z that a step takes away, times ``lr``.
        exact: see `LoraTangent.retract`. options: of the direction.

    Attributes:
        pairs: what it moves. others: the other optimizer. released: the direction of each pair in the step under way, or None.
        stds: the standard deviation of noise in each of these directions.

    Raises:
        ConfigError: code GEOMETRY, the model has no pair that can be trained, options are out of range, or the other optimizer
            lacks a trainable parameter, or moves pairs too.
    """

    def __init__(
        self, model: nn.Module, others: Others, *, lr: float, weight_decay: float, exact: bool, **options: Any
    ) -> None:
        self.pairs = find_pairs(model)
        if not self.pairs:
            raise ConfigError(
                "GEOMETRY",
                "found no LoRA pair with two trainable factors in the model; add one with peft.get_peft_model(model, "
                "LoraConfig(...)) before, or use an optimizer of torch.optim",
            )
        for name, value in (("lr", lr), ("weight_decay", weight_decay)):
            if not 0.0 <= value < float("inf"):
                raise ConfigError("GEOMETRY", f"{name} is {value!r}, expected a finite number from 0 on")
        self.others = _others(model, others)
        self._own: list[dict[str, Any]] = []
        self._alone = False
        self.released: list[Tangent | None] = [None] * len(self.pairs)
        self.stds = [0.0] * len(self.pairs)
        factors = [factor for pair in self.pairs for factor in (pair.A, pair.Bt)]
        defaults = {"lr": lr, "weight_decay": weight_decay, "exact": exact, **options}
        super().__init__([{"params": factors}], defaults)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Returns the group of the pairs, and behind it those of the other optimizer as they are now."""
        return list(self._own) if self._alone else [*self._own, *self.others.param_groups]

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self._own = groups[:1]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group to the other optimizer; that of the pairs is made once."""
        if self._own:
            self.others.add_param_group(param_group)
            return
        self._own = [{**self.defaults, **param_group}]

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes state and the group of the pairs."""
        groups = state.get("param_groups", [])
        super().__setstate__({name: value for name, value in state.items() if name != "param_groups"})
        self._own = list(groups)[:1] or self._own

    def take(self, place: int, direction: Tangent | None, std: float = 0.0) -> None:
        """Takes the direction of a pair for the next step, with the standard deviation of its noise; None for none.

        Raises:
            NotPrivateUse: code GEOMETRY_DIRECTION, it is something else, as a pair of factors, which no noise on Z covers.
        """
        if direction is not None and type(direction) is not Tangent:
            raise NotPrivateUse(
                "GEOMETRY_DIRECTION",
                f"found a {type(direction).__name__} for pair {self.pairs[place].a!r}, expected a Tangent: changes of two "
                "factors show more than noise on their product covers; leave release and step to the run",
            )
        self.released[place], self.stds[place] = direction, std

    @abstractmethod
    def directions(
        self, group: Mapping[str, Any], kept: list[dict[str, Any]], at: LoraTangent, found: Tangent, stds: torch.Tensor
    ) -> Tangent:
        """Makes the steps of a batch of pairs of their released directions, and writes what it keeps.

        Args:
            group: options. kept: states of the pairs, empty before their first step. at: where the pairs are.
            found: what was released, batched. stds: of the noise, (L,).
        """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # none: it would replace what was released
        """Moves every pair that was given a direction, and every parameter that has a gradient.

        Raises:
            NotPrivateUse: code OPTIMIZER_HOOK, the other optimizer has step hooks, which would never run.
        """
        if self.others._optimizer_step_pre_hooks or self.others._optimizer_step_post_hooks:
            raise NotPrivateUse(
                "OPTIMIZER_HOOK",
                f"step hooks were registered on the {type(self.others).__name__} inside {type(self).__name__}, which runs "
                f"none: what they change was checked before; register them on the {type(self).__name__}",
            )
        own = self.param_groups[0]
        for places in self._batches():
            pairs = [self.pairs[place] for place in places]
            parts = [direction for place in places if (direction := self.released[place]) is not None]
            found = Tangent(*(torch.stack([getattr(part, name) for part in parts]) for name in ("X", "Y", "U", "V")))
            factors = (torch.stack([pair.A for pair in pairs]), torch.stack([pair.Bt.mT for pair in pairs]))
            at = LoraTangent(*factors, (found.U, found.V))  # the frames that give the coordinates their meaning
            stds = torch.tensor([self.stds[place] for place in places], dtype=found.X.dtype, device=found.X.device)
            step = self.directions(own, [self.state[pair.A] for pair in pairs], at, found, stds)
            A, B = at.retract(step, own["lr"], decay=own["lr"] * own["weight_decay"], exact=own["exact"])
            for pair, a, b in zip(pairs, A, B, strict=True):
                pair.A.copy_(a)
                pair.Bt.copy_(b.mT)
        step_of = type(self.others).step
        getattr(step_of, "__wrapped__", step_of)(self.others)  # without hooks, which torch's wrapper calls

    def _batches(self) -> Iterator[list[int]]:
        """Yields places of pairs that move as one batch."""
        batches: dict[tuple[object, ...], list[int]] = {}
        for place, pair in enumerate(self.pairs):
            if self.released[place] is not None:
                fresh = not self.state[pair.A]
                batches.setdefault((*pair.kind, fresh), []).append(place)
        yield from batches.values()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets gradients and directions."""
        self.released = [None] * len(self.pairs)
        super().zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Returns state and groups in torch's form: those of the pairs, and behind them those of the other optimizer."""
        self._alone = True
        try:
            own, rest = super().state_dict(), self.others.state_dict()
        finally:
            self._alone = False
        first = 2 * len(self.pairs)
        shifted = [{**group, "params": [first + index for index in group["params"]]} for group in rest["param_groups"]]
        state = {**own["state"], **{first + index: kept for index, kept in rest["state"].items()}}
        return {**own, "state": state, "param_groups": [*own["param_groups"], *shifted]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes up what `state_dict` returned, of the same pairs and the same other optimizer."""
        first = 2 * len(self.pairs)
        own_group, *rest = state_dict["param_groups"]
        unshifted = [{**group, "params": [index - first for index in group["params"]]} for group in rest]
        own = {index: kept for index, kept in state_dict["state"].items() if index < first}
        others = {index - first: kept for index, kept in state_dict["state"].items() if index >= first}
        self.others.load_state_dict({"state": others, "param_groups": unshifted})
        self._alone = True
        try:
            super().load_state_dict({"state": own, "param_groups": [own_group]})
        finally:
            self._alone = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.pairs)} pairs, others={type(self.others).__name__})"


def _others(model: nn.Module, others: Others) -> torch.optim.Optimizer:
    """Returns the optimizer of all trainable parameters of a model."""
    trained = {id(parameter): name for name, parameter in model.named_parameters() if parameter.requires_grad}
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    made = others if isinstance(others, torch.optim.Optimizer) else others(parameters)
    if isinstance(made, TangentOptimizer):
        told = f"others is a {type(made).__name__}, which moves pairs itself; give an optimizer of torch.optim"
        raise ConfigError("GEOMETRY", told)
    held = {id(parameter) for group in made.param_groups for parameter in group["params"]}
    missing = [name for key, name in trained.items() if key not in held]
    if missing:
        raise ConfigError(
            "GEOMETRY",
            f"the {type(made).__name__} in others= lacks {len(missing)} trainable parameters (first: {missing[0]!r}); make "
            "it of all, factors of pairs too, which it moves in plain steps",
        )
    return made


def _batched(kept: Sequence[Mapping[str, Any]], name: str) -> torch.Tensor:
    return torch.stack([one[name] for one in kept])


def _carried(kept: Sequence[Mapping[str, Any]], at: LoraTangent) -> Tangent:
    """Returns the mean direction of a batch of pairs, carried to where they are."""
    before = Tangent(*(_batched(kept, name) for name in ("X", "Y", "U", "V")))
    return at.transport(before, at)


def _keep(kept: Sequence[dict[str, Any]], **values: torch.Tensor) -> None:
    for name, batch in values.items():
        for one, value in zip(kept, batch, strict=True):
            one[name] = value.clone()


class TangentSGD(TangentOptimizer):
    """Moves pairs against their released direction, with momentum that is carried along.

    Args:
        momentum: of the direction, 0 for none. Others as `TangentOptimizer`.
    """

    def __init__(
        self, model: nn.Module, *, others: Others = torch.optim.AdamW, lr: float = 0.1, momentum: float = 0.0,
        weight_decay: float = 0.0, exact: bool = True,
    ) -> None:  # fmt: skip
        if not 0.0 <= momentum < 1.0:
            raise ConfigError("GEOMETRY", f"momentum is {momentum!r}, expected a number from 0 to below 1")
        super().__init__(model, others, lr=lr, weight_decay=weight_decay, exact=exact, momentum=momentum)

    def directions(
        self, group: Mapping[str, Any], kept: list[dict[str, Any]], at: LoraTangent, found: Tangent, stds: torch.Tensor
    ) -> Tangent:
        if not group["momentum"]:
            return found
        mean = found if not kept[0] else _carried(kept, at) * group["momentum"] + found
        _keep(kept, X=mean.X, Y=mean.Y, U=mean.U, V=mean.V)
        return mean


class TangentAdam(TangentOptimizer):
    """Moves pairs by an adaptive direction that no gauge changes, with a floor that knows the noise.

    A mean of released directions is scaled on both sides by the inverse roots of two r x r matrices, the means of X^T X / m and
    of Y^T Y / n, where Y has the part that X carries. Both have tau^2 I as their mean under noise of standard deviation tau
    alone, whatever the factors are, so that one floor is right for every module and gauge.

    Args:
        betas: of the mean and of the two matrices. floor: f; no eigenvalue counts as less than f tau^2.
        debias: take tau^2 off the eigenvalues before (Tang et al. 2024, arXiv:2312.14334, for Adam). eps: added to roots.
        Others as `TangentOptimizer`.
    """

    def __init__(
        self, model: nn.Module, *, others: Others = torch.optim.AdamW, lr: float = 1e-2,
        betas: tuple[float, float] = (0.9, 0.99), floor: float = 0.5, debias: bool = False, eps: float = 1e-8,
        weight_decay: float = 0.0, exact: bool = True,
    ) -> None:  # fmt: skip
        if not (all(0.0 <= beta < 1.0 for beta in betas) and floor >= 0.0 and eps > 0.0):
            told = f"betas {betas}, floor {floor}, eps {eps}; expected betas in [0, 1), floor from 0 on, eps above 0"
            raise ConfigError("GEOMETRY", told)
        options = {"betas": tuple(betas), "floor": floor, "debias": debias, "eps": eps}
        super().__init__(model, others, lr=lr, weight_decay=weight_decay, exact=exact, **options)

    def directions(
        self, group: Mapping[str, Any], kept: list[dict[str, Any]], at: LoraTangent, found: Tangent, stds: torch.Tensor
    ) -> Tangent:
        first, second = group["betas"]
        m, n = found.X.shape[-2], found.Y.shape[-2]
        now = found.X.mT @ found.X / m, found.full.mT @ found.full / n
        if kept[0]:
            mean = _carried(kept, at) * first + found * (1.0 - first)
            turns = _batched(kept, "V").mT @ at.V, _batched(kept, "U").mT @ at.U
            before = (_batched(kept, name) for name in ("C_A", "C_B"))
            C_A, C_B = (
                second * (turn.mT @ C @ turn) + (1.0 - second) * new for C, turn, new in zip(before, turns, now, strict=True)
            )
            steps = _batched(kept, "step") + 1
        else:
            mean, (C_A, C_B) = found * (1.0 - first), (C * (1.0 - second) for C in now)
            steps = torch.ones(len(kept))
        _keep(kept, X=mean.X, Y=mean.Y, U=found.U, V=found.V, C_A=C_A, C_B=C_B, step=steps)
        ages = steps.to(found.X)[:, None, None]
        mean, seen = mean * (1.0 / (1.0 - first**ages)), 1.0 - second**ages
        H_A = mean.X @ _inverse_root(C_A / seen, stds, group)
        H_B = mean.full @ _inverse_root(C_B / seen, stds, group)
        U, V = found.U, found.V
        K_A, K_B = U.mT @ H_A, H_B.mT @ V
        return at.at(H_A + U @ ((K_B - K_A) * 0.5), H_B - V @ K_B.mT)


def _inverse_root(C: torch.Tensor, stds: torch.Tensor, group: Mapping[str, Any]) -> torch.Tensor:
    """Returns max(C - d tau^2 I, f tau^2 I)^(-1/2) of symmetric matrices, (L, r, r), by eigenvalues in float64."""
    wide = torch.nan_to_num(C.to(torch.float64), posinf=_MOST, neginf=-_MOST)  # one pair stops no other
    values, turn = small(torch.linalg.eigh, wide)
    noise = stds.to(torch.float64).square()[:, None]
    raised = torch.maximum(values - noise if group["debias"] else values, group["floor"] * noise).clamp_min(0.0)
    return (turn * (1.0 / (raised.sqrt() + group["eps"]))[:, None, :] @ turn.mT).to(C.dtype)


for _kind in (TangentSGD, TangentAdam):
    compose(_kind, lambda optimizer: optimizer.others)
