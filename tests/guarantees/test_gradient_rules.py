"""A rule is one decorated function; a wrong one is told by parameter and sample, and cannot weaken what the engine keeps."""

import re
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dptrain import check_gradient_rule, gradient_rule  # noqa: E402
from dptrain.blocks.stack import LayerStack, Tensor, layer_stack  # noqa: E402
from dptrain.clipping.exactness import sums_for  # noqa: E402
from dptrain.clipping.resolver import Block, Schedule  # noqa: E402
from dptrain.errors import ConfigError, UnsupportedModule, WrongGradientRule  # noqa: E402
from dptrain.gradients import Dense, Form, Gather, Outer, registry  # noqa: E402
from dptrain.gradients.registry import Call, rule_of, settled  # noqa: E402
from dptrain.routing import FallbackNotice, Router  # noqa: E402
from tests.guarantees.peers import Run, net, per_example, small_world  # noqa: E402
from tests.reference.compare import compare  # noqa: E402
from tests.worlds.bounds import bounds_of  # noqa: E402

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending" / "layers.md"


@pytest.fixture(autouse=True)
def _rules_of_a_test_stay_there(monkeypatch):
    monkeypatch.setattr(registry, "_entries", registry._entries)
    torch.manual_seed(0)


def frozen_statistics() -> nn.Module:
    module = nn.BatchNorm2d(4)
    module(torch.randn(3, 4, 5, 5))
    return random_scale(module).eval()


def random_scale(module: nn.Module) -> nn.Module:
    nn.init.normal_(module.weight)
    return module


