"""Makes plugin packages, archives of them, well-formed or not, and signatures, for tests."""

from __future__ import annotations

import base64
import hashlib
import io
import stat
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from utter_protocol.packages import MANIFEST_NAME
from utter_runner.operate.places import Places

MANIFEST = """\
name = "{name}"
version = "{version}"
kind = "action"
protocol = "1.0"
abi = 1
runtime = "subprocess"
transport = "stdio"
entrypoint = ["./bin/lamp", "--quiet"]
provides = ["action.invoke@1"]
permissions = [{permissions}]
"""


def places_in(home: Path) -> Places:
    """The places of a user whose home is `home`."""
    return Places.of({"HOME": str(home)})


def package(directory: Path, version: str = "1.0.0", *permissions: str, name: str = "lamp") -> Path:
    """A package in a directory, with a program, a link to it, a text and what is left out."""
    listed = ", ".join(f'"{one}"' for one in permissions)
    files = {
        MANIFEST_NAME: MANIFEST.format(name=name, version=version, permissions=listed),
        "bin/lamp": "#!/bin/sh\n",
        "docs/lies/deep/read me.txt": f"This is {version}.\n",
        "bin/__pycache__/lamp.pyc": "no source\n",
    }
    for path, content in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(content)
    (directory / "bin/lamp").chmod(0o775)
    if not (directory / "bin/light").is_symlink():
        (directory / "bin/light").symlink_to("../bin/lamp")
    return directory


KEPT = {"utter-plugin.toml", "bin/lamp", "bin/light", "docs/lies/deep/read me.txt"}


def files_below(directory: Path) -> set[str]:
    """The paths of everything that is no directory."""
    return {
        path.relative_to(directory).as_posix()
        for path in directory.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }


class Entry(NamedTuple):
    """One entry of an archive that is made by hand: what it is called, what it holds, and its type and mode."""

    name: str
    data: bytes = b""
    kind: bytes = tarfile.REGTYPE
    mode: int = 0o644
    link: str = ""


def tar_bytes(entries: list[Entry], mode: str = "w", form: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar archive with these entries, whatever they are."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode=mode, format=form) as tar:  # type: ignore[call-overload]  # one of its modes
        for entry in entries:
            header = tarfile.TarInfo(entry.name)
            header.size, header.type, header.mode = len(entry.data), entry.kind, entry.mode
            header.linkname = entry.link
            tar.addfile(header, io.BytesIO(entry.data))
    return raw.getvalue()


_ZIP_KINDS = {
    tarfile.REGTYPE: stat.S_IFREG,
    tarfile.DIRTYPE: stat.S_IFDIR,
    tarfile.SYMTYPE: stat.S_IFLNK,
    tarfile.FIFOTYPE: stat.S_IFIFO,
    tarfile.CHRTYPE: stat.S_IFCHR,
    tarfile.BLKTYPE: stat.S_IFBLK,
}


def zip_bytes(entries: list[Entry], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """The same as a zip archive."""
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", method) as archive:
        for entry in entries:
            header = zipfile.ZipInfo(entry.name)
            header.create_system = 3
            header.compress_type = method
            header.external_attr = (_ZIP_KINDS[entry.kind] | entry.mode) << 16
            archive.writestr(header, entry.link.encode() if entry.kind == tarfile.SYMTYPE else entry.data)
    return raw.getvalue()


def entries_of(directory: Path, prefix: str = "") -> list[Entry]:
    """What is in a directory, as entries."""
    found = []
    for path in sorted(directory.rglob("*")):
        name = prefix + path.relative_to(directory).as_posix()
        if path.is_symlink():
            found.append(Entry(name, kind=tarfile.SYMTYPE, link=str(path.readlink())))
        elif path.is_dir():
            found.append(Entry(f"{name}/", kind=tarfile.DIRTYPE, mode=0o755))
        else:
            found.append(Entry(name, path.read_bytes(), mode=stat.S_IMODE(path.stat().st_mode)))
    return found


class Signer:
    """Somebody with a minisign key."""

    def __init__(self, seed: int = 1) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"%d" % seed).digest())
        self.id = hashlib.sha256(b"id %d" % seed).digest()[:8]
        public = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.public = base64.b64encode(b"Ed" + self.id + public).decode()

    def trusted_in(self, places: Places, name: str = "ada.pub") -> None:
        """Let the user trust the key."""
        places.trusted_keys.mkdir(parents=True, exist_ok=True)
        (places.trusted_keys / name).write_text(f"untrusted comment: a key\n{self.public}\n")

    def sign(self, message: bytes, comment: str = "made by Ada", *, legacy: bool = False) -> str:
        """A `.minisig` file over a message."""
        signed = message if legacy else hashlib.blake2b(message).digest()
        signature = self._key.sign(signed)
        whole = self._key.sign(signature + comment.encode())
        first = base64.b64encode((b"Ed" if legacy else b"ED") + self.id + signature).decode()
        last = base64.b64encode(whole).decode()
        return f"untrusted comment: signature\n{first}\ntrusted comment: {comment}\n{last}\n"

    def sign_file(self, path: Path) -> None:
        """Sign an archive, with the signature beside it."""
        path.with_name(path.name + ".minisig").write_text(self.sign(path.read_bytes()))
