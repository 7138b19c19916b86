"""Which modules hold no examples for this environment: those of an extra that is missing here."""

from __future__ import annotations

import importlib.util

NEEDS = {
    "keras": ["src/evalstop/experiments/peers/keras.py"],
    "optuna": ["src/evalstop/experiments/peers/optuna.py"],
    "ray": ["src/evalstop/client/ray.py", "src/evalstop/experiments/peers/ray.py"],
    "lightning": [
        "src/evalstop/client/lightning.py",
        "src/evalstop/experiments/peers/lightning.py",
    ],
    "trl": [
        "src/evalstop/client/torch.py",
        "src/evalstop/client/transformers.py",
        "src/evalstop/experiments/peers/transformers.py",
        "src/evalstop/lab/heldout.py",
        "src/evalstop/lab/proxy.py",
        "src/evalstop/lab/start.py",
        "src/evalstop/lab/sweep.py",
        "src/evalstop/lab/training.py",
    ],
    "verl": ["src/evalstop/client/verl.py"],
}
"""Package: the modules that import it. Their tests lie in tests/extras and run in CI there."""

collect_ignore = [
    module
    for package, modules in NEEDS.items()
    if importlib.util.find_spec(package) is None
    for module in modules
]
