#!/usr/bin/env python3
"""What the ranks of the training benchmark train: scikit-learn's digits and a small network.

training_model.py FILE   writes the digits to FILE, so that the ranks need not import scikit-learn"""
import sys

import numpy as np

TEST_IMAGES = 360  # of 1797


def save(path):
    """The same division into training and test images for every seed."""
    from sklearn.datasets import load_digits
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.images[order] / 16).astype(np.float32)[:, None]
    labels = digits.target[order].astype(np.int64)
    np.savez(path, train_images=images[TEST_IMAGES:], train_labels=labels[TEST_IMAGES:],
             test_images=images[:TEST_IMAGES], test_labels=labels[:TEST_IMAGES])


class Digits:
    """Training batches of a rank, alike for all contenders with one seed, and the test images."""

    def __init__(self, path, seed, rank, ranks, global_batch):
        import torch
        arrays = {name: torch.from_numpy(array) for name, array in np.load(path).items()}
        self.images, self.labels = arrays["train_images"], arrays["train_labels"]
        self.test_images, self.test_labels = arrays["test_images"], arrays["test_labels"]
        self.seed, self.rank, self.ranks, self.batch = seed, rank, ranks, global_batch
        self.steps_of_epoch = len(self.labels) // global_batch
        self.epoch, self.order = None, None

    def of_step(self, step):
        """Images and labels of this rank; a function of the step, so that a rank may skip some."""
        epoch, number = divmod(step, self.steps_of_epoch)
        if epoch != self.epoch:
            generator = np.random.default_rng([self.seed, epoch])
            self.epoch, self.order = epoch, generator.permutation(len(self.labels))
        share = self.batch // self.ranks
        start = number * self.batch + self.rank * share
        chosen = self.order[start:start + share]
        return self.images[chosen], self.labels[chosen]


def build(seed, width, parts=1):
    """Two convolutions and one wide layer that holds nearly all parameters: 257 a unit of `width`.
    A step computes little for what it communicates. `parts`: the wide layer is so many layers beside
    each other, each of which may be a bucket of its own."""
    import torch
    from torch import nn

    class Beside(nn.ModuleList):
        def forward(self, values):
            return torch.cat([layer(values) for layer in self], 1)

    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        Beside(nn.Linear(256, width // parts) for _ in range(parts)), nn.ReLU(),
        nn.Linear(width, 10))


def optimizer_of(model, rate=1.0):
    """The wide layer has no momentum: three passes over its parameters would be a third of what a
    step computes. `rate`: 0 changes nothing, and takes as long."""
    import torch
    wide = max(model, key=lambda layer: sum(each.numel() for each in layer.parameters()))
    rest = [each for layer in model if layer is not wide for each in layer.parameters()]
    return torch.optim.SGD([{"params": wide.parameters(), "lr": 0.1 * rate},
                            {"params": rest, "lr": 0.03 * rate, "momentum": 0.9}], lr=rate)


def accuracy(model, digits):
    """Share of the test images that `model` names right."""
    import torch
    with torch.no_grad():
        right = model(digits.test_images).argmax(1) == digits.test_labels
    return float(right.float().mean())


if __name__ == "__main__":
    save(sys.argv[1])
