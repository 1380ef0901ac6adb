"""Train a small CNN on scikit-learn's handwritten digits and see where the time goes.

    python examples/train_digits.py --epochs 10 --lr 1e-3

The data is real and comes with scikit-learn: nothing is downloaded. At the end the terminal shows
what a step is made of; `otel-mlperf show --step 100` opens one of them.
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import otel_mlperf as om


class Net(nn.Sequential):
    """Two convolutions and a classifier over 8x8 images."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.25),
            nn.Linear(64 * 4 * 4, 10),
        )


def load_data(batch):
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    dataset = TensorDataset(images, torch.tensor(digits.target))
    train, validation = random_split(dataset, [0.8, 0.2])
    workers = {"num_workers": 2, "persistent_workers": True}
    return (
        DataLoader(train, batch, shuffle=True, drop_last=True, **workers),
        DataLoader(validation, batch, **workers),
    )


def train_epoch(model, loader, criterion, optimizer):
    model.train()
    for images, labels in om.steps(loader):
        with om.span("forward"):
            loss = criterion(model(images), labels)
        with om.span("backward"):
            loss.backward()
        with om.span("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        om.log(loss=loss)


@torch.no_grad()
def validate(model, loader):
    model.eval()
    correct = total = 0
    with om.phase("validate"):
        for images, labels in om.steps(loader):
            with om.span("forward"):
                guesses = model(images).argmax(1)
            correct += (guesses == labels).sum().item()
            total += len(labels)
    return correct / total


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", default="digits.pt")
    return parser.parse_args()


def main():
    args = parse_arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # so small a model is fastest on one

    with om.start("digits", params={"lr": args.lr, "batch": args.batch}) as run:
        train_loader, validation_loader = load_data(args.batch)
        model = Net()
        criterion = nn.CrossEntropyLoss()
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

        for epoch in om.epochs(args.epochs):
            train_epoch(model, train_loader, criterion, optimizer)
            accuracy = validate(model, validation_loader)
            print(f"epoch {epoch}: accuracy {accuracy:.3f}")
            with om.span("checkpoint"):
                torch.save(model.state_dict(), args.checkpoint)

        run.result(accuracy=accuracy)


if __name__ == "__main__":
    main()