OWN = {
    "linear": lambda: (nn.Linear(8, 6), torch.randn(5, 3, 8)),
    "linear, few positions": lambda: (nn.Linear(40, 60, bias=False), torch.randn(4, 2, 40)),
    "table": lambda: (nn.Embedding(9, 4, padding_idx=2), torch.randint(0, 9, (5, 7))),
    "layer norm": lambda: (random_scale(nn.LayerNorm((3, 8))), torch.randn(5, 2, 3, 8)),
    "group norm": lambda: (nn.GroupNorm(2, 4), torch.randn(5, 4, 6)),
    "batch norm, frozen": lambda: (frozen_statistics(), torch.randn(4, 4, 5, 5)),
    "instance norm": lambda: (nn.InstanceNorm1d(4, affine=True), torch.randn(4, 4, 5)),
    "RMS norm": lambda: (random_scale(nn.RMSNorm(8)), torch.randn(4, 3, 8)),
    "convolution": lambda: (nn.Conv2d(4, 6, 3, padding=(1, 2), groups=2, dilation=2), torch.randn(4, 4, 9, 8)),
    "convolution, few positions": lambda: (nn.Conv2d(16, 32, 3, padding_mode="reflect"), torch.randn(3, 16, 3, 3)),
    "attention": lambda: (nn.MultiheadAttention(8, 2, batch_first=True), (torch.randn(4, 3, 8),) * 3),
    "attention, two inputs": lambda: (
        nn.MultiheadAttention(8, 2, batch_first=True), (torch.randn(4, 3, 8), *(torch.randn(4, 5, 8),) * 2)
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OWN)
def test_every_own_rule_is_held_by_the_check_that_users_have(case: str) -> None:
    module, inputs = OWN[case]()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    check_gradient_rule(module, inputs)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_the_page_on_layer_rules_is_run_as_it_is_printed(capsys) -> None:
    text = PAGE.read_text(encoding="utf-8")
    world: dict = {"__name__": "page"}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), world)
    (printed,) = re.findall(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    expected = re.escape(printed.strip()).replace(re.escape("..."), r"[0-9.]+")
    assert re.fullmatch(expected, capsys.readouterr().out.strip())


class Scaled(nn.Module):
    """``y = (x W^T + b) * s``, tensors of three kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(5, 4) / 2)
        self.shift = nn.Parameter(torch.randn(5) / 2)
        self.scale = nn.Parameter(torch.randn(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.matrix.T + self.shift) * self.scale


def right(module, call, grad) -> dict[str, Form]:
    """All three gradients, wanted or not."""
    x, b = call.positions(call.inputs[0], 1), call.positions(grad, 1)
    inner = b * module.scale.to(b.dtype)
    out = x @ module.matrix.to(x.dtype).T + module.shift.to(x.dtype)
    return {"matrix": Outer(x, inner), "shift": Dense(inner.sum(1)), "scale": Dense((b * out).sum(1))}


def test_a_right_rule_passes_whether_or_not_it_asks_what_is_wanted() -> None:
    gradient_rule(Scaled)(right)
    check_gradient_rule(Scaled(), torch.randn(5, 3, 4))
    check_gradient_rule(Scaled(), torch.randn(3, 4))


class Own(Form):
    """A form whose norm says nothing."""


def only_the_first_position(module, call, grad):
    found = right(module, call, grad)
    return {**found, "matrix": Outer(found["matrix"].a_NTD[:, :1], found["matrix"].b_NTP[:, :1])}


def mean_over_the_batch(module, call, grad):
    found = right(module, call, grad)
    shift = found["shift"].g
    return {**found, "shift": Dense(shift - shift.mean(0, keepdim=True) * 1e-3)}


def nan_of_others(module, call, grad):
    found = right(module, call, grad)
    return {**found, "shift": Dense(found["shift"].g + 0.0 * found["shift"].g.sum(0, keepdim=True))}


def every_row_a_contribution(module, call, grad):
    if call.examples == 1:
        return right(module, call, grad)
    return right(module, Call(call.inputs, call.kwargs, call.rows, 1), grad)


def second_sample_twice(module, call, grad):
    found = right(module, call, grad)
    if call.contributions > 1:
        found["scale"].g[1] *= 2
    return found


def in_place(module, call, grad):
    found = right(module, call, grad)
    grad.mul_(0.5)
    return found


def by_the_number_of_rows(module, call, grad):
    assert call.contributions, "nobody there"
    return right(module, call, grad)


def nothing_more_if_one_is_wanted(module, call, grad):
    found = right(module, call, grad)
    return found if len(call.wanted) == 3 else {"matrix": found["matrix"]}


def in_half_precision(module, call, grad):
    found = right(module, call, grad)
    return {**found, "shift": Dense(found["shift"].g.bfloat16())}


def sizes_for_features(module, call, grad):
    return {"shift": Dense(call.positions(grad, grad.shape[-1]).sum(1))}


FAULTS = {
    "shift left out": (lambda *given: {k: v for k, v in right(*given).items() if k != "shift"}, "GRADIENT_WRONG", "shift", 0),
    "one position": (only_the_first_position, "GRADIENT_WRONG", "matrix", 0),
    "a mean over the batch": (mean_over_the_batch, "GRADIENT_WRONG", "shift", 0),
    "NaN of other samples": (nan_of_others, "ROWS_INFLUENCE", "shift", 0),
    "examples for contributions": (every_row_a_contribution, "RULE_FORM", None, None),
    "the second sample": (second_sample_twice, "GRADIENT_WRONG", "scale", 1),
    "half precision": (in_half_precision, "GRADIENT_WRONG", "shift", 0),
    "a change in place": (in_place, "RULE_WRITES", None, None),
    "no samples": (by_the_number_of_rows, "RULE_RAISES", None, None),
    "one wanted": (nothing_more_if_one_is_wanted, "GRADIENT_WRONG", "shift", 0),
    "an unknown name": (lambda *given: {"other": Dense(torch.zeros(1))}, "RULE_FORM", None, None),
    "a form of its own": (lambda *given: {"matrix": Own()}, "RULE_FORM", None, None),
    "factors the other way round": (
        lambda *given: {"matrix": Outer(right(*given)["matrix"].b_NTP, right(*given)["matrix"].a_NTD)}, "RULE_FORM", None, None
    ),
    "nothing": (lambda *given: None, "RULE_FORM", None, None),
    "a size for a number of dimensions": (sizes_for_features, "RULE_FORM", None, None),
    "integers": (lambda *given: {"shift": Dense(torch.ones(5, 5, dtype=torch.int64))}, "RULE_FORM", None, None),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_rule_is_told_by_parameter_and_sample(fault: str) -> None:
    rule, code, parameter, sample = FAULTS[fault]
    gradient_rule(Scaled)(rule)
    with pytest.raises(WrongGradientRule) as refused:
        check_gradient_rule(Scaled(), torch.randn(5, 3, 4))
    error = refused.value
    assert (error.code, error.parameter, error.sample) == (code, parameter, sample)
    assert error.found is not None and error.expected is not None
    assert parameter is None or repr(parameter) in str(error)


def test_a_rule_that_is_wrong_but_for_weights_of_one_or_zero_is_found() -> None:
    def forgets_the_scale(module, call, grad):
        x, b = call.positions(call.inputs[0], 1), call.positions(grad, 1)
        return {**right(module, call, grad), "matrix": Outer(x, b), "shift": Dense(b.sum(1))}

    gradient_rule(Scaled)(forgets_the_scale)
    module = Scaled()
    nn.init.ones_(module.scale)
    with pytest.raises(WrongGradientRule, match=r"GRADIENT_WRONG.*with weights near its own"):
        check_gradient_rule(module, torch.randn(5, 3, 4))
    assert bool((module.scale == 1).all())


def test_a_rule_that_raises_is_told_with_its_place() -> None:
    gradient_rule(Scaled)(by_the_number_of_rows)
    with pytest.raises(WrongGradientRule, match=r"RULE_RAISES.*AssertionError at test_gradient_rules\.py:\d+: nobody there\)"):
        check_gradient_rule(Scaled(), torch.randn(5, 3, 4))


def test_the_check_says_what_it_cannot_check() -> None:
    for module, inputs, code in (
        (Scaled(), torch.randn(5, 4), "NO_RULE"),
        (nn.LSTM(4, 3, batch_first=True), torch.randn(4, 5, 4), "NO_RULE"),
        (nn.ReLU(), torch.randn(5, 4), "NO_RULE"),
        (nn.Linear(4, 3), torch.randn(2, 4), "FEW_ROWS"),
    ):
        with pytest.raises(WrongGradientRule, match=code):
            check_gradient_rule(module, inputs)

    class Mixes(Scaled):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x - x.mean(0))

    gradient_rule(Mixes)(right)
    with pytest.raises(WrongGradientRule, match=r"FORWARD.*mixes samples"):
        check_gradient_rule(Mixes(), torch.randn(5, 3, 4))


class Net(nn.Module):
    def __init__(self, inner: type[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), inner()])
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x.mean(1))


def losses(model: nn.Module, batch: dict) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch["x"]), batch["labels"], reduction="none")


def batch(rows: int = 9) -> dict:
    return {"x": torch.randn(rows, 3, 4).double(), "labels": torch.randint(0, 3, (rows,))}


@pytest.mark.parametrize("examples", [1, 3])
def test_a_users_rule_serves_the_engine_as_its_own_do(examples: int) -> None:
    """It returns what nobody may touch as well, under masks of depth: that is dropped where gradients are captured."""
    with pytest.warns(FallbackNotice, match="Scaled"):
        compare(Net(Scaled).double(), batch(9 * examples), losses, examples=examples, layers="layers")
    gradient_rule(Scaled)(right)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackNotice)
        compare(Net(Scaled).double(), batch(9 * examples), losses, examples=examples, layers="layers")


@pytest.mark.parametrize("fault", ["shift left out", "one position", "the second sample", "a mean over the batch"])
def test_the_engine_sees_a_wrong_rule_on_the_real_model(fault: str) -> None:
    gradient_rule(Scaled)(FAULTS[fault][0])
    with pytest.raises((UnsupportedModule, AssertionError)):
        compare(Net(Scaled).double(), batch(), losses, layers="layers")


def test_the_start_of_a_run_names_the_rule_that_is_wrong(tmp_path) -> None:
    """A rule that autograd contradicts is told as a fault of the user's, and not of the model."""

    class Gain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.gain

    @gradient_rule(Gain)
    def twice(module, call, grad):
        return {"gain": Dense(2 * (call.positions(grad, 1) * call.positions(call.inputs[0], 1)).sum(1))}

    with Run(small_world(tmp_path, per_class=5), net(Gain)) as run, pytest.raises(UnsupportedModule) as refused:
        run.gradients(next(iter(run.steps)), per_example)
    assert re.search(r"GRADIENT_MISMATCH.*registered for extra \(Gain\).*check_gradient_rule", str(refused.value))


def kinds(module: nn.Module) -> object:
    rule = rule_of("", module, frozenset(name for name, _ in module.named_parameters()))
    assert rule is not None
    return getattr(rule, "function", type(rule).__name__)


def test_a_kind_that_is_served_needs_replace() -> None:
    class Plain(nn.Linear):
        """Inherits its forward, and with it the rule."""

    class Other(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 2

    for kind in (nn.Linear, Plain, nn.Conv2d, nn.MultiheadAttention, nn.Module):
        with pytest.raises(ConfigError, match=r"RULE_EXISTS.*replace=True"):
            gradient_rule(kind)(right)
    assert kinds(Plain(3, 2)) is kinds(nn.Linear(3, 2)) is not right and kinds(Other(3, 2)) == "GenericRule"
    gradient_rule(Other)(right)
    with pytest.raises(ConfigError, match="RULE_EXISTS"):
        gradient_rule(Other)(right)
    assert kinds(Other(3, 2)) is right
    gradient_rule(nn.Linear, replace=True)(right)
    assert kinds(nn.Linear(3, 2)) is kinds(Plain(3, 2)) is right


def test_a_parametrized_module_is_not_its_base() -> None:
    assert kinds(nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))) == "WholeRule"


