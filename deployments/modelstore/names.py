"""Names in the store: models by framework, name and version, and files by digest."""

import re
from dataclasses import dataclass

from deployments.modelstore.errors import UnknownModelError
from policy.errors import InvalidInputError

#: The prefix of a model's name where a file could be named, too.
STORE_PREFIX = "store://"
DEFAULT_FRAMEWORK = "pytorch"
DEFAULT_VERSION = "1"
#: The framework of files that processes share, whatever they are; versions are their digests.
FILES = "file"
#: The list of a model's digests, in the format of `sha256sum`.
SUMS = "SHA256SUMS"
#: A grant passes one descriptor per file, and Linux passes at most 253 in one message.
MAX_FILES = 250

# No slash, no leading dot: a part is one safe path component.
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_SUM = re.compile(r"([0-9a-f]{64}) [ *](.+)", re.ASCII)


@dataclass(frozen=True, order=True)
class ModelName:
    """A model's framework, name and version: each of 1 to 128 letters, digits, `.`, `_` or `-`."""

    framework: str
    name: str
    version: str

    def __post_init__(self) -> None:
        for part in (self.framework, self.name, self.version):
            if not _PART.fullmatch(part):
                raise InvalidInputError(
                    f"model name: {part!r} must be 1 to 128 letters, digits, '.', '_' or '-', and "
                    "start with a letter or digit"
                )

    @classmethod
    def parse(cls, text: str) -> "ModelName":
        """Parse ``[framework/]name[@version]``; the defaults are ``pytorch`` and ``1``."""
        path, at, version = text.partition("@")
        framework, slash, name = path.rpartition("/")
        return cls(
            framework if slash else DEFAULT_FRAMEWORK, name, version if at else DEFAULT_VERSION
        )

    @property
    def path(self) -> str:
        """Path of the model's folder below the root of a remote or of the disk tier."""
        return f"{self.framework}/{self.name}/{self.version}"

    def __str__(self) -> str:
        return f"{self.framework}/{self.name}@{self.version}"


Origin = tuple[ModelName, str]
"""Where the remote has a blob: a model, and its file there."""


@dataclass(frozen=True)
class Blob:
    """The content of a file. The store holds it once, however many models contain it.

    The digest names it in every tier. The size is what a model claims of it; a claim that is wrong
    makes another blob, which no file has.
    """

    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class Manifest:
    """The files of a model: each file's name and content."""

    files: tuple[tuple[str, Blob], ...]

    @property
    def blobs(self) -> tuple[Blob, ...]:
        return tuple(dict.fromkeys(blob for _, blob in self.files))

    @property
    def size_bytes(self) -> int:
        return sum(blob.size_bytes for blob in self.blobs)


def parse_sums(name: ModelName, text: str) -> dict[str, str]:
    """Return the digest of each safetensors file in a model's `SHA256SUMS`, by file name.

    Lines of other files, such as a tokenizer, are checked and left out. Raises `UnknownModelError`
    if the list is wrong, or of no safetensors file or more than `MAX_FILES`.
    """
    digests: dict[str, str] = {}
    for line in text.splitlines():
        match = _SUM.fullmatch(line)
        if match is None or not _PART.fullmatch(match[2]) or match[2] in digests:
            raise UnknownModelError(
                f"{name}: {SUMS} must have one line 'sha256  file' per file, in one folder, not "
                f"{line[:100]!r}"
            )
        digests[match[2]] = match[1]
    weights = {file: digest for file, digest in digests.items() if file.endswith(".safetensors")}
    if not 1 <= len(weights) <= MAX_FILES:
        raise UnknownModelError(
            f"{name}: {SUMS} must list 1 to {MAX_FILES} safetensors files, not {len(weights)}"
        )
    return weights
