"""The demo's text: the topics of Python's own help, which every Python carries. No JAX.

About 700,000 characters of documentation. Batches are drawn from a seed, so two processes train on the same
ones.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Text:
    """Characters as small integers. `alphabet[code]` is a character, `codes` the whole text."""

    alphabet: str
    codes: np.ndarray

    def batch(self, step: int, size: int, tokens: int, seed: int) -> dict[str, np.ndarray]:
        """Random windows of the text: int32 `tokens` and, shifted by one, `targets`, both [size, tokens]."""
        rng = np.random.default_rng([seed, step])
        starts = rng.integers(0, len(self.codes) - tokens - 1, size)
        windows = self.codes[starts[:, None] + np.arange(tokens + 1)]
        return {"tokens": windows[:, :-1], "targets": windows[:, 1:]}


def load_text() -> Text:
    """The topics in alphabetical order, one after the other."""
    from pydoc_data.topics import topics

    whole = "\n\n".join(topics[name] for name in sorted(topics))
    alphabet = "".join(sorted(set(whole)))
    code = {character: i for i, character in enumerate(alphabet)}
    return Text(alphabet, np.array([code[character] for character in whole], np.int32))
