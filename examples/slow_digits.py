"""A training that is slower than it must be, in plain PyTorch; docs/start-here.md makes it faster.

    otel-mlperf run examples/slow_digits.py

Options apply what the findings advise: ``--workers 2`` and ``--score-every 20``.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from scipy.ndimage import rotate, shift
from sklearn.datasets import load_digits
from sklearn.metrics import f1_score
from torch import nn
from torch.utils.data import DataLoader, Dataset


class AugmentedDigits(Dataset):
    """Each digit, turned and moved in another way whenever it is read."""

    def __init__(self):
        digits = load_digits()
        self.images, self.labels = digits.images.astype(np.float32) / 16, digits.target

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        random = np.random.default_rng()
        turned = rotate(self.images[index], random.uniform(-20, 20), reshape=False, order=3)
        image = shift(turned, random.uniform(-1, 1, 2), order=3)
        return torch.from_numpy(image).unsqueeze(0), self.labels[index]


def make_model():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 10),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--score-every", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # so small a model is fastest on one

    loader = DataLoader(
        AugmentedDigits(),
        args.batch,
        shuffle=True,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
    )
    model = make_model()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seen, predicted, score = [], [], 0.0
    for epoch in range(args.epochs):
        for step, (images, labels) in enumerate(loader):
            optimizer.zero_grad()
            outputs = model(images)
            loss = criterion(outputs, labels)
            loss.backward()
            optimizer.step()
            seen += labels.tolist()
            predicted += outputs.argmax(1).tolist()
            if step % args.score_every == 0:
                score = f1_score(seen[-4000:], predicted[-4000:], average="macro")
        print(f"epoch {epoch}: F1 {score:.3f}, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
