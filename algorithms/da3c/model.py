"""The worker's copy of the network: acting and gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from relaax.tf.devices import CPU, computes_on_gpu
from relaax.tf.networks import NetworkSpec
from relaax.tf.policies import Policy

from .config import Config
from .host_model import HostModel
from .rollout import Batch

if TYPE_CHECKING:
    from .tensorflow_model import TensorFlowModel

Array = npt.NDArray[np.float32]
Outputs = Mapping[str, Array]

STATISTICS = ("loss/policy", "loss/value", "loss/entropy", "gradient/norm")


class Model:
    """Policy and value of one worker, on the host's engine where that can do it, else in TensorFlow.

    `batch_shape` is T and N of the batches that gradients are computed from, None where they vary.
    """

    def __init__(
        self,
        spec: NetworkSpec,
        policy: Policy,
        config: Config,
        input_dtype: Any,
        batch_shape: tuple[int | None, int | None],
    ) -> None:
        # What has no convolutions is too small for a GPU to pay.
        on_host = not spec.lstm and not (spec.convolutions and computes_on_gpu())
        engine = HostModel if on_host else _tensorflow_model()
        self._engine: HostModel | TensorFlowModel = engine(spec, policy, config, input_dtype, batch_shape)

    def set_parameters(self, parameters: Array) -> None:
        """Take over float32 [P], which must not change any more."""
        self._engine.set_parameters(parameters)

    def act(self, inputs: npt.NDArray[Any], state: Array, keep: int | None = None) -> tuple[Outputs, Array]:
        """Outputs by head, float32 [N, width], for inputs [N, ...]; and the state [N, S] that follows `state`.

        `keep` says that these inputs will be row `keep` of the next batch that a gradient is asked of: what was
        computed of them serves it, if the parameters are still the same then. It saves time and changes nothing; only
        must no other row of that number be acted on with `keep` before that gradient.
        """
        return self._engine.act(inputs, state, keep)

    def gradient(self, batch: Batch, memory: Array | None = None) -> tuple[Array, Array]:
        """The gradient of the loss over a batch, float32 [P], clipped; and the numbers named by `STATISTICS`.

        `memory`, float32 [P]: where it may be computed, and is, but by TensorFlow.
        """
        return self._engine.gradient(batch, memory)


def load_engines(config: Config, device: str) -> None:
    """Import what models on `device` may need and this module does not import: TensorFlow."""
    if config.lstm or device != CPU:
        _tensorflow_model()


def _tensorflow_model() -> type[TensorFlowModel]:
    from .tensorflow_model import TensorFlowModel

    return TensorFlowModel
