from collections.abc import Iterator

import torch
from torch import nn

from lesa.optimizers import MuonWithAdamW

RATE, DECAY = 0.02, 0.1


def model() -> nn.Module:
    """One "layer" with a matrix, a bias and a stack of experts, and an embedding outside of it."""
    torch.manual_seed(0)
    layer = nn.Module()
    layer.matrix = nn.Parameter(torch.randn(24, 40))
    layer.bias = nn.Parameter(torch.randn(24))
    layer.experts = nn.Parameter(torch.randn(3, 8, 8))
    layer.frozen = nn.Parameter(torch.randn(5, 5), requires_grad=False)
    whole = nn.Module()
    whole.layers = nn.ModuleList([layer])
    whole.embedding = nn.Parameter(torch.randn(10, 6))
    return whole


def optimizer(of: nn.Module) -> MuonWithAdamW:
    return MuonWithAdamW(of.named_parameters(), "layers.", RATE, DECAY)


def gradients(of: nn.Module, steps: int) -> Iterator[None]:
    rng = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for parameter in of.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.randn(parameter.shape, generator=rng)
        yield


def same(first: nn.Module, second: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_it_steps_as_the_two_would_apart() -> None:
    ours, theirs = model(), model()
    layer = theirs.layers[0]
    apart = [
        torch.optim.Muon([layer.matrix], lr=RATE, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW([layer.experts, theirs.embedding], lr=RATE, betas=(0.9, 0.95), weight_decay=DECAY),
        torch.optim.AdamW([layer.bias], lr=RATE, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    joint = optimizer(ours)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(each, 0.5) for each in (joint, *apart)]
    for _ in zip(gradients(ours, 5), gradients(theirs, 5), strict=True):
        for each in (joint, *apart):
            each.step()
        for schedule in schedules:
            schedule.step()
    assert same(ours, theirs)
    assert not torch.equal(ours.embedding, model().embedding)
    assert torch.equal(ours.layers[0].frozen, model().layers[0].frozen)


def test_a_matrix_moves_by_an_orthogonal_one_with_the_size_of_an_adamw_step() -> None:
    ours = model()
    before = ours.layers[0].matrix.detach().clone()
    joint = MuonWithAdamW(ours.named_parameters(), "layers.", RATE, 0.0)
    for _ in gradients(ours, 1):
        joint.step()
    singular = torch.linalg.svdvals(ours.layers[0].matrix.detach() - before) / (RATE * 0.2 * 40**0.5)
    assert singular.min() > 0.6  # Newton-Schulz leaves them near 1
    assert singular.max() < 1.3


def test_saved_and_loaded_it_goes_on_alike() -> None:
    whole, broken = model(), model()
    unbroken, first = optimizer(whole), optimizer(broken)
    for _ in gradients(whole, 4):
        unbroken.step()
    steps = gradients(broken, 4)
    for _ in range(2):
        next(steps)
        first.step()
    second = optimizer(broken)
    second.load_state_dict(first.state_dict())
    for _ in steps:
        second.step()
    assert same(whole, broken)


def test_without_matrices_or_without_other_weights_it_works() -> None:
    for layers in ("nowhere.", ""):
        ours = nn.Linear(4, 3, bias=layers == "nowhere.")
        joint = MuonWithAdamW(ours.named_parameters(), layers, RATE, DECAY)
        before = ours.weight.detach().clone()
        for _ in gradients(ours, 1):
            joint.step()
        assert not torch.equal(ours.weight, before)
