"""The digits again, with profiler windows: which operators are the steps made of?

    python examples/train_digits_profiled.py --epochs 3

Three steps of each epoch and the last validation are recorded by torch.profiler. Their traces lie
in the run's folder under profiles/, for Perfetto and TensorBoard; `otel-mlperf kernels` adds them
up, and `otel-mlperf show` hangs operators and kernels under forward, backward and optimizer. No
line of the program is needed for that:

    otel-mlperf run --profile wait=10,active=3 examples/train_digits_untouched.py
"""

from __future__ import annotations

import torch
from torch import nn
from train_digits import Net, load_data, parse_arguments, train_epoch, validate

import otel_mlperf as om


def main():
    args = parse_arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # so small a model is fastest on one

    schedule = "wait=10,warmup=1,active=3,every=epoch"
    with om.start("digits", params={"lr": args.lr, "batch": args.batch}, profile=schedule) as run:
        train_loader, validation_loader = load_data(args.batch)
        model = Net()
        criterion = nn.CrossEntropyLoss()
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

        for epoch in om.epochs(args.epochs):
            train_epoch(model, train_loader, criterion, optimizer)
            accuracy = validate(model, validation_loader)
            print(f"epoch {epoch}: accuracy {accuracy:.3f}")
            torch.save(model.state_dict(), args.checkpoint)

        with om.torch_profile(record_shapes=True), om.span("last validation"):
            validate(model, validation_loader)
        run.result(accuracy=accuracy)


if __name__ == "__main__":
    main()
