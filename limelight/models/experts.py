"""Mixture of experts in place of one MLP: a router chooses a few gated MLPs for each token (Shazeer et al. 2017, arXiv
1701.06538). Owns weights, never a sequence; the experts' products are one call of the kernels.
"""

from limelight.kernels.interface import ExpertWeights, Numbers, Rows
from limelight.models.layers import GatedMLP, LayerBuilder, Shapes, StepState, matrix_shapes
from limelight.models.spec import ExpertSettings, ModelSpec


class Experts:
    """Router, experts, and the expert that all tokens take, if there is one."""

    def __init__(self, builder: LayerBuilder, *, router: str = "mlp.gate", chosen_first: bool = False) -> None:
        """Read the parameters of `expert_shapes(spec, router)` of the layer.

        Args:
            router: name of the matrix that scores the experts.
            chosen_first: the softmax is over the scores of the chosen experts, not over all.
        """
        spec, settings = builder.spec, _settings(builder.spec)
        self._kernels = builder.kernels
        self._num_per_token = settings.num_per_token
        self._normalize = settings.normalize
        self._chosen_first = chosen_first
        self._router = builder.projection([router], biases=spec.mlp_bias)
        self._packed = builder.kernels.pack_experts(_expert_weights(builder))
        has_shared = settings.shared_intermediate_size is not None
        self._shared = GatedMLP(builder, name="mlp.shared_expert") if has_shared else None
        self._shared_gate = builder.projection(["mlp.shared_expert_gate"], biases=False) if has_shared else None

    def __call__(self, hidden: Rows, state: StepState) -> Rows:
        """[tokens, hidden] -> [tokens, hidden]."""
        kernels = self._kernels
        chosen, shares = kernels.route(
            self._router(hidden, state), self._num_per_token, chosen_first=self._chosen_first, normalize=self._normalize
        )
        outputs = kernels.experts(hidden, chosen, shares, self._packed)
        if self._shared is None or self._shared_gate is None:
            return outputs
        return kernels.add_gated(outputs, self._shared_gate(hidden, state), self._shared(hidden, state))


def expert_shapes(spec: ModelSpec, router: str = "mlp.gate") -> Shapes:
    """What `Experts` reads of a layer."""
    settings = _settings(spec)
    hidden, inner = spec.hidden_size, settings.intermediate_size
    shapes = matrix_shapes(router, settings.num_experts, hidden, bias=spec.mlp_bias)
    for name, outputs, inputs in (("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)):
        one = matrix_shapes(f"mlp.experts.{name}_proj", outputs, inputs, bias=spec.mlp_bias)
        shapes |= {key: (settings.num_experts, *shape) for key, shape in one.items()}
    if shared := settings.shared_intermediate_size:
        shapes |= matrix_shapes("mlp.shared_expert.gate_proj", shared, hidden, bias=spec.mlp_bias)
        shapes |= matrix_shapes("mlp.shared_expert.up_proj", shared, hidden, bias=spec.mlp_bias)
        shapes |= matrix_shapes("mlp.shared_expert.down_proj", hidden, shared, bias=spec.mlp_bias)
        shapes |= matrix_shapes("mlp.shared_expert_gate", 1, hidden, bias=False)
    return shapes


def _expert_weights(builder: LayerBuilder) -> ExpertWeights:
    spec, prefix = builder.spec, f"{builder.prefix}.mlp.experts"

    def bias(name: str) -> Numbers | None:
        return builder.parameters.plain(f"{prefix}.{name}.bias") if spec.mlp_bias else None

    return ExpertWeights(
        read_gate=lambda: builder.parameters.matrix(f"{prefix}.gate_proj.weight"),
        read_up=lambda: builder.parameters.matrix(f"{prefix}.up_proj.weight"),
        read_down=lambda: builder.parameters.matrix(f"{prefix}.down_proj.weight"),
        gate_bias=bias("gate_proj"),
        up_bias=bias("up_proj"),
        down_bias=bias("down_proj"),
        activation=spec.activation,
        limit=spec.gate_limit,
    )


def _settings(spec: ModelSpec) -> ExpertSettings:
    assert spec.experts is not None, "layers with experts are built of a specification with experts only"
    return spec.experts
