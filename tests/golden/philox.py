"""Random draws keyed by (seed, stream, image index, step), as difuse makes them.

Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011). Element i of an
image's draw is word i % 4 of block i / 4; the block's counter is (block, index, step, stream), its key the seed.
"""

import numpy as np

MULTIPLY = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
WEYL = (0x9E3779B9, 0xBB67AE85)
LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)


def philox(counter, key):
    """`counter`: four uint64 arrays of 32-bit values; `key`: two ints. Gives four such arrays."""
    c = list(counter)
    k = list(key)
    for _ in range(10):
        p0, p1 = MULTIPLY[0] * c[0], MULTIPLY[1] * c[2]
        c = [(p1 >> HALF) ^ c[1] ^ np.uint64(k[0]), p1 & LOW, (p0 >> HALF) ^ c[3] ^ np.uint64(k[1]), p0 & LOW]
        k = [(a + w) & 0xFFFFFFFF for a, w in zip(k, WEYL)]
    return c


class Draws:
    """What one step draws: seed (two ints), index (one int per image), step."""

    def __init__(self, seed, index, step):
        self.seed, self.index, self.step = seed, index, step

    def _words(self, stream, count):
        """uint64 [images, count rounded up to whole blocks]."""
        block = np.arange((count + 3) // 4, dtype=np.uint64)
        rows = []
        for index in self.index:
            constant = [np.full_like(block, v) for v in (index, self.step, stream)]
            rows.append(np.stack(philox([block, *constant], self.seed), axis=1).reshape(-1))
        return np.stack(rows)

    def uniform(self, stream, shape):
        """float64 [images, *shape] in (0, 1), each value exact in float32."""
        count = int(np.prod(shape, dtype=np.int64))
        words = self._words(stream, count) >> np.uint64(9)
        return ((words.astype(np.float64) + 0.5) * 2.0**-23)[:, :count].reshape(-1, *shape)

    def normal(self, stream, shape):
        """float64 [images, *shape], by Box and Muller: words (0, 1) and (2, 3) give two values each."""
        count = int(np.prod(shape, dtype=np.int64))
        u = self.uniform(stream, [(count + 3) // 4, 2, 2])
        radius, angle = np.sqrt(-2 * np.log(u[..., 0])), 2 * np.pi * u[..., 1]
        pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
        return pairs.reshape(len(self.index), -1)[:, :count].reshape(-1, *shape)

    def integer(self, stream, bound):
        """int64 [images] in [0, bound)."""
        return ((self._words(stream, 1)[:, 0] * np.uint64(bound)) >> HALF).astype(np.int64)
