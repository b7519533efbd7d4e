"""The GPU paths against the same training on the CPU in double precision. ``make test-gpu``."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch

from lowchurn.nets import Task, train
from lowchurn.nets._initial_weights import fresh_buffers, fresh_state
from lowchurn.nets._kernels import fcn_packed, fcn_resident
from lowchurn.nets._stacks import Batches, Settings, _resnet_plain, _stack, make_stack
from lowchurn.nets._stacks._convnet_gpu import GpuConvnetStack
from lowchurn.nets._stacks._fcn import GpuFcnStack
from lowchurn.nets._stacks._resnet import ResnetStack
from lowchurn.nets._streams import new_stream
from lowchurn.nets.networks import convnet, fcn, transformer
from lowchurn.strategies import CoDistill, ColdStart, Distill, Mixup
from tests.nets.convnet_twins import dense_errors, first_moments
from tests.nets.fcn_twins import EVERY_KIND, cases, made, placed
from tests.nets.fcn_twins import relative_errors as relative_errors_of_fcn
from tests.nets.test_stacks import short_resnet
from tests.nets.test_train import SETTINGS, WORLDS, make_tasks
from tests.nets.transformer_twins import relative_errors

pytestmark = pytest.mark.gpu


def moved_error(name, one, two, start):
    """Relative error of what training changed, not of the weights, most of which is their start."""
    return float((one - two).norm() / (two - start).norm())


def compare(network, X, y, settings, tolerance, classes=3, **options):
    tasks = make_tasks(network, X, y, settings, classes=classes)
    reference = train(network, X, tasks, device="cpu", dtype="float64", **options)
    untouched = train(network, X, tasks, device="cpu", dtype="float64", learning_rate=0.0, epochs=1)
    gpu = train(network, X, tasks, device="cuda", **options)
    again = train(network, X, tasks, device="cuda", **options)
    np.testing.assert_allclose(gpu.loss, reference.loss, rtol=tolerance)
    for name, value in reference.state.items():
        if name == "qkv.bias" or not value.is_floating_point():
            continue
        got = gpu.state[name].double().cpu()
        assert moved_error(name, got, value, untouched.state[name]) < tolerance, name
    return gpu, again


def needs_clusters():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU of compute capability 9.0")


@pytest.fixture(params=["triton", "resident"])
def each_kernel(request, monkeypatch):
    """Fully connected networks are trained by Triton's kernel, or in shared memory if they fit there."""
    if request.param == "triton":
        monkeypatch.setattr(fcn_resident, "find", lambda *sizes, **options: None)
    else:
        needs_clusters()


@pytest.fixture
def resident(monkeypatch):
    """No network is trained but in shared memory."""
    from lowchurn.nets._kernels import fcn_gpu

    needs_clusters()

    def fails(*arguments, **options):
        raise AssertionError("trained by Triton's kernel")

    monkeypatch.setattr(fcn_gpu, "train_epoch", fails)


@pytest.mark.usefixtures("each_kernel")
@pytest.mark.parametrize("size", [7, 100, 300])
@pytest.mark.parametrize("loss", ["log", "squared"])
def test_fused_fcn(size, loss):
    _, (X, y) = WORLDS["fcn"]
    gpu, again = compare(fcn(size, inputs=5, classes=3), X, y, SETTINGS, 2e-3, epochs=3, batch_size=16, loss=loss)
    for name, value in gpu.state.items():
        assert torch.equal(value, again.state[name]), "not repeatable"


@pytest.mark.usefixtures("each_kernel")
@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("sizes", cases())
def test_an_epoch_of_fully_connected_networks_is_that_of_the_cpu(sizes, kind):
    errors = relative_errors_of_fcn(*sizes, kind, device="cuda")
    assert errors.pop("logits") < 1e-5
    assert max(errors.values()) < 1e-3, errors  # of what training changed


# Inputs in one to four tiles, classes for either kernel; half of the units and less take other shapes.
RESIDENT = [
    *((5, 1000, 2), (14, 1000, 2), (20, 1000, 2), (30, 1000, 2), (16, 1000, 26)),
    *((7, 1024, 4), (8, 600, 3), (23, 513, 4), (31, 1000, 4), (5, 700, 5), (20, 1000, 32), (30, 300, 12)),
    *((5, 150, 2), (14, 300, 3), (20, 129, 2), (30, 200, 4), (16, 150, 26), (16, 400, 7)),
]
SQUARED = [(20, 1000, 2), (16, 400, 7), (31, 1000, 4), (14, 300, 3)]


