"""A run small enough to repeat many times: overrides of the digits preset."""

SMALL = [
    "data.limit=240",
    "data.test_limit=120",
    "clients.count=3",
    "pretrain.rounds=3",
    "pretrain.probe_every=2",
    'selection.methods=["maxherding", "random"]',
    "selection.budgets=[6, 12]",
    "train.rounds=5",
]
