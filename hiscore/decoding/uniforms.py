"""Uniform numbers by counter: the draw for a token depends on its sequence's seed and its position alone."""

import numpy as np
import numpy.typing as npt

# Integer arithmetic is the same on every platform and whatever else is drawn with it.
GAMMA, FIRST, SECOND = (
    np.uint64(constant) for constant in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def uniform(seed: npt.ArrayLike, position: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The output number `position` of SplitMix64 started at `seed`, as float64 in [0, 1).

    seed: int64, negative ones too; position: int64, at least 0; either may be an array, and they are broadcast
    against each other. 53 bits are kept, as many as a float64 holds.
    """
    with np.errstate(over="ignore"):  # modulo 2^64 is what is meant
        z = np.asarray(seed, np.int64).astype(np.uint64)
        z = z + (np.asarray(position, np.int64).astype(np.uint64) + np.uint64(1)) * GAMMA
        z = (z ^ (z >> np.uint64(30))) * FIRST
        z = (z ^ (z >> np.uint64(27))) * SECOND
        z = z ^ (z >> np.uint64(31))
    return np.asarray((z >> np.uint64(11)) * 2.0**-53, np.float64)
