"""A segmentation model of torchvision, with random weights."""

import torch
from torchvision.models.segmentation import lraspp_mobilenet_v3_large

import customops


@torch.no_grad()
def run() -> str:
    torch.manual_seed(0)
    # Normalised by their batch: by the averages of no training, all pixels are of one class.
    model = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=21).train()
    images = torch.randn(2, 3, 96, 128)

    def classes(images: torch.Tensor) -> torch.Tensor:
        return model(images)["out"].argmax(1)

    expected = classes(images)
    with customops.enable():
        found = classes(images)
    if not torch.equal(found, expected):
        raise AssertionError("the classes differ from torch's")
    if expected.unique().numel() == 1:
        raise AssertionError("every pixel is of one class")
    compiled = torch.compile(classes, options=customops.inductor_options())(images)
    # Compiled convolutions round in another way, with torch's reductions as with ours: a few pixels
    # between two classes may change.
    agreeing = (compiled == expected).float().mean().item()
    if agreeing <= 0.99:
        raise AssertionError("compiled, the classes differ from torch's")
    return (
        f"{expected.numel()} pixels, {expected.unique().numel()} classes: eager, equal to torch's; "
        f"compiled, {agreeing:.2%} are"
    )
