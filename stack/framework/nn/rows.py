"""Modules that hold settings of a function: each is a row, the function's name and how many tensors
it takes. The types are generated."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

from hal.core.facts import dataclass
from stack.framework import functional as F
from stack.framework.errors import absent
from stack.framework.nn.module import Module
from stack.framework.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Row:
    """`function` of `functional` takes `inputs` tensors; its other parameters are the module's, but
    those of `fixed`. `rename` has the module's names where they differ; with `in_place` the module
    may write its result into its input."""

    function: str
    inputs: int = 1
    in_place: bool = False
    fixed: tuple[tuple[str, Any], ...] = ()
    rename: tuple[tuple[str, str], ...] = ()

    def settings(self) -> list[inspect.Parameter]:
        """The module's parameters."""
        names, fixed = dict(self.rename), dict(self.fixed)
        given = inspect.signature(getattr(F, self.function)).parameters.values()
        own = [p for p in list(given)[self.inputs :] if p.name not in {*fixed, "training"}]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        found = [p.replace(name=names.get(p.name, p.name), kind=kind) for p in own]
        if self.in_place and "inplace" not in {p.name for p in found}:
            found.append(inspect.Parameter("inplace", kind, default=False, annotation="bool"))
        return found


def _writing(*names: str) -> dict[str, Row]:
    return {module: Row(function, in_place=True) for module, function in map(str.split, names)}


def _of(inputs: int, *names: str) -> dict[str, Row]:
    return {module: Row(function, inputs) for module, function in map(str.split, names)}


def _each_rank(module: str, function: str) -> dict[str, Row]:
    return {f"{module}{n}d": Row(f"{function}{n}d") for n in (1, 2, 3)}


_PLAIN = (("output_size", None),)

ROWS: dict[str, Row] = {
    **_writing("ReLU relu", "ReLU6 relu6", "LeakyReLU leaky_relu", "ELU elu", "SELU selu"),
    **_writing("CELU celu", "SiLU silu", "Mish mish", "Hardswish hardswish", "Hardtanh hardtanh"),
    **_writing("Hardsigmoid hardsigmoid", "Threshold threshold", "Dropout dropout"),
    **_of(1, "GELU gelu", "Tanh tanh", "Sigmoid sigmoid", "LogSigmoid logsigmoid", "GLU glu"),
    **_of(1, "Softplus softplus", "Softsign softsign", "Tanhshrink tanhshrink"),
    **_of(1, "Hardshrink hardshrink", "Softshrink softshrink", "Softmax softmax"),
    **_of(1, "LogSoftmax log_softmax", "Softmin softmin", "LocalResponseNorm local_response_norm"),
    "Softmax2d": Row("softmax", fixed=(("dim", -3),)),
    **_of(1, "AlphaDropout alpha_dropout", "FeatureAlphaDropout feature_alpha_dropout"),
    **_writing("RReLU rrelu", "Dropout1d dropout1d", "Dropout2d dropout2d", "Dropout3d dropout3d"),
    **_each_rank("MaxPool", "max_pool"),
    **_each_rank("AvgPool", "avg_pool"),
    **_each_rank("AdaptiveAvgPool", "adaptive_avg_pool"),
    **_each_rank("AdaptiveMaxPool", "adaptive_max_pool"),
    **_each_rank("LPPool", "lp_pool"),
    **_of(1, "PixelShuffle pixel_shuffle", "PixelUnshuffle pixel_unshuffle"),
    **_of(1, "ChannelShuffle channel_shuffle", "Unfold unfold", "Fold fold"),
    "Upsample": Row("interpolate", fixed=(("antialias", False),)),
    "UpsamplingNearest2d": Row("interpolate", fixed=(("mode", "nearest"),)),
    "UpsamplingBilinear2d": Row(
        "interpolate", fixed=(("mode", "bilinear"), ("align_corners", True))
    ),
    **_of(2, "MSELoss mse_loss", "L1Loss l1_loss", "SmoothL1Loss smooth_l1_loss"),
    **_of(2, "HuberLoss huber_loss", "CrossEntropyLoss cross_entropy", "NLLLoss nll_loss"),
    **_of(2, "BCELoss binary_cross_entropy", "KLDivLoss kl_div"),
    **_of(2, "BCEWithLogitsLoss binary_cross_entropy_with_logits"),
    **_of(2, "PoissonNLLLoss poisson_nll_loss", "HingeEmbeddingLoss hinge_embedding_loss"),
    **_of(2, "SoftMarginLoss soft_margin_loss", "MultiMarginLoss multi_margin_loss"),
    **_of(2, "MultiLabelMarginLoss multilabel_margin_loss", "NLLLoss2d nll_loss"),
    **{
        f"MaxUnpool{n}d": Row(f"max_unpool{n}d", 2, fixed=(("output_size", None),))
        for n in (1, 2, 3)
    },
    "TripletMarginWithDistanceLoss": Row("triplet_margin_with_distance_loss", 3),
    **_of(2, "MultiLabelSoftMarginLoss multilabel_soft_margin_loss"),
    **_of(2, "CosineSimilarity cosine_similarity", "PairwiseDistance pairwise_distance"),
    **_of(3, "GaussianNLLLoss gaussian_nll_loss", "MarginRankingLoss margin_ranking_loss"),
    **_of(3, "CosineEmbeddingLoss cosine_embedding_loss", "TripletMarginLoss triplet_margin_loss"),
    **_of(4, "CTCLoss ctc_loss"),
}
"""A module is here as soon as its function is."""


@cache
def module_of(name: str) -> type[Module]:
    """The class of a row. Raises AttributeError where its function is not there."""
    row = ROWS[name]
    function = getattr(F, row.function)
    settings = row.settings()
    signature = inspect.Signature(settings)
    functions_name = {own: theirs for theirs, own in row.rename}
    takes = inspect.signature(function).parameters

    def __init__(self: Module, *args: Any, **kwargs: Any) -> None:
        Module.__init__(self)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        for key, value in bound.arguments.items():
            if isinstance(value, Tensor):
                self.register_buffer(key, value)
            else:
                setattr(self, key, value)

    def forward(self: Any, *inputs: Tensor) -> Any:
        given = {functions_name.get(p.name, p.name): getattr(self, p.name) for p in settings}
        in_place = given.pop("inplace", False) if row.in_place else False
        given.update(row.fixed)
        if "training" in takes:
            given["training"] = self.training
        result = function(*inputs, **{k: v for k, v in given.items() if k in takes})
        return inputs[0].copy_(result) if in_place else result

    def extra_repr(self: Module) -> str:
        return ", ".join(f"{p.name}={getattr(self, p.name)!r}" for p in settings)

    return type(
        name,
        (Module,),
        {
            "__init__": __init__,
            "__doc__": f"`functional.{row.function}` with fixed settings. {function.__doc__ or ''}",
            "__module__": __name__,
            "__signature__": signature,
            "forward": forward,
            "extra_repr": extra_repr,
        },
    )


__all__ = sorted(name for name, row in ROWS.items() if hasattr(F, row.function))


def __getattr__(name: str) -> Any:
    """The class of a row, also by pickle."""
    if name in __all__:
        return module_of(name)
    raise absent("nn", name, __all__)
