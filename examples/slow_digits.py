"""Train a small CNN on real digits at half of the possible speed; docs/tutorial.md repairs it."""

import argparse

import numpy as np
import torch
from scipy.ndimage import gaussian_filter, zoom
from sklearn.datasets import load_digits
from sklearn.metrics import f1_score
from torch import nn
from torch.utils.data import DataLoader


def prepare(image):
    return torch.from_numpy(gaussian_filter(zoom(image, 1.5), 0.4)).unsqueeze(0)


class Digits:
    """Enlarged, smoothed digits: prepared once, or each time that one is read."""

    def __init__(self, prepare_once):
        digits = load_digits()
        self.images, self.labels = digits.images.astype(np.float32) / 16, digits.target
        self.prepared = [prepare(image) for image in self.images] if prepare_once else None

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.prepared[index] if self.prepared else prepare(self.images[index])
        return image, self.labels[index]


def main(args):
    torch.manual_seed(0)
    loader = DataLoader(Digits(args.prepare_once), batch_size=64, shuffle=True)
    convolutions = nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU()
    model = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(32 * 4 * 4, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    labels, predicted = [], []
    for epoch in range(args.epochs):
        for step, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            outputs = model(x)
            loss = nn.functional.cross_entropy(outputs, y)
            loss.backward()
            optimizer.step()
            labels += y.tolist()
            predicted += outputs.argmax(1).tolist()
            if step % args.score_every == 0:
                score = f1_score(labels[-4000:], predicted[-4000:], average="macro")
        print(f"epoch {epoch}: F1 {score:.3f}, loss {loss.item():.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--prepare-once", action="store_true")
    parser.add_argument("--score-every", type=int, default=1)
    main(parser.parse_args())
