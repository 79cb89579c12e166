"""Owns ``p.grad``: it holds a private gradient or nothing, at every moment a user can look."""

import enum
import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from dptrain.blocks.shards import local
from dptrain.clipping.fast import PublicSums
from dptrain.engine.interrupts import Interrupts
from dptrain.errors import ConfigError, NotPrivateUse, ResumeRefused, StepOrder, UnsupportedPolicy
from dptrain.geometry.charts import Charts
from dptrain.geometry.lora_tangent import Tangent
from dptrain.geometry.optimizers import TangentOptimizer
from dptrain.noise.mechanism import Independent, Mechanism, Step, initial, kept
from dptrain.noise.normals import TAIL_LANE
from dptrain.parallel.placement import Placement
from dptrain.routing import Router
from dptrain.sandbox.isolation import Isolation, weakness
from dptrain.sandbox.untouched import Remembered, versions
from ledger.leaves import HELD


class Phase(enum.Enum):
    """Where a logical step stands; every transition is checked."""

    IDLE = "between steps"
    DRAWING = "inside the microbatches of a step"
    RELEASED = "private gradients are in p.grad, the optimizer has not stepped"
    STEPPING = "the optimizer steps"
    STEPPED = "the optimizer has stepped"


class PrivateGradients:
    """Releases block sums into ``p.grad`` and lets the optimizer use each release exactly once.

    Guarantee: from construction to :meth:`close`, no parameter of the model takes part in autograd, so ``p.grad`` is written
    here alone; what is written is the output of the mechanism's ``release``, and sums of public gradients added to it. The
    optimizer is refused before a release, twice after one, or when it would see any other gradient. Of a tensor that is split,
    the coordinates that no class may touch have gradient zero, and no step of the optimizer moves them (weight decay would).

    Of a LoRA pair that moves along its tangent space ``p.grad`` stays empty, and what was released is a direction that the
    optimizer holds; no other direction lies there.

    What was released is watched until the optimizer takes it, and parameters are watched from the first release on: whatever
    else writes them, but for `clip_blocks_`, weakens statement A (docs/guarantee.md) by name, or is refused where the policy
    requires A.

    Args:
        normalizer: the public constant that divides noised sums. draws: noise injections per step, fixed by the policy.
        isolation: how statement A stands; one that nobody reads by default.
        placement: where sums are added up and get their noise; one process by default.

    Attributes:
        stds: noise per block of the step under way, by default the schedule's; set by :meth:`use`.
        interrupts: those that wait for the optimizer, where the noise of a step depends on that of others.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        router: Router,
        normalizer: int,
        draws: int = 1,
        isolation: Isolation | None = None,
        placement: Placement | None = None,
    ) -> None:
        self.phase = Phase.IDLE
        self.interrupts = Interrupts()
        self._placement = placement or Placement()
        self._noise: tuple[Mechanism, Any] | None = None
        self._model = model
        self._router = router
        self._normalizer = float(normalizer)
        if draws * len(router.tensors) > TAIL_LANE:
            raise UnsupportedPolicy(
                "ADDRESSES",
                f"noise.microbatches = {draws} over {len(router.tensors)} tensors needs more addresses of noise than the "
                f"{TAIL_LANE} that there are; sign a smaller number",
            )
        self._draws = draws
        self.stds: tuple[float, ...] = tuple(block.std for block in router.schedule.blocks)
        self._released: list[tuple[nn.Parameter, torch.Tensor]] = []
        self._charts, self._optimizer = router.charts, optimizer
        self._coordinates: dict[int, torch.Tensor] = {}
        self._directions: dict[int, Tangent] = {}
        self._stds_told: dict[int, float] = {}
        self._places = _places_of(router.charts, optimizer)
        self._inside = _inside(optimizer)
        self._drop_directions()
        self._untouched = [(t.parameter, t.part) for t in router.schedule.frozen if t.part is not None]
        self._kept: list[torch.Tensor] = []
        self._bound = dict(model.named_parameters(remove_duplicate=False))
        self._trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for parameter in self._trainable:
            parameter.requires_grad_(False)
            parameter.grad = None
        self._before: RemovableHandle = optimizer.register_step_pre_hook(self._before_step)
        self._after: RemovableHandle = optimizer.register_step_post_hook(self._after_step)
        _order(self._after).move_to_end(self._after.id, last=False)
        self._isolation = isolation or Isolation(required=False)
        self._step = self._entered = 0
        self._gradients = Remembered()
        self._scheduled = [local(p) for p in {id(t.parameter): t.parameter for _, t in router.tensors}.values()]
        self._versions = versions(self._scheduled)
        router.attach()

    def use(self, stds: tuple[float, ...]) -> None:
        """Sets the noise per block of the step that begins, which is public; sums are clipped for it, and released under it."""
        if stds != self.stds:
            self._router.sums.use(stds)
            self.stds = stds

    def clear(self) -> None:
        """Drops the gradients of the last step, and watches parameters from here on."""
        for parameter, _ in self._released:
            parameter.grad = None
        self._released = []
        self._drop_directions()
        self._gradients.forget()
        self._versions = versions(self._scheduled)

    def release(
        self, noise: Mechanism, step: int, public: PublicSums | None = None, *, blank: bool = False, wide: bool = True
    ) -> None:
        """Adds the noise of the step, that of ``stds``, to its sums and puts the private gradients into ``p.grad``.

        The sums of public contributions, where there are any, are added to what has been released, after the noise. ``blank``
        releases the noise alone: what was summed may hold what it should not. ``wide``: see `Placement.shares`.

        Raises:
            NotPrivateUse: NO_NOISE, a block without noise, which no private contribution of the step may touch, has a private
                sum; NOISE_LOST, the mechanism returned another tensor than the sum, or did not write it, and nothing of the
                step is left in ``p.grad``.
        """
        self.require_own_parameters()
        state, tensors = self.state_of(noise), self._router.tensors
        unclipped = None if public is None else public.take()
        for share in self._placement.shares(self._router.sums.take(), wide=wide, public=unclipped):
            block, tensor = tensors[share.lane]
            std, total = self.stds[block], share.values
            if blank:
                total.zero_()
            if std > 0.0:
                before = total._version
                where = Step(step, share.lane, std, self._normalizer, self._draws, share.offset, share.size)
                found = noise.release(total, state, where)
                if found is not total or (total.numel() and total._version == before):
                    self.clear()
                    raise NotPrivateUse(
                        "NOISE_LOST",
                        f"{type(noise).__name__}.release returned another tensor than the sum of {tensor.name!r}, or did not "
                        "write it; let it add the noise in place and return the sum (behind what numpy writes, "
                        "torch.autograd.graph.increment_version(clipped_sum) says so)",
                    )
            elif bool((total != 0.0).any()):
                raise NotPrivateUse("NO_NOISE", f"tensor {tensor.name!r} has a sum of private gradients, and no noise hides it")
            if share.public is not None and not blank:
                total.add_(share.public, alpha=1.0 / self._normalizer)
            for lane, value in self._placement.released(share):
                self._put(lane, value)
        for lane, value in self._placement.rest():
            self._put(lane, value)
        self._hand_over()
        self.phase, self._step = Phase.RELEASED, step
        self._remember()
        _order(self._before).move_to_end(self._before.id)

    def begin_noise(self, noise: Mechanism, saved: Mapping[str, torch.Tensor] | None) -> None:
        """Takes the noise of an attempt, from its first step on or from what was saved.

        Raises:
            UnsupportedPolicy: code NOISE_STATE, what it keeps cannot be taken up again.
            ResumeRefused: code NOISE_STATE, what was saved does not fit it.
        """
        if not saved:
            self._noise = noise, initial(noise, (tensor.shape for _, tensor in self._router.tensors))
            return
        take_up: Any = getattr(noise, "load_state_dict", None)
        try:
            if take_up is None:
                raise ValueError(f"{type(noise).__name__} has no load_state_dict")
            self._noise = noise, take_up(saved)
        except ValueError as error:
            raise ResumeRefused("NOISE_STATE", f"the state of the noise does not fit this run: {error}") from error

    @property
    def keeps_noise(self) -> bool:
        """Tells whether the noise of a step may depend on that of others."""
        return self._noise is not None and type(self._noise[0]).state_dict is not Independent.state_dict

    def noise_kept(self) -> Mapping[str, torch.Tensor]:
        """Returns what the noise of the attempt keeps at this rank, as tensors. Raises UnsupportedPolicy: code NOISE_STATE."""
        return {} if self._noise is None else kept(*self._noise)

    def state_of(self, noise: Mechanism) -> Any:
        """Returns what a mechanism keeps from step to step, made once."""
        if self._noise is None or self._noise[0] is not noise:
            self.begin_noise(noise, None)
        assert self._noise is not None
        return self._noise[1]

    def _put(self, lane: int, value: torch.Tensor) -> None:
        """Puts what was released for a tensor into ``p.grad``; the parts of a parameter one after the other, zero elsewhere.

        Coordinates of a pair wait for those of its other factor.
        """
        tensor = self._router.tensors[lane][1]
        parameter = tensor.parameter
        if self._charts.moves(lane):
            self._coordinates[lane] = self._placement.gradient(parameter, value)
            return
        if tensor.part is None:
            parameter.grad = self._placement.gradient(parameter, value)
            self._released.append((parameter, parameter.grad))
            return
        grad = next((grad for own, grad in self._released if own is parameter), None)
        if grad is None:
            parameter.grad = grad = torch.zeros_like(parameter)
            self._released.append((parameter, grad))
        tensor.part.write(grad, value)

    def _drop_directions(self) -> None:
        """Leaves no direction at any pair of the optimizer, also of those that no class may touch."""
        self._directions, self._stds_told = {}, {}
        if isinstance(self._optimizer, TangentOptimizer):
            for place in range(len(self._optimizer.pairs)):
                self._optimizer.take(place, None)

    def _expected(self) -> dict[int, Tangent]:
        """Returns the directions that were released, by their place in the optimizer."""
        return {self._places[number]: direction for number, direction in self._directions.items()}

    def _hand_over(self) -> None:
        """Hands the directions of pairs to the optimizer, projected onto their tangent spaces; their ``p.grad`` stays empty."""
        self._directions = self._charts.directions(self._coordinates)
        self._coordinates = {}
        for number, direction in self._directions.items():
            place, std = self._places[number], self.stds[self._block(number)] / self._normalizer
            self._tangents.take(place, direction, std)
            self._stds_told[place] = std

    def _block(self, number: int) -> int:
        """Returns the block of a pair."""
        return self._router.tensors[self._charts.pairs[number].up][0]

    @property
    def _tangents(self) -> TangentOptimizer:
        assert isinstance(self._optimizer, TangentOptimizer)  # else `refusals.refuse_optimizer` refused the pairs
        return self._optimizer

    def clip_blocks_(self, max_norm: float) -> dict[str, float]:
        """Clips the released gradient of every block by itself, in place: see `PrivateTraining.clip_blocks_`."""
        self.require(Phase.RELEASED, "clip_blocks_() was called")
        if not (isinstance(max_norm, int | float) and math.isfinite(max_norm) and max_norm > 0):
            raise ConfigError("MAX_NORM", f"max_norm is {max_norm!r}, expected a finite number above 0")
        self._require_released()
        self._require_own_gradients()
        pieces = self._pieces()
        norms = {}
        with torch.no_grad():
            for norm, (block, own) in zip(self._norms(pieces), pieces.items(), strict=True):
                factor = (max_norm / norm).clamp(max=1.0)
                torch._foreach_mul_(own, factor.to(own[0].dtype))
                for number in (one for one in self._directions if self._block(one) == block):
                    place = self._places[number]
                    self._stds_told[place] = self._tangents.stds[place] = self._stds_told[place] * float(factor)
                norms[self._router.schedule.blocks[block].name] = norm
        self._remember()
        return {name: float(norm) for name, norm in norms.items()}

    def norm(self) -> float:
        """Returns the norm of all that was released, over all ranks, each of which must ask for it."""
        return float(torch.linalg.vector_norm(self._norms(self._pieces())))

    def _pieces(self) -> dict[int, list[torch.Tensor]]:
        """Returns what was released and lies here, by block."""
        pieces: dict[int, list[torch.Tensor]] = {}
        for number, direction in self._directions.items():
            pieces.setdefault(self._block(number), []).extend([direction.X, direction.Y])
        for lane, (block, tensor) in enumerate(self._router.tensors):
            if self._charts.moves(lane):
                continue
            grad = tensor.parameter.grad
            assert grad is not None  # it is what was released
            pieces.setdefault(block, []).extend([local(grad)] if tensor.part is None else tensor.part.pieces(grad))
        return pieces

    @torch.no_grad()
    def _norms(self, pieces: dict[int, list[torch.Tensor]]) -> torch.Tensor:
        """Returns the norm of every block over all ranks, float64."""
        each = [torch.stack([torch.linalg.vector_norm(piece).double() for piece in own]) for own in pieces.values()]
        return self._placement.over_ranks(torch.stack([one.square().sum() for one in each])).sqrt()

    def require_own_parameters(self) -> None:
        """Takes note if anything but the optimizer wrote a scheduled parameter since it was looked at last.

        Raises:
            NotPrivateUse: code ISOLATION, where the policy requires statement A.
        """
        found = versions(self._scheduled)
        if self._step and found != self._versions:
            self._isolation.weaken(
                f"parameters were written beside the optimizer, after the release of step {self._step}",
                "leave parameters to the optimizer while the run goes on, and put averaged weights into a copy of the model",
            )
        self._versions = found

    def _require_own_gradients(self) -> None:
        """The same for what was released."""
        stds = self._tangents.stds if self._directions else ()
        told = all(stds[place] == std for place, std in self._stds_told.items())
        if self._isolation.held and (not told or self._gradients.changed()):
            self._isolation.weaken(
                f"step {self._step}: gradients were changed after their release",
                "leave p.grad as it is, and clip with private.clip_blocks_(max_norm) if at all",
            )

    def _require_nothing_behind(self, optimizer: torch.optim.Optimizer) -> None:
        """The same for what acts on gradients where nobody looks any more."""
        if next(reversed(_order(self._before))) != self._before.id:
            self._isolation.weaken(
                f"step {self._step}: a hook that was registered after the release runs behind the check of gradients",
                "register step hooks before the last microbatch of a step",
            )
        reason = weakness(optimizer, optimizer)
        if reason == HELD and _inside(optimizer) != self._inside:
            reason = f"step {self._step}: what moves pairs and the rest inside the optimizer was replaced"
        if reason != HELD:
            self._isolation.weaken(reason, "leave the optimizer as it was given to prepare()")
        if any(getattr(optimizer, name, None) is not None for name in ("grad_scale", "found_inf")):
            self._isolation.weaken(
                f"step {self._step}: a loss scaler decides over the gradients of all blocks together",
                "call optimizer.step() without a GradScaler; bfloat16 needs none",
            )

    def _remember(self) -> None:
        """Remembers what was released, as long as there is something to find out."""
        if self._isolation.held:
            moved = (value for one in self._directions.values() for value in (one.X, one.Y, one.U, one.V))
            self._gradients.take([*(local(grad) for _, grad in self._released), *moved])

    def require_detached(self) -> None:
        """Raises if a parameter was given back to autograd, which would fill ``p.grad`` with what is not private."""
        if any(parameter.requires_grad for parameter in self._model.parameters()):
            raise NotPrivateUse(
                "REQUIRES_GRAD",
                "a parameter has requires_grad=True while the run is prepared, so a backward pass would put a raw gradient "
                "into p.grad; leave the flags alone until close()",
            )

    def require_bound(self) -> None:
        """Raises if the model no longer has the parameters, under the names, that it had when it was bound."""
        now = dict(self._model.named_parameters(remove_duplicate=False))
        changed = sorted(name for name in self._bound.keys() | now.keys() if self._bound.get(name) is not now.get(name))
        if changed:
            raise NotPrivateUse(
                "PARAMETER_REPLACED",
                f"{len(changed)} parameters of the model are not those that were prepared (first: {changed[0]!r}): replaced, "
                "added, removed or renamed since, by load_state_dict(assign=True), a resized embedding or a parametrization, "
                "say; the schedule and the optimizer hold the old ones. Change the model before prepare(), and values in place",
            )

    def require(self, wanted: Phase, event: str) -> None:
        """Raises StepOrder unless the step stands where ``event`` belongs."""
        if self.phase is not wanted:
            raise StepOrder(
                "STEP_ORDER",
                f"{event} while {self.phase.value}; expected: {wanted.value}. The order is: for step in steps: "
                "for rows in step: private.backward(losses, rows); then one optimizer.step() per step",
            )

    def close(self) -> None:
        """Gives the parameters back to autograd and removes every hook."""
        self._router.detach()
        self._before.remove()
        self._after.remove()
        self.clear()
        for parameter in self._trainable:
            parameter.requires_grad_(True)

    def _before_step(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        if self.phase is Phase.STEPPING:  # an optimizer that inherits step() and calls it enters twice
            self._entered += 1
        else:
            self.require(Phase.RELEASED, "optimizer.step() was called")
            self._entered = 1
        if (len(args) > 1 and args[1] is not None) or kwargs.get("closure") is not None:
            raise NotPrivateUse(
                "CLOSURE",
                "optimizer.step() was given a closure, which would clear or replace what was released; call it without",
            )
        self.require_detached()
        self._require_released()
        own = {id(parameter) for parameter, _ in self._released}
        if any(p.grad is not None and id(p) not in own for group in optimizer.param_groups for p in group["params"]):
            raise NotPrivateUse(
                "FOREIGN_GRADIENT", "a parameter outside the schedule carries a gradient, which is not private; clear it"
            )
        self._require_own_gradients()
        self._require_nothing_behind(optimizer)
        self.require_own_parameters()
        self._kept = [part.select(parameter.detach()).clone() for parameter, part in self._untouched]
        self.phase = Phase.STEPPING

    def _after_step(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        with torch.no_grad():
            for (parameter, part), kept in zip(self._untouched, self._kept, strict=True):
                part.write(parameter, kept)
            self._placement.share([factor for pair in self._charts.pairs for factor in (pair.A, pair.Bt)])
        self._versions = versions(self._scheduled)
        self._entered -= 1
        if not self._entered:
            self.phase = Phase.STEPPED
            self.interrupts.let()

    def _require_released(self) -> None:
        expected = self._expected()
        held = enumerate(self._optimizer.released if isinstance(self._optimizer, TangentOptimizer) else ())
        moved = any(direction is not expected.get(place) for place, direction in held)
        if moved or any(parameter.grad is not released for parameter, released in self._released):
            raise NotPrivateUse(
                "GRADIENT_REPLACED",
                "p.grad is not the tensor that was released for this step (zero_grad() before step(), or an assignment); "
                "leave it where it is",
            )


def _inside(optimizer: torch.optim.Optimizer) -> tuple[object, ...]:
    """Returns what an optimizer of pairs is made of, to find out whether that was replaced."""
    if not isinstance(optimizer, TangentOptimizer):
        return ()
    return id(optimizer.others), type(optimizer.others), tuple(id(pair) for pair in optimizer.pairs)


def _places_of(charts: Charts, optimizer: torch.optim.Optimizer) -> dict[int, int]:
    """Returns, by number of a pair of the schedule, its place in the optimizer that moves pairs."""
    if not isinstance(optimizer, TangentOptimizer):
        return {}
    held = {id(pair.A): place for place, pair in enumerate(optimizer.pairs)}
    return {number: held[id(pair.A)] for number, pair in enumerate(charts.pairs)}


def _order(handle: RemovableHandle) -> "OrderedDict[int, Any]":
    """The hooks among which a hook runs, in their order."""
    hooks = handle.hooks_dict_ref()
    assert isinstance(hooks, OrderedDict)
    return hooks
