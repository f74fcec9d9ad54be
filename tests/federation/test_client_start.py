"""What a client process that answers one message loads: Flower's own start one for each."""

import subprocess
import sys


def test_a_round_of_training_loads_neither_compiler_nor_algebra_nor_selectors():
    program = """if True:
        import sys
        from cofal.federation import client_app, models
        from cofal.learning.optimizers import make_optimizer
        from cofal.learning.state import state_to_arrays
        from cofal.rng import torch_generator
        description = models.image_model("resnet-tiny", 1, 3)
        arrays = state_to_arrays(models.build(description, torch_generator(0)))
        model = models.rebuild(description, arrays)
        make_optimizer("sgd", model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.0)
        loaded = {"torch._dynamo", "sympy", "numba"} & set(sys.modules)
        assert not loaded, loaded
    """
    subprocess.run([sys.executable, "-c", program], check=True)
