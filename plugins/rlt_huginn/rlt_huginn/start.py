"""The latent a token starts from: random numbers keyed by seed and position, nothing else."""

from __future__ import annotations

import math

import torch
from torch import Tensor

PURPOSE = 1  # of the context's random bits: the start state
CUT = 3.0  # standard deviations


def random_latent(bits: Tensor, std: float, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Normal numbers of mean 0 and deviation `std`, cut at three of them, times `scale`: [R, E].

    bits int64 [R, E] that hold uint32; scale [R] (0 gives zeros exactly). By inversion: with u
    uniform on (0, 1), sqrt(2) erfinv((2 u - 1) erf(3 / sqrt(2))) has the distribution of a
    standard normal number given that it lies within 3. Float64 up to one rounding to `dtype`, so
    that the last bits of a device's erfinv are rounded away. Source: inversion of a distribution
    function, Devroye, "Non-Uniform Random Variate Generation" (1986), section II.2.
    """
    inside = math.erf(CUT / math.sqrt(2.0))
    # (2 u - 1) with u = (bits + 1/2) / 2**32: exact, and never -1, 0 or 1
    symmetric = (bits.double() * 2.0 + 1.0) * 2.0**-32 - 1.0
    standard = torch.special.erfinv(symmetric * inside)
    latent: Tensor = standard * (math.sqrt(2.0) * std) * scale.double().unsqueeze(1)
    # a negative number times 0 is -0
    return (latent + 0.0).to(dtype)
