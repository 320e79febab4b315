from __future__ import annotations

import math

import numpy as np
import pytest

from relaax.nn.initialization import orthogonal_parameters
from relaax.nn.numpy_actor import forward_numpy
from relaax.nn.specification import Convolution, NetworkSpec
from relaax.nn.tensorflow_engine import forward
from relaax.nn.tensorflow_loading import tf
from support.slow_parameters import fast_and_slow

HEADS = {"policy": 3, "value": 1}
SEPARATE = (("policy",), ("value",))
ATARI = NetworkSpec((84, 84, 4), {"policy": 18, "value": 1}, (256,), (Convolution(16, 8, 4), Convolution(32, 4, 2)))


def random_vector(spec: NetworkSpec, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=spec.layout().size).astype(np.float32)


def no_state(spec: NetworkSpec, environments: int) -> np.ndarray:
    return np.zeros((environments, spec.state_size), np.float32)


def evaluate(spec: NetworkSpec, vector: np.ndarray, inputs: np.ndarray) -> dict[str, np.ndarray]:
    """Heads float32 [N, width] of one step of N environments, inputs [N, ...]."""
    restart = np.zeros((1, len(inputs)), bool)
    outputs, _ = roll(spec, vector, inputs[None], no_state(spec, len(inputs)), restart)
    return {head: output[0] for head, output in outputs.items()}


