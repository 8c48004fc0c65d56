"""Signatures in the format of minisign, and the keys that the user trusts.

Rules here: files are read and nothing is written; a signature that is there is either right or an error, and never
passed over; who made it is known by the key that verifies it and not by what the file says. The library for Ed25519 is
imported when there is something to verify.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import stat
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from utter_runner.operate.contents import open_regular
from utter_runner.operate.errors import OperateError, Untrusted

if TYPE_CHECKING:
    from collections.abc import Iterable
    from io import BufferedReader, BytesIO
    from pathlib import Path

SUFFIX: Final = ".minisig"
_MAX_FILE: Final = 16 * 1024
_MAX_LEGACY: Final = 64 * 2**20
"""The largest file with a signature of the old kind, over the file itself, which has to be read whole for it."""
_TRUSTED_COMMENT: Final = "trusted comment: "
_COMMENT: Final = "untrusted comment: "
_KEY_BYTES: Final = 42
_SIGNATURE_BYTES: Final = 74
_GLOBAL_BYTES: Final = 64


class PublicKey(NamedTuple):
    """A minisign public key: its id, which is no secret and no proof, and 32 bytes of Ed25519."""

    id: bytes
    key: bytes

    @classmethod
    def parse(cls, text: str, source: str) -> Self:
        """The key in a text: the 56 characters, or a `.pub` file with its comment.

        Raises:
            OperateError: it is none; the message names `source`.
        """
        lines = [line.strip() for line in text.strip().splitlines()]
        data = _base64(lines[-1]) if 1 <= len(lines) <= 2 else None  # noqa: PLR2004 - a comment, and the key
        if data is None or len(data) != _KEY_BYTES or data[:2] != b"Ed":
            raise OperateError(f"{source} is not a minisign public key (56 characters that begin with RW).")
        return cls(data[2:10], data[10:])

    def __str__(self) -> str:
        return base64.b64encode(b"Ed" + self.id + self.key).decode()


class Signature(NamedTuple):
    """A `.minisig` file, taken apart and not verified.

    Attributes:
        key_id: of the key that it says it was made with.
        prehashed: whether it is over the file's BLAKE2b-512 rather than over the file.
        signature: over the file.
        comment: the trusted comment, which `whole` covers together with `signature`.
        whole: that signature.
        source: the file, for messages.
    """

    key_id: bytes
    prehashed: bool
    signature: bytes
    comment: str
    whole: bytes
    source: str

    @classmethod
    def parse(cls, text: str, source: str) -> Self:
        """Take a signature file apart.

        Raises:
            Untrusted: it is none.
        """
        lines = text.removesuffix("\n").split("\n")
        if len(lines) == 4 and lines[0].startswith(_COMMENT) and lines[2].startswith(_TRUSTED_COMMENT):  # noqa: PLR2004 - so the format has it
            first, last = _base64(lines[1]), _base64(lines[3])
            if first and last and len(first) == _SIGNATURE_BYTES and len(last) == _GLOBAL_BYTES:
                comment = lines[2].removeprefix(_TRUSTED_COMMENT)
                if first[:2] in {b"Ed", b"ED"}:
                    return cls(first[2:10], first[:2] == b"ED", first[10:], comment, last, source)
        raise Untrusted(f"{source} is not a signature as minisign makes it.")

    def verify(self, key: PublicKey, message: BufferedReader | BytesIO) -> None:
        """Make sure that `key` has signed what `message` has from its beginning on.

        Raises:
            Untrusted: it has not, or the trusted comment is not the one that was signed.
            OperateError: the library is not installed, or a signature of the old kind is over too large a file.
        """
        message.seek(0)
        if self.prehashed:
            signed = hashlib.file_digest(message, hashlib.blake2b).digest()
        else:
            signed = message.read(_MAX_LEGACY + 1)
            if len(signed) > _MAX_LEGACY:
                raise OperateError(
                    f"{self.source} is of the kind that takes the whole file into memory, which is refused beyond "
                    f"{_MAX_LEGACY} bytes: sign it with minisign -S -H."
                )
        message.seek(0)
        if not _signed(key.key, self.signature, signed):
            raise Untrusted(f"{self.source} is a wrong signature: the package is not what was signed with {key}.")
        if not _signed(key.key, self.whole, self.signature + self.comment.encode("utf-8", "surrogateescape")):
            raise Untrusted(f"{self.source} is a wrong signature: its trusted comment is not the one that was signed.")


def _signed(key: bytes, signature: bytes, message: bytes) -> bool:
    try:
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - an extra, and slow to import
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415 - see above
    except ImportError:
        raise OperateError("Signatures need an extra to be verified: pip install utter-runner[signatures].") from None
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _base64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def read_signature(path: Path) -> Signature | None:
    """The signature in a file, or None if there is no such file.

    Raises:
        Untrusted: there is something, and it is no signature.
    """
    try:
        # What lies there came with the package: a link or a pipe in its place is no signature.
        with open_regular(path, os.O_NOFOLLOW) as file:
            data = file.read(_MAX_FILE) if file else None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Untrusted(f"The signature {path} cannot be read: {error.strerror}.") from None
    if data is None:
        raise Untrusted(f"The signature {path} is no file.")
    return Signature.parse(data.decode("utf-8", "surrogateescape"), str(path))


def given_key(text: str) -> PublicKey:
    """The key that `--key` names: a file, or the key itself.

    Raises:
        OperateError: it is neither.
    """
    if len(text) == 56 and _base64(text) is not None:  # noqa: PLR2004 - the length of 42 bytes in base64
        return PublicKey.parse(text, "--key")
    return _key_file(text)


def _key_file(path: str | Path) -> PublicKey:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - str and Path alike
            data = file.read(_MAX_FILE)
    except (OSError, ValueError) as error:
        raise OperateError(f"The key {path} cannot be read: {getattr(error, 'strerror', error)}.") from None
    return PublicKey.parse(data.decode("utf-8", "replace"), str(path))


def trusted_keys(directory: Path) -> dict[PublicKey, str]:
    """The keys in the `*.pub` files of a directory, each with the name of its file.

    Raises:
        OperateError: one is no key; or it, or the directory, could have been put there by another user.
    """
    found: dict[PublicKey, str] = {}
    try:
        paths = sorted(directory.glob("*.pub"))
        for path in [directory, *paths] if paths else []:
            status = path.stat()
            if status.st_uid not in {0, os.geteuid()} or status.st_mode & stat.S_IWOTH:
                raise OperateError(
                    f"{path} can be changed by other users, who could put their own keys there: make it your own "
                    "with chown and chmod o-w."
                )
    except OSError as error:
        raise OperateError(f"The trusted keys in {directory} cannot be read: {error.strerror}.") from None
    for path in paths:
        found.setdefault(_key_file(path), path.name)
    return found


def signer(signature: Signature, message: BufferedReader | BytesIO, keys: Iterable[PublicKey]) -> PublicKey | None:
    """The one of `keys` that has signed `message`; None if the signature is by a key that is not among them.

    Raises:
        Untrusted: it claims to be by one of them and is wrong.
        OperateError: as for `Signature.verify`.
    """
    failure: Untrusted | None = None
    for key in keys:
        if key.id != signature.key_id:
            continue
        try:
            signature.verify(key, message)
        except Untrusted as error:
            # Key ids are chosen by whoever makes the key, so that another one may have the same.
            failure = error
        else:
            return key
    if failure:
        raise failure
    return None
