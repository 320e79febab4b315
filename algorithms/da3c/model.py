"""The worker's copy of the network: acting and gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from relaax.nn.devices import CPU, computes_on_gpu
from relaax.nn.distributions import Policy
from relaax.nn.networks import NetworkSpec

from .config import Config
from .numpy_model import NumpyModel
from .rollout import Batch

if TYPE_CHECKING:
    from .host_model import HostModel
    from .tensorflow_model import TensorFlowModel

Array = npt.NDArray[np.float32]
Outputs = Mapping[str, Array]

STATISTICS = ("loss/policy", "loss/value", "loss/entropy", "gradient/norm")


class Model:
    """Policy and value of one worker.

    One that learns has them on the host's engine where that can do it, else in TensorFlow. One that only acts needs
    neither: it has them in numpy, but images on a GPU.

    `batch_shape` is T and N of the batches that gradients are computed from, None where they vary.
    """

    def __init__(
        self,
        spec: NetworkSpec,
        policy: Policy,
        config: Config,
        input_dtype: Any,
        batch_shape: tuple[int | None, int | None],
        learns: bool = True,
    ) -> None:
        # What has no convolutions is too small for a GPU to pay.
        on_gpu = bool(spec.convolutions) and computes_on_gpu()
        self._learner: HostModel | TensorFlowModel | None = None
        if learns or on_gpu:
            engine = _host_model() if _on_host(bool(spec.lstm), on_gpu) else _tensorflow_model()
            self._learner = engine(spec, policy, config, input_dtype, batch_shape)
        self._actor = self._learner or NumpyModel(spec)

    def set_parameters(self, parameters: Array) -> None:
        """Take over float32 [P], which must not change any more."""
        self._actor.set_parameters(parameters)

    def act(self, inputs: npt.NDArray[Any], state: Array, keep: int | None = None) -> tuple[Outputs, Array]:
        """Outputs by head, float32 [N, width], for inputs [N, ...]; and the state [N, S] that follows `state`.

        `keep` says that these inputs will be row `keep` of the next batch that a gradient is asked of: what was
        computed of them serves it, if the parameters are still the same then. It saves time and changes nothing; only
        must no other row of that number be acted on with `keep` before that gradient.
        """
        return self._actor.act(inputs, state, keep)

    def gradient(self, batch: Batch, memory: Array | None = None) -> tuple[Array, Array]:
        """The gradient of the loss over a batch, float32 [P], clipped; and the numbers named by `STATISTICS`.

        `memory`, float32 [P]: where it may be computed, and is, but by TensorFlow.
        """
        assert self._learner is not None, "who only acts asks for no gradient"
        return self._learner.gradient(batch, memory)


def load_engines(config: Config, device: str) -> None:
    """Import what models on `device` may need and this module does not import: numba, TensorFlow."""
    if _on_host(config.lstm, on_gpu=False):
        _host_model()
    if not _on_host(config.lstm, on_gpu=device != CPU):
        _tensorflow_model()


def _on_host(lstm: bool, on_gpu: bool) -> bool:
    """Tell whether the gradient is the one written out in `host_model`, not TensorFlow's of the loss."""
    return not lstm and not on_gpu


def _host_model() -> type[HostModel]:
    from .host_model import HostModel

    return HostModel


def _tensorflow_model() -> type[TensorFlowModel]:
    from .tensorflow_model import TensorFlowModel

    return TensorFlowModel