def roll(
    spec: NetworkSpec,
    vector: np.ndarray,
    inputs: np.ndarray,
    state: np.ndarray,
    restart: np.ndarray,
    known: bool = True,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the results of `forward` as a graph. `known`: whether the graph knows T."""
    parameters = {name: tf.constant(view) for name, view in spec.layout().views(vector).items()}
    steps = len(inputs) if known else None
    signature = [
        tf.TensorSpec([steps, *inputs.shape[1:]], tf.float32),
        tf.TensorSpec(state.shape, tf.float32),
        tf.TensorSpec([steps, *restart.shape[1:]], tf.bool),
    ]
    run = tf.function(lambda *given: forward(spec, parameters, *given), input_signature=signature)
    outputs, state = run(inputs, state, restart)
    return {head: output.numpy() for head, output in outputs.items()}, state.numpy()


def test_atari_network_has_the_shapes_of_the_paper() -> None:
    # (84 - 8) / 4 + 1 = 20;  (20 - 4) / 2 + 1 = 9;  9 * 9 * 32 = 2592.
    assert ATARI.layout().shapes == {
        "conv0/kernel": (8, 8, 4, 16),
        "conv0/bias": (16,),
        "conv1/kernel": (4, 4, 16, 32),
        "conv1/bias": (32,),
        "dense0/kernel": (2592, 256),
        "dense0/bias": (256,),
        "policy/kernel": (256, 18),
        "policy/bias": (18,),
        "value/kernel": (256, 1),
        "value/bias": (1,),
    }
    # 4096 + 16 + 8192 + 32 + 663552 + 256 + 4608 + 18 + 256 + 1
    assert ATARI.layout().size == 681_027


def test_separate_heads_share_no_layers() -> None:
    shapes = NetworkSpec((5,), HEADS, (4,), groups=SEPARATE).layout().shapes
    assert shapes == {
        "policy/dense0/kernel": (5, 4),
        "policy/dense0/bias": (4,),
        "policy/kernel": (4, 3),
        "policy/bias": (3,),
        "value/dense0/kernel": (5, 4),
        "value/dense0/bias": (4,),
        "value/kernel": (4, 1),
        "value/bias": (1,),
    }


def test_group_of_heads_shares_trunk_with_lstm() -> None:
    heads = {"mean": 2, "variance": 1, "value": 1}
    spec = NetworkSpec((5,), heads, (4,), groups=(("mean", "variance"), ("value",)), lstm=3)
    assert spec.layout().shapes == {
        "mean/dense0/kernel": (5, 4),
        "mean/dense0/bias": (4,),
        "mean/lstm/kernel": (7, 12),
        "mean/lstm/bias": (12,),
        "mean/kernel": (3, 2),
        "mean/bias": (2,),
        "variance/kernel": (3, 1),
        "variance/bias": (1,),
        "value/dense0/kernel": (5, 4),
        "value/dense0/bias": (4,),
        "value/lstm/kernel": (7, 12),
        "value/lstm/bias": (12,),
        "value/kernel": (3, 1),
        "value/bias": (1,),
    }
    assert spec.state_size == 12  # h and c of 3 cells, twice


def test_single_trunk_has_no_name_prefix() -> None:
    for groups in ((), (("policy", "value"),)):
        spec = NetworkSpec((5,), HEADS, (), groups=groups, lstm=2)
        assert list(spec.layout().shapes)[:2] == ["lstm/kernel", "lstm/bias"]
        assert spec.layout().shapes["lstm/kernel"] == (7, 8)
        assert spec.state_size == 4
    assert NetworkSpec((5,), HEADS, ()).state_size == 0


@pytest.mark.parametrize(
    "groups", [(("policy",),), (("policy", "value"), ("value",)), (("policy", "value"), ()), (("policy",), ("other",))]
)
def test_head_outside_exactly_one_group_is_refused(groups: tuple[tuple[str, ...], ...]) -> None:
    with pytest.raises(ValueError, match=r"heads \['policy', 'value'\] must be in exactly one group, not \["):
        NetworkSpec((5,), HEADS, (), groups=groups).layout()


def test_head_without_dense_layers_uses_the_inputs() -> None:
    assert NetworkSpec((5,), {"value": 1}, ()).layout().shapes == {"value/kernel": (5, 1), "value/bias": (1,)}


@pytest.mark.parametrize(("height", "fits"), [(36, True), (12, False), (7, False)])
def test_image_smaller_than_kernel_is_refused(height: int, fits: bool) -> None:
    spec = NetworkSpec((height, 84, 1), HEADS, (8,), ATARI.convolutions)
    if fits:
        spec.layout()
        return
    with pytest.raises(ValueError, match=rf"an image of \[{height}, 84, 1\] is too small for convolution \d"):
        spec.layout()


def test_dense_layers_match_hand_calculation() -> None:
    spec = NetworkSpec((2,), {"value": 1}, (2,))
    # x = [1, 2]; kernel [[1, -1], [2, 1]], bias [0.5, -3]: [1 + 4 + 0.5, -1 + 2 - 3] = [5.5, -2] -> relu [5.5, 0];
    # head [10, 100] + 7 = 62.
    vector = np.array([1, -1, 2, 1, 0.5, -3, 10, 100, 7], np.float32)
    inputs = np.array([[1, 2]], np.float32)
    assert evaluate(spec, vector, inputs)["value"].tolist() == [[62.0]]
    outputs, state = forward_numpy(spec, spec.layout().views(vector), inputs, no_state(spec, 1))
    assert (outputs["value"].tolist(), state.shape) == ([[62.0]], (1, 0))


def test_tanh_matches_hand_calculation() -> None:
    spec = NetworkSpec((1,), {"value": 1}, (1,), activation="tanh")
    vector = np.array([2, 1, 3, 0.25], np.float32)  # 3 tanh(2x + 1) + 1/4
    found = evaluate(spec, vector, np.array([[0.5]], np.float32))["value"]
    np.testing.assert_allclose(found, [[3 * math.tanh(2.0) + 0.25]], rtol=1e-6)


def test_convolution_matches_hand_calculation() -> None:
    # One 2x2 filter, stride 2, over a 2x5 image: two positions, without the last column (no padding).
    spec = NetworkSpec((2, 5, 1), {"value": 1}, (), (Convolution(1, 2, 2),))
    assert spec.layout().shapes["conv0/kernel"] == (2, 2, 1, 1)
    kernel, bias, head, head_bias = [1, 2, 3, 4], [-20], [1, 10], [0.5]
    image = np.array([[1, 2, 3, 4, 99], [5, 6, 7, 8, 99]], np.float32).reshape(1, 2, 5, 1)
    # left: 1*1 + 2*2 + 3*5 + 4*6 = 44 - 20 = 24;  right: 3 + 8 + 21 + 32 = 64 - 20 = 44;  24 + 440 + 0.5.
    vector = np.array([*kernel, *bias, *head, *head_bias], np.float32)
    assert evaluate(spec, vector, image)["value"].tolist() == [[464.5]]


def test_separate_trunks_feed_separate_heads() -> None:
    spec = NetworkSpec((1,), {"policy": 1, "value": 1}, (1,), groups=SEPARATE)
    # policy: relu(2x) * 3;  value: relu(5x) * 7, for x = 1.
    vector = np.array([2, 0, 3, 0, 5, 0, 7, 0], np.float32)
    found = evaluate(spec, vector, np.ones((1, 1), np.float32))
    assert (found["policy"].item(), found["value"].item()) == (6.0, 35.0)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("groups", [(), SEPARATE])
@pytest.mark.parametrize("dense", [(), (7,), (64, 64)])
@pytest.mark.parametrize("batch", [1, 9])
def test_numpy_equals_tensorflow(
    activation: str, groups: tuple[tuple[str, ...], ...], dense: tuple[int, ...], batch: int
) -> None:
    spec = NetworkSpec((6,), HEADS, dense, activation=activation, groups=groups)
    vector = orthogonal_parameters(spec, 1, {}) + 0.1 * random_vector(spec)
    inputs = np.random.default_rng(5).normal(size=(batch, 6)).astype(np.float32)
    kept = inputs.copy()
    ours, _ = forward_numpy(spec, spec.layout().views(vector), inputs, no_state(spec, batch))
    theirs = evaluate(spec, vector, inputs)
    assert ours.keys() == theirs.keys() == HEADS.keys()
    for head, width in HEADS.items():
        assert ours[head].shape == (batch, width)
        assert ours[head].dtype == np.float32
        np.testing.assert_allclose(ours[head], theirs[head], atol=1e-5)
    np.testing.assert_array_equal(inputs, kept)


def some_rollout(spec: NetworkSpec, steps: int, environments: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs [T, N, ...], a state [N, S] and restarts [T, N], about one in five."""
    rng = np.random.default_rng(8)
    inputs = rng.normal(size=(steps, environments, *spec.inputs)).astype(np.float32)
    state = rng.normal(size=(environments, spec.state_size)).astype(np.float32)
    return inputs, state, rng.random((steps, environments)) < 0.2


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("lstm", [0, 5])
@pytest.mark.parametrize("groups", [(), SEPARATE])
@pytest.mark.parametrize("steps", fast_and_slow([1, 10, 70], [1, 10], "relaax/nn"))
def test_rollout_equals_acting_step_by_step(
    known: bool, lstm: int, groups: tuple[tuple[str, ...], ...], steps: int
) -> None:
    spec = NetworkSpec((6,), HEADS, (7,), activation="tanh", groups=groups, lstm=lstm)
    vector = orthogonal_parameters(spec, 1, {}) + 0.1 * random_vector(spec)
    inputs, state, restart = some_rollout(spec, steps)
    rolled, last = roll(spec, vector, inputs, state, restart, known)
    views = spec.layout().views(vector)
    for t in range(steps):
        given = np.where(restart[t][:, None], np.float32(0), state)
        kept = given.copy()
        outputs, state = forward_numpy(spec, views, inputs[t], given)
        np.testing.assert_array_equal(given, kept)
        for head, width in HEADS.items():
            assert rolled[head].shape == (steps, 3, width)
            np.testing.assert_allclose(outputs[head], rolled[head][t], atol=1e-5)
    assert last.shape == state.shape == (3, spec.state_size)
    assert state.dtype == np.float32
    np.testing.assert_allclose(last, state, atol=1e-5)


def test_trunks_have_separate_states() -> None:
    spec = NetworkSpec((1,), HEADS, (), groups=SEPARATE, lstm=2)
    vector = random_vector(spec)
    inputs, state, _ = some_rollout(spec, 1)
    changed = state.copy()
    changed[:, :4] += 1  # h and c of the first trunk
    (before, after), (_, last) = zip(
        *(roll(spec, vector, inputs, given, np.zeros((1, 3), bool)) for given in (state, changed)), strict=True
    )
    assert not np.allclose(before["policy"], after["policy"])
    np.testing.assert_array_equal(before["value"], after["value"])
    assert last.shape == (3, 8)


def test_lstm_on_convolutions_equals_single_steps() -> None:
    spec = NetworkSpec((5, 5, 2), HEADS, (4,), (Convolution(2, 3, 2),), lstm=3)
    vector = 0.5 * random_vector(spec)
    inputs, state, restart = some_rollout(spec, 6)
    rolled, last = roll(spec, vector, inputs, state, restart)
    for t in range(6):
        outputs, state = roll(spec, vector, inputs[t : t + 1], state, restart[t : t + 1])
        for head in HEADS:
            np.testing.assert_allclose(outputs[head][0], rolled[head][t], atol=1e-5)
    np.testing.assert_allclose(last, state, atol=1e-5)


@pytest.mark.parametrize(
    ("state", "restart"), [((4, 10), (2, 3)), ((3, 9), (2, 3)), ((3, 10), (1, 3)), ((3, 10), (2, 1))]
)
def test_state_or_restarts_of_other_shape_are_refused(state: tuple[int, ...], restart: tuple[int, ...]) -> None:
    spec = NetworkSpec((6,), HEADS, (), lstm=5)
    parameters = spec.layout().views(random_vector(spec))
    with pytest.raises(ValueError, match="incompatible"):
        forward(spec, parameters, tf.zeros([2, 3, 6]), tf.zeros(state), tf.zeros(restart, tf.bool))


@pytest.mark.parametrize("activation", fast_and_slow(["relu", "tanh"], ["relu"], "relaax/nn"))
@pytest.mark.parametrize("lstm", [0, 3])
@pytest.mark.parametrize("groups", [(), SEPARATE])
@pytest.mark.parametrize(
    ("inputs", "convolutions", "batch"),
    [
        ((84, 84, 4), (Convolution(16, 8, 4), Convolution(32, 4, 2)), 2),
        ((84, 84, 1), (Convolution(8, 8, 4), Convolution(8, 4, 2), Convolution(4, 3, 1)), 1),
        ((5, 9, 2), (Convolution(3, 3, 2),), 7),
    ],
)
def test_numpy_equals_tensorflow_on_images(
    activation: str,
    lstm: int,
    groups: tuple[tuple[str, ...], ...],
    inputs: tuple[int, ...],
    convolutions: tuple[Convolution, ...],
    batch: int,
) -> None:
    spec = NetworkSpec(inputs, HEADS, (16,), convolutions, activation, groups, lstm)
    vector = orthogonal_parameters(spec, 1, {}) + 0.01 * random_vector(spec)
    images = np.random.default_rng(5).random((batch, *inputs), np.float32)
    state = np.random.default_rng(6).normal(size=(batch, spec.state_size)).astype(np.float32)
    kept = images.copy()
    ours, after = forward_numpy(spec, spec.layout().views(vector), images, state)
    theirs, last = roll(spec, vector, images[np.newaxis], state, np.zeros((1, batch), bool))
    for head, width in HEADS.items():
        assert ours[head].shape == (batch, width)
        np.testing.assert_allclose(ours[head], theirs[head][0], atol=1e-4)
    np.testing.assert_allclose(after, last, atol=1e-4)
    np.testing.assert_array_equal(images, kept)


@pytest.mark.parametrize("groups", [(), SEPARATE])
@pytest.mark.parametrize("lstm", [0, 3])
def test_network_gradients_equal_finite_differences(lstm: int, groups: tuple[tuple[str, ...], ...]) -> None:
    spec = NetworkSpec((5, 5, 2), HEADS, (4,), (Convolution(2, 3, 2),), activation="tanh", groups=groups, lstm=lstm)
    layout, rng = spec.layout(), np.random.default_rng(2)
    vector = 0.3 * random_vector(spec)
    inputs, state, restart = some_rollout(spec, 3, environments=2)
    weights = {head: rng.normal(size=(3, 2, width)).astype(np.float32) for head, width in HEADS.items()}

    def total(outputs: dict[str, tf.Tensor]) -> tf.Tensor:
        return sum(tf.reduce_sum(weights[head] * outputs[head]) for head in HEADS)

    variables = {name: tf.Variable(view) for name, view in layout.views(vector).items()}
    with tf.GradientTape() as tape:
        loss = total(forward(spec, variables, *map(tf.constant, (inputs, state, restart)))[0])
    found = layout.join({name: part.numpy() for name, part in tape.gradient(loss, variables).items()})
    moving = tf.Variable(vector)

    @tf.function
    def moved_total() -> tf.Tensor:
        parts = zip(layout.shapes.items(), tf.split(moving, layout.sizes), strict=True)
        parameters = {name: tf.reshape(part, shape) for (name, shape), part in parts}
        return total(forward(spec, parameters, *map(tf.constant, (inputs, state, restart)))[0])

    for index in rng.choice(layout.size, 25, replace=False):
        ends = []
        for move in (1e-2, -1e-2):
            moved = vector.copy()
            moved[index] += move
            moving.assign(moved)
            ends.append(float(moved_total()))
        assert found[index] == pytest.approx((ends[0] - ends[1]) / 2e-2, abs=5e-3)


def test_initial_kernels_are_orthogonal_with_their_gains() -> None:
    spec = NetworkSpec((6,), HEADS, (8, 5))
    views = spec.layout().views(orthogonal_parameters(spec, 3, {"policy": 0.01, "value": 1.0}))
    for name, gain in {"dense0": math.sqrt(2), "dense1": math.sqrt(2), "policy": 0.01, "value": 1.0}.items():
        kernel = views[f"{name}/kernel"]
        small = kernel.T @ kernel if kernel.shape[0] >= kernel.shape[1] else kernel @ kernel.T
        np.testing.assert_allclose(small, gain**2 * np.eye(len(small)), atol=1e-6)
        assert not views[f"{name}/bias"].any()


def test_initial_lstm_has_orthogonal_gates_and_forget_bias_1() -> None:
    spec = NetworkSpec((3,), HEADS, (), groups=SEPARATE, lstm=5)
    views = spec.layout().views(orthogonal_parameters(spec, 3, {"policy": 0.01}))
    for trunk in HEADS:
        assert views[f"{trunk}/lstm/bias"].tolist() == [0.0] * 5 + [1.0] * 5 + [0.0] * 10
        gates = np.split(views[f"{trunk}/lstm/kernel"], 4, axis=1)
        for gate in gates:
            np.testing.assert_allclose(gate[:3] @ gate[:3].T, np.eye(3), atol=1e-6)
            np.testing.assert_allclose(gate[3:].T @ gate[3:], np.eye(5), atol=1e-6)
        assert not np.allclose(gates[0], gates[1])


def test_initial_heads_have_the_given_biases() -> None:
    spec = NetworkSpec((6,), {"mean": 2, "variance": 2, "value": 1}, (4,))
    gains = {"mean": 0.01}
    views = spec.layout().views(orthogonal_parameters(spec, 3, gains, {"variance": 0.5, "value": -1.0}))
    assert views["variance/bias"].tolist() == [0.5, 0.5]
    assert views["value/bias"].tolist() == [-1.0]
    assert not views["mean/bias"].any()
    for name, view in spec.layout().views(orthogonal_parameters(spec, 3, gains)).items():
        if name.endswith("kernel"):
            np.testing.assert_array_equal(view, views[name])


def test_initial_filters_are_orthogonal() -> None:
    views = ATARI.layout().views(orthogonal_parameters(ATARI, 0, {}))
    filters = views["conv0/kernel"].reshape(-1, 16)
    np.testing.assert_allclose(filters.T @ filters, 2 * np.eye(16), atol=1e-5)


def test_initial_parameters_depend_only_on_the_seed() -> None:
    spec = NetworkSpec((6,), HEADS, (8,))
    first, again, other = (orthogonal_parameters(spec, seed, {}) for seed in (1, 1, 2))
    assert first.dtype == np.float32
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)
