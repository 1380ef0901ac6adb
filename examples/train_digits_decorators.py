"""The digits again, instrumented by decorators: one line above each function, none inside.

python examples/train_digits_decorators.py --epochs 10
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import otel_mlperf as om


class Trainer:
    """A model, its loss and its optimizer; each method is a section of the run."""

    def __init__(self, lr):
        self.model = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.25),
            nn.Linear(64 * 4 * 4, 10),
        )
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr)

    @om.step
    def train_step(self, images, labels):
        loss = self.forward(images, labels)
        self.backward(loss)
        self.update()
        om.log(loss=loss)

    @om.span
    def forward(self, images, labels):
        return self.criterion(self.model(images), labels)

    @om.span
    def backward(self, loss):
        loss.backward()

    @om.span("optimizer")
    def update(self):
        self.optimizer.step()
        self.optimizer.zero_grad()

    @om.span("score")
    @torch.no_grad()
    def score(self, loader):
        self.model.eval()
        correct = sum((self.model(x).argmax(1) == y).sum().item() for x, y in loader)
        self.model.train()
        return correct / len(loader.dataset)

    @om.span("checkpoint")
    def save(self, path):
        torch.save(self.model.state_dict(), path)


@om.span("load_data")
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", default="digits.pt")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # so small a model is fastest on one

    run = om.start("digits", params={"lr": args.lr, "batch": args.batch})
    train_loader, validation_loader = load_data(args.batch)
    trainer = Trainer(args.lr)
    for epoch in om.epochs(args.epochs):
        for images, labels in train_loader:
            trainer.train_step(images, labels)
        accuracy = trainer.score(validation_loader)
        print(f"epoch {epoch}: accuracy {accuracy:.3f}")
        trainer.save(args.checkpoint)
    run.result(accuracy=accuracy)


if __name__ == "__main__":
    main()