@pytest.mark.usefixtures("resident")
@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize(("sizes", "squared"), [*((one, False) for one in RESIDENT), *((one, True) for one in SQUARED)])
def test_epochs_in_shared_memory_are_those_of_the_cpu(sizes, kind, squared):
    options = {"models": 6, "rows": 200, "batch": 32, "epochs": 3, "device": "cuda"}
    errors = relative_errors_of_fcn(*sizes, kind, squared=squared, **options)
    assert errors.pop("logits") < 1e-5
    # A hidden unit within 1e-7 of zero is positive in one precision and not in the other, which costs up to 1e-3.
    assert max(errors.values()) < 5e-3, errors


@pytest.mark.usefixtures("resident")
@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("sizes", RESIDENT)
def test_epochs_in_shared_memory_repeat_and_neighbours_do_not_matter(sizes, kind):
    models, chosen = 600, slice(402, 404)  # more than are trained at the same time
    start, batches = made(*sizes, kind, models=models, rows=100, batch=32)

    def trained(part, pairs):
        own = Batches(batches.pool, *(None if v is None else v[part] for v in list(vars(batches).values())[1:-1]))
        own.coupling = None if batches.coupling is None else batches.coupling[pairs]
        state, own = placed({name: value[part] for name, value in start.items()}, own, "cuda")
        stack = GpuFcnStack(state, Settings(torch.device("cuda"), torch.float32))
        for _ in range(2):
            stack.train_epoch(own)
        return [value.clone() for tensors in (stack.weights, *stack.moments) for value in tensors.values()]

    everything = slice(None), slice(None)
    together, again, alone = trained(*everything), trained(*everything), trained(chosen, slice(201, 202))
    for one, other, few in zip(together, again, alone, strict=True):
        assert torch.equal(one, other), "does not repeat"
        assert torch.equal(one[chosen], few), "depends on neighbours"


@pytest.mark.parametrize("sizes", [(5, 128, 2), (5, 1025, 2), (32, 300, 3), (5, 150, 33), (31, 150, 32)])
def test_what_does_not_fit_into_shared_memory_is_trained_by_triton(sizes, monkeypatch):
    def fails(*arguments, **options):
        raise AssertionError("trained in shared memory")

    monkeypatch.setattr(fcn_resident.Kernel, "train_epoch", fails)
    errors = relative_errors_of_fcn(*sizes, "twins", device="cuda")
    assert max(errors.values()) < 1e-3, errors


@pytest.mark.usefixtures("resident")
def test_threads_that_train_in_shared_memory_do_not_disturb_each_other(monkeypatch):
    """The first epochs of all threads compile the kernels."""
    _, (X, y) = WORLDS["fcn"]
    network = fcn(300, inputs=5, classes=3)
    tasks = make_tasks(network, X, y, [ColdStart(), Distill(0.4), CoDistill(0.3), Mixup(0.3)])
    options = {"epochs": 5, "device": "cuda"}
    alone = train(network, X, tasks, **options)
    for name in ("_kernels", "_locks"):
        monkeypatch.setattr(fcn_resident, name, {})

    def beside():
        torch.cuda.set_stream(new_stream())
        return train(network, X, tasks, **options)

    with ThreadPoolExecutor(8) as pool:
        for other in [future.result() for future in [pool.submit(beside) for _ in range(16)]]:
            for name, value in alone.state.items():
                assert torch.equal(value, other.state[name]), name


@pytest.mark.usefixtures("each_kernel")
@pytest.mark.parametrize("scale", [1, 30])
@pytest.mark.parametrize("inputs", [5, 10, 46])
def test_wide_pairs_of_two_classes(inputs, scale):
    """Networks that do not stay in registers, with features that are not scaled, as in the paper's Table 1."""
    rng = np.random.default_rng(inputs)
    X = rng.normal(size=(300, inputs))
    y = (X[:, 0] + 0.5 * rng.normal(size=300) > 0).astype(int)
    settings = [CoDistill(0.1), CoDistill(0.5), CoDistill(0.9, start="warm")]
    compare(fcn(1000, inputs=inputs, classes=2), scale * X, y, settings, 5e-3, classes=2, epochs=2)


