"""What does recording add to a step of an untouched program, by who runs its loop?

    python tests/bench/frameworks.py [STARTS]

A plain loop, Lightning and the Trainer of Hugging Face train the same network. Each lives in three
processes: two that nobody records and one under ``otel-mlperf run``. They take turns, in shuffled
order: a block of the first plain process stands right before and right after each block of the
others, so that the second one (A/A) shows how much two equal processes differ on this machine. A
step's time is that between two batches asked for, without the first of a block: by the wall's
clock, and by that of the loop's own thread, which does all of the work here and stands still while
others, or a hypervisor, have its CPU. The fastest tenth of a block's steps was disturbed least. All
three processes are started anew several times: where one's memory lies makes it faster or slower
for as long as it lives, by up to a tenth.
"""

from __future__ import annotations

import gc
import itertools
import logging
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import contextmanager
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import torch
from runs import Ended, environment
from torch import nn
from torch.utils.data import DataLoader, Dataset

STARTS, ROUNDS = 8, 2
STEPS, WARM = 120, 10
BATCH, WIDTH = 64, 512
CLOCKS = ("wall", "thread", "wall, fastest tenth")
RECORDED = ("-m", "otel_mlperf", "run", "--name", "frameworks")


class Rows(Dataset):
    """Random rows that note when the first of each batch was asked for."""

    def __init__(self):
        self.x = torch.randn(STEPS * BATCH, WIDTH)
        self.labels = torch.randint(0, 10, (STEPS * BATCH,))
        self.rows, self.asked = 0, []

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        if self.rows % BATCH == 0:
            self.asked.append((time.perf_counter(), time.thread_time()))
        self.rows += 1
        return {"x": self.x[i], "labels": self.labels[i]}

    @property
    def step_s(self):
        """Seconds of a step by each clock, from its first row to that of the next."""
        by_clock = zip(*self.asked[WARM:], strict=True)
        wall, thread = ([b - a for a, b in itertools.pairwise(times)] for times in by_clock)
        return [statistics.mean(wall), statistics.mean(thread), statistics.quantiles(wall, n=10)[0]]


class Net(nn.Module):
    """Three layers and their loss, as Transformers' models give it."""

    def __init__(self):
        super().__init__()
        sizes = ((WIDTH, WIDTH), (WIDTH, WIDTH), (WIDTH, 10))
        self.layers = nn.Sequential(*(nn.Linear(*size) for size in sizes))

    def forward(self, x, labels):
        return {"loss": nn.functional.cross_entropy(self.layers(x), labels)}


def train_plain(rows):
    """The loop as one writes it."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in DataLoader(rows, BATCH):
        loss = model(**batch)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def train_lightning(rows):
    """The same by Lightning."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, batch, _):
            return self.net(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        barebones=True,
    ).fit(Module(), DataLoader(rows, BATCH))


def train_transformers(rows):
    """The same by the Trainer of Hugging Face."""
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        trainer = transformers.Trainer(
            model=Net(),
            args=transformers.TrainingArguments(
                output_dir=folder,
                num_train_epochs=1,
                per_device_train_batch_size=BATCH,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
            ),
            train_dataset=rows,
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()


LOOPS = {
    "plain loop": train_plain,
    "Lightning": train_lightning,
    "Hugging Face Trainer": train_transformers,
}


def serve(loop):
    """In a process of its own: a block for each line that is read, and what a step of it took."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    answers, sys.stdout = sys.stdout, sys.stderr
    for _ in sys.stdin:
        gc.collect()
        rows = Rows()
        LOOPS[loop](rows)
        print(*rows.step_s, file=answers, flush=True)


@contextmanager
def served(loop, words, runs):
    """A process that runs a block of the loop each time that it is called."""
    process = subprocess.Popen(
        [sys.executable, *words, __file__, "serve", loop],
        env=environment(runs, OTEL_MLPERF_CONSOLE="false", HF_HUB_OFFLINE="1"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )

    def block():
        process.stdin.write("\n")
        process.stdin.flush()
        return tuple(map(float, process.stdout.readline().split()))

    try:
        yield block
        process.communicate()
    finally:
        process.kill()


def measure(loop, runs):
    """Ratios to the plain blocks around by variant and clock, and seconds of plain steps."""
    with (
        served(loop, (), runs) as plain,
        served(loop, (), runs) as again,
        served(loop, RECORDED, runs) as recorded,
    ):
        variants = {"nothing (A/A)": again, "otel-mlperf run": recorded}
        ratios, plain_s = {(name, clock): [] for name in variants for clock in CLOCKS}, []
        for block in (plain, *variants.values()):
            block()
        for _ in range(ROUNDS):
            for name in random.sample(list(variants), len(variants)):
                blocks = [block() for block in (plain, variants[name], plain)]
                for clock, *of_clock in zip(CLOCKS, *blocks, strict=True):
                    before, during, after = of_clock
                    ratios[name, clock].append(2 * during / (before + after))
                plain_s.append(blocks[0][0])
    return ratios, plain_s


def recorded_steps(runs):
    """How many steps the recorded process has left."""
    ended = Ended(0, "", "", runs, runs).settled()
    (row,) = ended.rows("SELECT count(*)::BIGINT AS steps FROM steps WHERE phase = 'train'")
    return row["steps"]


def measure_all(loop, starts):
    """The same of several starts, each of which leaves all steps; the median of the seconds."""
    all_ratios, all_s = {}, []
    for _ in range(starts):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            ratios, plain_s = measure(loop, Path(folder))
            steps, expected = recorded_steps(Path(folder)), STEPS * (ROUNDS + 1)
        assert steps == expected, f"{loop}: {steps} steps recorded, {expected} trained"
        all_s += plain_s
        for key, values in ratios.items():
            all_ratios.setdefault(key, []).extend(values)
    return all_ratios, statistics.median(all_s)


def print_table(starts):
    print("\n| loop, step | | clock | overhead | middle half | a step |")
    print("|---|---|---|---:|---:|---:|")
    for loop in LOOPS:
        ratios, step_s = measure_all(loop, starts)
        for (name, clock), values in ratios.items():
            low, middle, high = (100 * (q - 1) for q in statistics.quantiles(values, n=4))
            print(
                f"| {loop}, {step_s * 1e3:.2f} ms | {name} | {clock} | {middle:+.2f} % "
                f"| {low:+.2f} … {high:+.2f} % | {middle / 100 * step_s * 1e6:+.1f} µs |"
            )
    print(f"\nload of the machine at the end: {os.getloadavg()[0]:.1f}", file=sys.stderr)


def main():
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2])
    else:
        print_table(int(sys.argv[1]) if len(sys.argv) > 1 else STARTS)


if __name__ == "__main__":
    main()