def test_when_leaves_a_module_to_the_next_rule() -> None:
    gradient_rule(Scaled, when=lambda module, trained: trained == {"matrix", "shift", "scale"})(right)
    module = Scaled()
    assert kinds(module) is right
    rule = rule_of("", module, frozenset({"matrix"}))
    assert rule is not None and rule.slow and rule_of("", module, frozenset()) is None


def test_a_class_may_be_named_by_a_pattern() -> None:
    gradient_rule(f"{Scaled.__module__}.Scale?")(right)
    assert kinds(Scaled()) is right


@pytest.mark.parametrize("kind", [(), (int,), ("Linear",), (nn.Linear(2, 2),)])
def test_kinds_are_classes_of_modules_or_patterns(kind: tuple) -> None:
    with pytest.raises(ConfigError, match="RULE_KIND"):
        gradient_rule(*kind)


def test_an_id_out_of_range_stays_with_its_contribution() -> None:
    """Rows of a table are numbered through the microbatch: unclamped, an id too large is a row of the next contribution."""
    table = nn.Embedding(4, 2)
    rule = registry.Plain(lambda *given: {"weight": Gather(torch.tensor([[5, 0], [1, 1]]), torch.ones(2, 2, 2))}, "", table)
    call = Call((), {}, 2, 1, wanted=frozenset({"weight"}))
    found = settled(rule, call, torch.ones(2, 2, 2), {"weight": table.weight.shape})["weight"].dense(table.weight.shape)
    assert found[0].sum() == 4.0 and found[0, 3].tolist() == [1.0, 1.0]
    assert found[1].tolist() == [[0.0, 0.0], [2.0, 2.0], [0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("level", ["fast", "certified"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("case", ["linear", "linear, few positions", "table", "layer norm", "RMS norm", "attention"])
def test_a_contribution_of_no_positions_adds_nothing(case: str, tied: bool, level: str) -> None:
    """A text without tokens, alone in its microbatch: what raises behind the backward pass would stop the run."""
    module, inputs = OWN[case]()
    none = tuple(value[:, :0] for value in (inputs if isinstance(inputs, tuple) else (inputs,)))
    out = module(*none)
    grad = torch.zeros_like(out[0] if isinstance(out, tuple) else out)
    parameters = dict(module.named_parameters())
    wanted = frozenset(parameters)
    call = Call(none, {}, len(grad), 1, wanted=wanted, tied=wanted if tied else frozenset())
    with torch.no_grad():
        forms = settled(rule_of("", module, wanted), call, grad, {name: value.shape for name, value in parameters.items()})
    tensors = [Tensor(name, (name,), (("", 0),), value) for name, value in parameters.items()]
    stack = LayerStack(("layer",), tuple(tensors))
    schedule = Schedule(stack, (Block("b", (0,), tuple(tensors), ("a",), 1.0),), {"a": (0,)}, ())
    sums = sums_for(level, schedule, [(0, tensor) for tensor in tensors], torch.float32, 1.0, "gaussian")
    pieces = {list(parameters).index(name): [form] for name, form in forms.items()}
    sums.add(pieces, bounds_of([(1.0, 1.0, (0,))] * len(grad), 1))
    assert not any(bool(total.any()) for total in sums.take())


def test_a_rule_that_needs_a_position_is_found() -> None:
    def needs_one(module, call, grad):
        x, b = call.positions(call.inputs[0], 1), call.positions(grad, 1)
        b[:, 0]
        return {"weight": Outer(x, b), "bias": Dense(b.sum(1))}

    gradient_rule(nn.Linear, replace=True)(needs_one)
    check_gradient_rule(nn.Linear(4, 3), torch.randn(3, 4))
    with pytest.raises(WrongGradientRule, match="RULE_RAISES"):
        check_gradient_rule(nn.Linear(4, 3), torch.randn(3, 2, 4))


class Gain(nn.Module):
    """``y = x * gain``, one gain per feature."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gain


def narrow_rule(module, call, grad) -> dict[str, Form]:
    """Forms of float32 whatever the model's type is, "as norms in float32 are enough"."""
    x, b = call.positions(call.inputs[0].float(), 1), call.positions(grad.float(), 1)
    return {"gain": Dense((b * x).sum(1))}


def test_a_rule_that_rounds_to_float32_keeps_the_bounds_of_a_model_in_float64() -> None:
    """Its margin is 2^-40 there: norm, coefficient and sum are formed in float64, whatever the rule rounded to."""
    gradient_rule(Gain)(narrow_rule)
    check_gradient_rule(Gain(16), torch.randn(5, 7, 16))
    for entry in torch.linspace(1.0, 4.0, 30).tolist():
        model = nn.Module()
        model.layers = nn.ModuleList([Gain(4096)])
        model.double()
        stack = layer_stack(model)
        schedule = Schedule(stack, (Block("b", (0,), tuple(stack.tensors), ("a",), 1.0),), {"a": (0,)}, ())
        model.requires_grad_(False)
        router = Router(model, schedule)
        router.attach()
        bounds = bounds_of([(1.0, 1.0, (0,))], 1)
        router.arm(1, 1, bounds.permitted_NG)
        out = model.layers[0](torch.full((1, 1, 4096), entry, dtype=torch.float64))
        router.backward(out.sum((1, 2)), torch.ones(1, dtype=torch.float64))
        router.fold(bounds)
        (total,) = router.sums.take()
        assert float(total.norm()) <= 1.0


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_forms_are_held_in_the_type_of_their_tensor_or_a_wider_one(kind: torch.dtype) -> None:
    half = torch.ones(2, 3, 4, dtype=torch.bfloat16)
    given = {"weight": (Outer(half, half[..., :2]), Gather(torch.zeros(2, 3, dtype=torch.long), half), Dense(half[:, :2]))}
    for form in given["weight"]:
        module = nn.Linear(4, 2, bias=False).to(kind)
        rule = registry.Plain(lambda module, call, grad, form=form: {"weight": form}, "", module)
        for tied in (frozenset(), frozenset({"weight"})):
            call = Call((), {}, 2, 1, wanted=frozenset({"weight"}), tied=tied)
            found = settled(rule, call, half, {"weight": module.weight.shape})["weight"]
            floats = [value.dtype for value in vars(found).values() if torch.is_tensor(value) and value.is_floating_point()]
            assert set(floats) == {torch.promote_types(kind, torch.float32)}


def test_what_is_not_wanted_is_dropped() -> None:
    rule, grad = registry.Plain(right, "", Scaled()), torch.randn(2, 3, 5)
    call = Call((torch.randn(2, 3, 4),), {}, 2, 1, wanted=frozenset({"shift"}))
    shapes = {name: value.shape for name, value in rule.module.named_parameters()}
    with torch.no_grad():
        assert settled(rule, call, grad, shapes).keys() == {"shift"}