@pytest.mark.parametrize("resident", [False, True])
@pytest.mark.parametrize("twins", [False, True])
@pytest.mark.parametrize(("inputs", "units", "classes"), [(5, 1000, 2), (46, 1000, 2), (10, 300, 4), (16, 1000, 26)])
def test_an_epoch_is_its_steps(inputs, units, classes, twins, resident):
    """One launch over many batches gives the bits of a launch for each: no step reads what another still writes."""
    from lowchurn.nets._kernels import fcn_gpu

    models, rows, batch = 40, 80, 32
    make = torch.Generator("cuda").manual_seed(0)
    options = {"loss": "log", "batch_size": batch, "precision": "tf32x3"}
    epoch = partial(fcn_gpu.train_epoch, **options, **fcn_gpu.tiles(inputs, units, classes))
    if resident:
        needs_clusters()
        device = torch.device("cuda", torch.cuda.current_device())
        kernel = fcn_resident.find(inputs, units, classes, mixed=False, twins=twins, **options, device=device)
        assert (kernel is None) == (inputs == 46)
        if kernel is None:
            return
        epoch = kernel.train_epoch

    def draw(*shape):
        return torch.randn(*shape, device="cuda", generator=make)

    x, y = 30 * draw(models * rows, inputs), draw(models // 2, rows, classes).argmax(-1)
    pool = torch.arange(models * rows // 2, device="cuda").view(-1, rows).repeat_interleave(2, 0)
    targets = torch.nn.functional.one_hot(y, classes).float().repeat_interleave(2, 0)
    order = torch.arange(rows, device="cuda").expand(models, rows)
    start = fcn_packed.pack_parameters(
        draw(models, inputs, units) / 30, draw(models, units) / 30, draw(models, units, classes) / 30
    )

    def trained(steps):
        state = [value.clone() for value in (start, 0 * start, 0 * start)]
        state += [torch.zeros(models, classes, device="cuda") for _ in range(3)]
        for first in range(0, rows, steps * batch):
            epoch(
                *state, x, pool, targets, torch.ones(models, rows, device="cuda"),
                order[:, first : first + steps * batch].contiguous(),
                torch.full((models,), first // batch, dtype=torch.int32, device="cuda"), mate=None, mix=None,
                coupling=torch.full((models // 2,), 0.7, device="cuda") if twins else None, learning_rate=1e-3,
            )  # fmt: skip
        return state

    for together, apart in zip(trained(3), trained(1), strict=True):
        assert torch.equal(together, apart)


@pytest.mark.usefixtures("each_kernel")
def test_fused_fcn_with_many_classes_and_inputs():
    rng = np.random.default_rng(0)
    for d, m in ((16, 26), (108, 3)):
        X = rng.normal(size=(150, d))
        y = rng.integers(3, size=150)
        network = fcn(200, inputs=d, classes=3 if m == 3 else 26)
        if m == 26:
            from lowchurn.nets import strategy_tasks

            labels = rng.integers(26, size=150)
            tasks = strategy_tasks(
                [ColdStart()], rows=np.arange(100), y=labels, classes=26, validation=np.arange(100, 150), seed=1
            )
            one = train(network, X, tasks, epochs=3, device="cuda")
            two = train(network, X, tasks, epochs=3, device="cpu", dtype="float64")
            np.testing.assert_allclose(one.loss, two.loss, rtol=1e-3)
        else:
            compare(network, X, y, [ColdStart(), Distill(0.5), Mixup(0.3)], 2e-3, epochs=3)


@pytest.mark.usefixtures("each_kernel")
def test_neighbours_do_not_matter_on_the_gpu():
    _, (X, y) = WORLDS["fcn"]
    network = fcn(300, inputs=5, classes=3)
    tasks = make_tasks(network, X, y, SETTINGS)
    together = train(network, X, tasks, epochs=6, patience=1, device="cuda")
    apart = train(network, X, tasks, epochs=6, patience=1, device="cuda", memory_limit=1.0)
    for name, value in together.state.items():
        torch.testing.assert_close(apart.state[name], value, rtol=0, atol=0)


def test_convnets_in_float32():
    network, (X, y) = WORLDS["convnet"]
    compare(network, X, y, [ColdStart(), Distill(0.4), CoDistill(0.3), Mixup(0.3)], 2e-2, epochs=2, precision="float32")


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize(
    ("size", "shape"),
    [(4, (28, 28, 1)), (4, (32, 32, 3)), (4, (26, 30, 3)), (3, (13, 15, 4)), (1, (28, 28, 1)), (16, (32, 32, 3))],
)
def test_fused_convolutions_give_the_gradients_of_plain_ones(size, shape, mixed):
    network = convnet(size, shape=shape, classes=3)
    device, models, rows = torch.device("cuda"), 6, 20  # a partial batch, which the kernels fill up
    make = torch.Generator("cuda").manual_seed(0)

    def draw(*shape):
        return torch.rand(*shape, device=device, generator=make)

    params = fresh_state(network, network, torch.arange(models, device=device), torch.float32)
    own = draw(models, 50).argsort(1)[:, :rows]
    order, mate = draw(models, rows).argsort(1), draw(models, rows).argsort(1)
    mixing = (mate, draw(models, 1)) if mixed else (None, None)
    pool = torch.randn(50, *shape, device=device, generator=make)
    batches = Batches(pool, own, draw(models, rows, 3), draw(models, rows), order, *mixing)
    exact, fused = (
        make_stack(network, params, {}, Settings(device, torch.float32, precision=precision))
        for precision in ("ieee", "bfloat16")
    )
    assert isinstance(fused, GpuConvnetStack)
    assert (fused.logits(pool) - exact.logits(pool)).norm() < 0.05 * exact.logits(pool).norm()
    for stack in (exact, fused):
        stack.train_epoch(batches)
    got = first_moments(fused)
    for name, expected in first_moments(exact).items():
        error = (got[name] - expected).norm() / expected.norm()
        assert error < 0.15, f"{name}: {error}"  # bfloat16 keeps 8 bits, and rounding moves some winners of a pool


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        *((128, 84), (512, 84), (1000, 84), (600, 128), (2400, 512), (100, 150)),
        *(((10, 10, 96), 512), ((12, 12, 24), 128), ((3, 5, 72), 384), ((11, 8, 48), 256)),  # before a pooling
    ],
)
@pytest.mark.parametrize("rows", [32, 20, 100])
def test_a_step_of_a_dense_layer_in_halves(rows, inputs, outputs):
    block = (64, 64) if outputs >= 128 else (16, 32)
    errors = dense_errors(rows, inputs, outputs, block, device="cuda", low=torch.bfloat16, models=3)
    assert errors.pop("back") < 4e-3  # it is rounded to 8 bits, and so are the terms of the sums
    assert errors.pop("sums") < 4e-3
    assert max(errors.values()) < 1e-5, errors


@pytest.mark.parametrize("kind", [{}, {"mixing": 0.3}, {"coupling": 0.3}])
def test_convnets_have_the_same_bits_alone_and_among_others_recorded_or_not(kind, monkeypatch):
    rng = np.random.default_rng(0)
    X, targets = rng.normal(size=(400, 28, 28, 1)), np.eye(3)[rng.integers(3, size=400)]
    own, held_out = np.arange(300), np.arange(300, 400)
    tasks = [Task(own, targets[own], held_out, targets[held_out], seed=seed, **kind) for seed in range(5)]
    network = convnet(4, classes=3)
    options = {"epochs": 4, "patience": 1, "device": "cuda"}
    together = train(network, X, tasks, **options)
    others = [train(network, X, tasks, **options), train(network, X, tasks, memory_limit=1.0, **options)]
    monkeypatch.setattr(_stack, "RecordedStep", lambda *parts: None)
    others.append(train(network, X, tasks, **options))
    for other in others:
        for name, value in together.state.items():
            assert torch.equal(value, other.state[name]), name
        assert torch.equal(together.decisions(X), other.decisions(X))


@pytest.mark.parametrize("batch_size", [7, 100, 200])
def test_convnets_with_other_batches(batch_size):
    network, (X, y) = WORLDS["convnet"]
    tasks = make_tasks(network, X, y, [ColdStart(), Distill(0.4)])
    options = {"epochs": 1, "device": "cuda", "batch_size": batch_size}
    fused, plain = (train(network, X, tasks, precision=p, **options) for p in ("auto", "float32"))
    np.testing.assert_allclose(fused.loss, plain.loss, rtol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fresh_weights_are_those_of_the_cpu(dtype):
    network, seeds = convnet(2, classes=3), torch.tensor([0, 5, -7, 2**62])
    here = fresh_state(network, network, seeds, dtype)
    there = fresh_state(network, network, seeds.cuda(), dtype)
    for name, value in here.items():
        assert torch.equal(there[name].cpu(), value), name


LAYERS = [(3, 64, 3), (64, 64, 3), (256, 256, 3), (64, 256, 1), (2048, 512, 1), (100, 70, 1)]  # inputs, outputs, side


@pytest.mark.parametrize(("inputs", "outputs", "side"), LAYERS)
@pytest.mark.parametrize("size", [(4, 4), (5, 7), (16, 16)])
def test_fused_layers_of_residual_networks(inputs, outputs, side, size):
    """Each kernel against plain torch in double precision, on the same numbers, which are rounded to bfloat16."""
    from lowchurn.nets._kernels import resnet_gpu

    make = torch.Generator("cuda").manual_seed(0)

    def draw(*shape):
        return torch.randn(3, *shape, device="cuda", generator=make)

    def both(name, *args):
        """Call both; what they return and what they write into must agree."""
        exact = [type(a)(*(v.double() for v in a)) if isinstance(a, tuple) else a for a in args]
        exact = [a.double() if isinstance(a, torch.Tensor) else a for a in exact]
        got, expected = getattr(resnet_gpu, name)(*args), getattr(_resnet_plain, name)(*exact)
        for one, two in zip(flat([got, *args]), flat([expected, *exact]), strict=True):
            assert (one.double() - two).norm() <= 4e-3 * two.norm(), name
        return got

    def flat(values):
        """The tensors among values, and those in their tuples."""
        parts = (value if isinstance(value, tuple) else (value,) for value in values)
        return [part for some in parts for part in some if isinstance(part, torch.Tensor)]

    x = draw(9, *size, inputs).relu().bfloat16()
    weight = (draw(side, side, inputs, outputs) / (side * inputs**0.5)).bfloat16()
    g, add = draw(9, *size, outputs).bfloat16(), draw(9, *size, outputs).bfloat16()
    norm = _resnet_plain.Norm(*(draw(outputs).abs() for _ in range(5)))
    y, coefs = both("conv_norm", x, weight, norm, 1e-5, 0.1)
    both("conv_folded", x, weight, norm, 1e-5)
    both("conv_folded", x, weight, norm, 1e-5, add, False)
    for shortcut in ((), (add,), (add, draw(4, outputs))):
        both("apply", y, coefs, *shortcut)
    both("input_grad", g, weight)
    both("input_grad", g, weight, x, x)
    both("weight_grad", x, g, draw(side, side, inputs, outputs))
    both("norm_grad", g, y, coefs, draw(outputs), draw(outputs))


def test_residual_networks_in_float32():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(90, 8, 8, 3)), rng.integers(3, size=90)
    network = short_resnet((8, 8, 3), 3, 2)
    tasks = make_tasks(network, X, y, [ColdStart(), Distill(0.4), CoDistill(0.3), Mixup(0.3)])
    options = {"epochs": 1, "precision": "float32"}
    gpu, cpu = (train(network, X, tasks, device=device, **options) for device in ("cuda", "cpu"))
    np.testing.assert_allclose(gpu.loss, cpu.loss, rtol=1e-3)


def test_fused_residual_networks_give_the_gradients_of_plain_ones():
    rng = np.random.default_rng(0)
    network, device = short_resnet((16, 16, 3), 3, 4), torch.device("cuda")
    params = fresh_state(network, network, torch.arange(3, device=device), torch.float32)
    x = torch.tensor(rng.normal(size=(3, 20, 16, 16, 3)), device=device, dtype=torch.float32)
    targets = torch.tensor(rng.dirichlet(np.ones(3), size=(3, 20)), device=device, dtype=torch.float32)
    weights = torch.tensor(rng.uniform(size=(3, 20)), device=device, dtype=torch.float32)

    def gradients(precision, x, params):
        buffers = fresh_buffers(network, 3, device, torch.float32)
        stack = ResnetStack(network, params, buffers, Settings(device, torch.float32, precision=precision))
        assert (stack.ops is _resnet_plain) == (precision == "ieee")
        stack.steps = 1
        stack.step(x, targets, weights, None)
        return stack.slopes

    # What rounding does to a gradient grows from layer to layer, so it is measured: plain products of rounded numbers.
    rounded = gradients("ieee", x.bfloat16().float(), {name: w.bfloat16().float() for name, w in params.items()})
    fused = gradients("bfloat16", x, params)
    for name, exact in gradients("ieee", x, params).items():
        error, expected = ((some[name] - exact).norm() for some in (fused, rounded))  # 0 for biases before a norm
        assert error <= 4 * expected + 0.02 * exact.norm(), f"{name}: {error}, where rounding gives {expected}"


def test_neighbours_and_recording_do_not_matter_to_residual_networks(monkeypatch):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(110, 8, 8, 3)), rng.integers(3, size=110)
    network = short_resnet((8, 8, 3), 3, 4)
    tasks = make_tasks(network, X, y, [ColdStart(), Distill(0.4), CoDistill(0.3), Mixup(0.3)])
    options = {"epochs": 5, "patience": 1, "batch_size": 16, "device": "cuda"}
    together, again = (train(network, X, tasks, **options) for _ in range(2))
    apart = train(network, X, tasks, memory_limit=1.0, **options)
    monkeypatch.setattr(_stack, "RecordedStep", lambda *parts: None)
    one_by_one = train(network, X, tasks, **options)
    for other in (again, apart, one_by_one):
        for name, value in together.state.items():
            assert torch.equal(other.state[name], value), name
        np.testing.assert_array_equal(other.logits(X), together.logits(X))


def test_transformers_in_float32():
    network, (X, y) = WORLDS["transformer"]
    settings = [ColdStart(), Distill(0.4), CoDistill(0.3), Mixup(0.3)]
    gpu, again = compare(network, X, y, settings, 5e-2, epochs=2, precision="float32")
    for name, value in gpu.state.items():
        assert torch.equal(value, again.state[name]), f"{name} does not repeat"


@pytest.mark.parametrize(("size", "length"), [(1, 200), (1, 31), (2, 100)])
def test_kernels_of_transformers_give_the_gradients_of_plain_ones(size, length):
    """With products in full precision, so that an error of 1e-4 is a mistake."""
    errors = relative_errors(size, models=3, rows=5, length=length, vocabulary=500, device="cuda", low=torch.float32)
    assert max(errors.values()) < 1e-4, errors


@pytest.mark.parametrize(("size", "rows"), [(1, 32), (2, 7), (4, 32), (16, 3)])
def test_transformers_in_bfloat16(size, rows):
    errors = relative_errors(size, models=2, rows=rows, length=200, vocabulary=500, device="cuda", low=torch.bfloat16)
    assert max(errors.values()) < 0.1, errors  # bfloat16 keeps 8 bits


@pytest.mark.parametrize("size", [1, 4, 8])  # narrow and wide: other kernels; with 8, torch's own products
def test_transformers_repeat_and_neighbours_do_not_matter(size):
    rng = np.random.default_rng(0)
    X, y = rng.integers(2000, size=(200, 200)), rng.integers(3, size=200)
    X[:, 150:] = 0  # many equal tokens
    network = transformer(size, classes=3, vocabulary=2000)
    tasks = make_tasks(network, X, y, [ColdStart(), Distill(0.4), CoDistill(0.3)] * 8)
    options = {"epochs": 2, "device": "cuda"}
    together = train(network, X, tasks, **options)
    again = train(network, X, tasks, **options)
    apart = train(network, X, tasks, memory_limit=1.0, **options)
    np.testing.assert_array_equal(together.loss, apart.loss)
    for name, value in together.state.items():
        assert torch.equal(value, again.state[name]), f"{name} does not repeat"
        assert torch.equal(value, apart.state[name]), f"{name} depends on neighbours"
    alone = train(network, X, tasks[:1], **options)
    np.testing.assert_array_equal(alone.logits(X)[0], together.logits(X)[0])


def test_threads_that_record_steps_do_not_disturb_each_other():
    """Models leave in most epochs, so each thread records dozens of steps while the others launch theirs."""
    network, (X, y) = WORLDS["convnet"]
    tasks = make_tasks(network, X, y, [ColdStart(), Distill(0.4), CoDistill(0.3), Mixup(0.3)] * 6)
    options = {"epochs": 25, "patience": 1, "device": "cuda"}
    alone = train(network, X, tasks, **options)

    def beside():
        torch.cuda.set_stream(new_stream())
        return train(network, X, tasks, **options)

    with ThreadPoolExecutor(4) as pool:
        for other in [future.result() for future in [pool.submit(beside) for _ in range(12)]]:
            for name, value in alone.state.items():
                assert torch.equal(value, other.state[name]), name


def test_any_module():
    network, (X, y) = WORLDS["own"]
    compare(network, X, y, [ColdStart(), Distill(0.4)], 5e-2, epochs=2)
