"""One thread for the selection tests: their arrays are tiny, and threads only wait for each other on a busy machine."""

import numba
import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    threads, workers = torch.get_num_threads(), numba.get_num_threads()
    torch.set_num_threads(1)
    numba.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    numba.set_num_threads(workers)
