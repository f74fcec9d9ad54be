"""MaxHerding: greedy maximum of kernel coverage, sum over rows x of max over picks c of k(x, c)."""

from __future__ import annotations

import numpy as np
from cofal.selection.coverage import MEMORY_LIMIT, KernelCoverage
from cofal.selection.greedy import Quota, greedy
from cofal.selection.kernels import make_kernel
from cofal.selection.pool import Budgets, Picked, Pool
def maxherding(pool, budgets, rng, *, kernel="gaussian", lengthscale=1.0, delta=0.75, memory_limit=MEMORY_LIMIT, approx=False):
    return greedy(KernelCoverage(pool, make_kernel(kernel, pool.d, lengthscale, delta), memory_limit), Quota(pool, budgets))
