"""A made-up run for the dashboards: what do two ranks with a GPU each give for twenty minutes?"""

from __future__ import annotations

from servers.feed import Made, constant, growing

from otel_mlperf import names

MINUTE = 60
LENGTH_S = 20 * MINUTE
SLOW_S = 5 * MINUTE
STEP_S, SLOWER = 0.5, 1.5
WAITED = (0.1, 0.2)
WORKED = (0.9, 0.5)
REQUEST_S = (0.02, 0.08)
EXPECTED_STEPS = 10_000
LIMIT_BYTES = 80e9
GPUS = (
    {names.HW_ID: "GPU-a", names.HW_NAME: "gpu0"},
    {names.HW_ID: "GPU-b", names.HW_NAME: "gpu1"},
)
BY_GPU = {
    "Utilization": (0.9, 0.4),
    "Power": (300, 150),
    "Memory": (60e9, 70e9),
    "Memory of the training process": (55e9, 65e9),
    "Memory busy": (0.5, 0.25),
    "Encoder and decoder": (0.0, 0.125),
    "Clock": (1, 0.5),
    "Throttled": (None, 1),
    "Time throttled by policy": (None, 0.25),
    "Temperature": (60, 88),
    "Temperature margin": (27, 0),
    "Performance state": (0, 2),
    "PCIe and NVLink traffic": (1e9, 5e8),
    "PCIe lanes and generation": (1, 0.5),
    "Active NVLinks": (18, 17),
    "GPU errors": (None, 1),
    "Last XID": (0, 79),
    "Remapped memory": (0, 2),
    "Memory repairs": (0, 1),
    "Lost GPUs": (None, 1),
}
"""What each panel of *GPUs* has to show of the two; None: nothing."""
TOKENS, DEPTH, SIZE = (
    names.Metric(names.user_metric(name), "", instrument, "")
    for name, instrument in (("tokens", "counter"), ("depth", "gauge"), ("size", "histogram"))
)
"""Numbers of the program's own."""
OWN = {TOKENS: 100, DEPTH: 3, SIZE: 40}
"""Growth per second of the counter; what the others always are."""
LATE = LENGTH_S - 40
"""When a GPU breaks: in the last minute."""


def late(value):
    """A total that is 0 until the last minute."""
    return lambda age_s: value * (age_s >= LATE)


def of_a_gpu(place):
    """The series of the GPU of a rank: 0 is well, 1 is in trouble."""

    def made(metric, values, /, **labels):
        course = values[place] if callable(values[place]) else constant(values[place])
        extra = {getattr(names, name): value for name, value in labels.items()}
        return Made(metric, GPUS[place] | extra, course)

    shown = {panel: [value or 0 for value in values] for panel, values in BY_GPU.items()}
    return [
        made(names.GPU_UTILIZATION, shown["Utilization"], HW_GPU_TASK="general"),
        made(names.GPU_UTILIZATION, shown["Encoder and decoder"], HW_GPU_TASK="encoder"),
        made(names.HW_POWER, shown["Power"], HW_TYPE="gpu"),
        made(names.POWER_LIMIT, (700, 700)),
        made(names.GPU_MEMORY_USAGE, shown["Memory"]),
        made(names.GPU_MEMORY_LIMIT, (LIMIT_BYTES, LIMIT_BYTES), HW_MODEL="H100"),
        made(names.DEVICE_PROCESS_MEMORY, shown["Memory of the training process"]),
        made(names.MEMORY_BUSY, shown["Memory busy"]),
        made(names.CLOCK, (1.98e9, 0.99e9), CLOCK_DOMAIN="sm"),
        made(names.CLOCK_LIMIT, (1.98e9, 1.98e9), CLOCK_DOMAIN="sm"),
        made(names.THROTTLE, shown["Throttled"], THROTTLE_REASON="hw_thermal_slowdown"),
        made(names.THROTTLE, (1, 1), THROTTLE_REASON="gpu_idle"),
        made(names.THROTTLE_TIME, (growing(0), growing(0.25)), THROTTLE_REASON="thermal"),
        made(names.HW_TEMPERATURE, shown["Temperature"], HW_SENSOR_LOCATION="gpu"),
        made(
            names.HW_TEMPERATURE_LIMIT, (87, 87), HW_SENSOR_LOCATION="gpu",
            HW_LIMIT_TYPE="throttled",
        ),
        made(names.TEMPERATURE_MARGIN, shown["Temperature margin"]),
        made(names.PERFORMANCE_STATE, shown["Performance state"]),
        made(
            names.GPU_IO, (growing(1e9), growing(5e8)), NETWORK_DIRECTION="receive",
            ACCELERATOR_LINK="pcie",
        ),
        made(names.PCIE_WIDTH, (16, 8)),
        made(names.PCIE_WIDTH_LIMIT, (16, 16)),
        made(names.PCIE_GENERATION, (5, 5)),
        made(names.PCIE_GENERATION_LIMIT, (5, 5)),
        made(names.NVLINK_ACTIVE, shown["Active NVLinks"]),
        made(names.HW_ENERGY, (growing(300), growing(150)), HW_TYPE="gpu"),
        made(names.HW_ERRORS, (late(0), late(1)), HW_TYPE="gpu", ERROR_TYPE="xid"),
        made(names.XID, shown["Last XID"]),
        made(names.ROWS_REMAPPED, shown["Remapped memory"], ERROR_TYPE="corrected"),
        made(names.PAGES_RETIRED, (0, 0), ERROR_TYPE="corrected"),
        made(names.REPAIR_PENDING, shown["Memory repairs"], REPAIR_TYPE="rows"),
        made(names.REPAIR_FAILED, (0, 0)),
        made(names.DEVICE_LOST, (late(0), late(1))),
    ]  # fmt: skip


