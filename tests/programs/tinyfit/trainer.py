"""Runs the loop: batches, forward, backward, update, and a validation after each epoch."""

import time


class Trainer:
    """Fits one number to its batches."""

    def __init__(self):
        self.weight = 0.0

    def fit(self, batches, epochs):
        for _ in range(epochs):
            for batch in self.batches(batches):
                error = self.forward(batch)
                self.update(self.backward(error))
            self.validate(batches)

    def validate(self, batches):
        return sum(self.forward(batch) for batch in self.batches(batches))

    def batches(self, source):
        return iter(source)

    def forward(self, batch):
        time.sleep(0.001)
        return sum(number - self.weight for number in batch) / len(batch)

    def backward(self, error):
        return -2 * error

    def update(self, gradient):
        self.weight -= 0.1 * gradient
