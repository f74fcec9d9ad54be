"""The noised versions of a site's embeddings that left it: each is drawn once, kept, and sent again when asked again.

Fresh noise for every request would let a server average it away; so would another encoder or another epsilon each time,
which is why the number of different versions is limited.
"""

from __future__ import annotations

import fcntl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from cofal.errors import UserError
from cofal.files import sync_folder, write_fault, write_npy
from cofal.privacy.perturbation import noise_stream, perturb

SYSTEM, SEEDED = "operating system", "seed of the request"


@dataclass(frozen=True)
class Version:
    """What tells one noised version from another; the seed does not: the first one that was used stays."""

    digest: str  # of the encoder
    epsilon: float
    mechanism: str
    noise: str  # SYSTEM | SEEDED

    @property
    def file(self) -> str:
        return f"{self.digest}.{self.mechanism}.{self.epsilon!r}.{'system' if self.noise == SYSTEM else 'seeded'}.npy"

    @property
    def parameters(self) -> dict[str, Any]:
        return {"epsilon": self.epsilon, "mechanism": self.mechanism, "noise": self.noise}


class Releases:
    """The versions kept in `folder`."""

    def __init__(self, folder: Path):
        self.folder = folder

    def has(self, version: Version) -> bool:
        return (self.folder / version.file).exists()

    def check(self, site: str, version: Version, limit: int) -> None:
        """Raise the refusal of `site` if `version` would be one more than `limit` different ones."""
        left = sorted(file.name for file in self.folder.glob("*.npy"))
        if version.file not in left and len(left) >= limit:
            raise UserError(
                f"site {site} refuses another noised version of its embeddings: {len(left)} left it already, as its "
                f"policy.max_releases allows, and more would average the noise away; use encoder and epsilon as before"
            )

    def get(self, site: str, version: Version, embeddings: np.ndarray, seed: int, limit: int) -> np.ndarray:
        """(n, d) float32: the kept version, or a new one of unit rows `embeddings`, kept before it is returned.

        `seed` is used by a SEEDED version only.
        """
        try:
            self.folder.mkdir(exist_ok=True)
            with open(self.folder / ".lock", "w") as lock:  # two processes asked at once must not draw twice
                fcntl.flock(lock, fcntl.LOCK_EX)
                self.check(site, version, limit)
                path = self.folder / version.file
                if not path.exists():
                    rng = noise_stream(seed if version.noise == SEEDED else None, "perturb", site)
                    write_npy(path, perturb(embeddings, version.epsilon, rng, version.mechanism))
                    sync_folder(self.folder)  # after a power cut, too, the same version must be found
        except OSError as error:
            raise write_fault(self.folder, error) from error
        return cast(np.ndarray, np.load(path, mmap_mode="r", allow_pickle=False))