def own_numbers(times=1):
    """What the program counts, sets and records."""
    courses = (growing(OWN[TOKENS] * times), constant(OWN[DEPTH] * times), constant(OWN[SIZE]))
    return [Made(metric, {}, course) for metric, course in zip(OWN, courses, strict=True)]


def of_a_rank(rank, start_s):
    """Training of a rank: its steps take longer in the last five minutes."""
    phase = {names.ML_PHASE: names.TRAIN}
    shares = {
        names.DATA_LOADING: WAITED[rank],
        names.FORWARD: 0.6,
        names.COMMUNICATION: 0.4 - WAITED[rank],
    }
    return [
        *own_numbers(),
        Made(
            names.STEP_DURATION,
            phase,
            lambda age_s: STEP_S * (SLOWER if age_s > LENGTH_S - SLOW_S else 1),
        ),
        Made(names.STEPS, phase, growing(1 / STEP_S)),
        Made(names.SAMPLES, phase, growing(64 / STEP_S)),
        Made(names.TOKENS, phase, growing(4096 / STEP_S)),
        Made(names.STEP_NUMBER, phase, lambda age_s: age_s // STEP_S),
        Made(names.LAST_STEP_TIME, {}, lambda age_s: start_s + age_s),
        Made(names.STEPS_EXPECTED, {}, constant(EXPECTED_STEPS)),
        Made(names.RUN_START_TIME, {}, constant(start_s)),
        Made(names.RUN_PRODUCTIVE, {}, growing(WORKED[rank])),
        Made(names.SECTION_DURATION, _of(names.CHECKPOINT), constant(2.0)),
        Made(names.SECTION_DURATION, _of(names.REQUEST), constant(REQUEST_S[rank])),
        Made(names.SECTION_BOUNDED, _of(names.REQUEST), growing(10)),
        Made(names.SECTION_WITHIN, _of(names.REQUEST), growing(10 - rank)),
        Made(names.LOSS, phase, constant(float("nan") if rank else 0.25)),
        *(
            Made(metric, {names.DEVICE_INDEX: str(device)}, constant(share * (1 + device)))
            for metric, share in (
                (names.WINDOW_DEVICE_BUSY, 0.4 - rank / 4),
                (names.WINDOW_DEVICE_EXPOSED, 0.1 + rank / 4),
            )
            for device in (0, 1)
        ),
        *(
            Made(
                names.SECTION_SELF_TIME,
                phase | {names.SECTION_CATEGORY: category, names.SECTION_NAME: category},
                growing(share),
            )
            for category, share in shares.items()
        ),
        *(
            Made(
                names.PROCESS_CPU_TIME,
                {names.PROCESS_ROLE: role, names.CPU_MODE: "user"},
                growing(cores),
            )
            for role, cores in (("main", 1), ("worker", 2))
        ),
    ]


def _of(category):
    """Labels of a section of that category and name; an empty one would be none in Prometheus."""
    section = {names.SECTION_NAME: category, names.SECTION_CATEGORY: category}
    return section | {names.ML_PHASE: names.TRAIN}


EXAMPLES = {
    names.ML_PHASE: names.TRAIN,
    names.SECTION_CATEGORY: names.CHECKPOINT,
    names.HW_NAME: "gpu0",
    names.CONTEXT_SWITCH: "involuntary",
    names.PSI_KIND: "some",
    names.DESTINATION: "otlp",
    names.OUTCOME: "delivered",
    names.HW_PARENT: "",
}
"""Values of labels that panels choose by."""


def all_others(known):
    """One series of each metric that ``known`` has not: a total that grows by one, or a one."""
    seen = {one.metric for one in known}
    return [
        Made(
            metric,
            {label: EXAMPLES.get(label, "some") for label in metric.labels},
            growing(1) if metric.instrument == "counter" else constant(1),
        )
        for metric in names.METRICS
        if metric not in seen
    ]
