"""LESA (arXiv 2502.13794): predict a layer from its neighbours' coefficients in the shared basis.

Projections are ``U S G([V_left, V_right])``. Norm weights are not predicted: they come from layer 0 as in the authors'
release, from the left neighbour, or are the neighbours' mean. Whatever else a layer holds (biases; the router of a
mixture of experts, unless it is to be predicted too) is the left neighbour's.

The network knows one place between two layers, the middle. Of several new layers in a gap, one in the middle is what it
predicts; the others lie on the straight line from there to the neighbour on their side. Weights are linear in the
coefficients, so it is the same line in both.
"""

from torch import Tensor

from lesa.errors import LesaError
from lesa.families import is_norm
from lesa.initializers import Learned, NewLayer
from lesa.linear import Linear
from lesa.predictor import Predictor, Predictors
from lesa.spectrum import Spectrum

LEARNED = True


def initialize(layer: NewLayer) -> dict[str, Tensor]:
    """The predicted layer.

    Raises:
        LesaError: something was not learned, since not every layer of the base has it in the same shape.
        ValueError: nothing learned was given.
    """
    if layer.learned is None:
        raise ValueError("lesa needs a spectrum and predictors")
    left, right = layer.left(), layer.right()
    made = {name: _norm(layer, name, tensor, right[name]) if is_norm(name) else tensor for name, tensor in left.items()}
    predictors = Predictors(layer.learned.predictor)
    for kind, name in layer.layers.kinds_of(layer.sources[0]).items():
        if kind not in predictors.kinds:
            raise LesaError(
                f"lesa has learned nothing of {kind}: not every layer of {layer.layers.checkpoint.folder} has it in "
                "the same shape, or there are fewer than three layers; another method would be right, such as llama_pro"
            )
        if layer.router == "predict" or kind not in layer.layers.family.routers:
            predictor = predictors.predictor(kind).to(layer.device)
            made[name] = _predict(predictor, layer.learned, kind, left[name], right[name], layer)
    return made


def _predict(
    predictor: Predictor | Linear, learned: Learned, kind: str, left: Tensor, right: Tensor, layer: NewLayer
) -> Tensor:
    oriented = layer.layers.oriented
    neighbors = [oriented(weight).to(layer.device) for weight in (left, right)]
    if isinstance(predictor, Linear):  # which takes weights as it takes their coefficients
        made = predictor(*(weight.float() for weight in neighbors))
    else:
        basis = Spectrum(learned.spectrum).basis(kind, layer.device)
        made = basis.weight(predictor(*map(basis.coefficients, neighbors)))
    if layer.fraction != 0.5:
        off = abs(2 * layer.fraction - 1)
        made = made * (1 - off) + neighbors[layer.fraction > 0.5].to(made) * off
    return oriented(made).to(left.dtype)


def _norm(layer: NewLayer, name: str, left: Tensor, right: Tensor) -> Tensor:
    if layer.norms == "first":
        return layer.layers.tensor(0, name)
    if layer.norms == "mean":
        return layer.between(left, right)
    return left
