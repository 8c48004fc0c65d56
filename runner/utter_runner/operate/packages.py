"""Installing, updating and removing packages, apart from asking whether to.

Rules here: everything that can be wrong with a package is looked at before it is offered, and from a copy that nobody
else can change meanwhile; who agrees to an offer agrees to exactly what is then put in place; nothing of a package is
run. An id that is not in the record was not installed from here, and is not touched.
"""

from __future__ import annotations

import io
import os
import re
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from utter_protocol.manifest import Manifest, ManifestError, load_manifest
from utter_protocol.packages import MANIFEST_NAME, bundled_directory
from utter_protocol.settings import check_manifest
from utter_runner.operate import lockfile
from utter_runner.operate.archives import CHUNK, copy_directory, unpack
from utter_runner.operate.condition import missing_program, oddities, unmet, unmet_here
from utter_runner.operate.contents import SIGNATURE_NAME, check_links, contents_of, digest_of, open_regular
from utter_runner.operate.errors import OperateError, Untrusted
from utter_runner.operate.signatures import SUFFIX, PublicKey, Signature, read_signature, signer, trusted_keys
from utter_runner.operate.staging import Staging, held, staged
from utter_runner.operate.tree import Limits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader

    from utter_runner.operate.lockfile import Entry
    from utter_runner.operate.places import Places

_DIGEST: Final = re.compile(r"(?:sha256:)?([0-9a-fA-F]{64})")


class Demand(NamedTuple):
    """What the user wants to be true of a package.

    Attributes:
        key: the only key that may have signed it, and must have.
        digest: its digest.
    """

    key: PublicKey | None = None
    digest: str = ""


class Offer(NamedTuple):
    """A package that could be installed as it is.

    Attributes:
        manifest: its manifest.
        entry: what would be recorded.
        vouched: who has signed it, for people; empty if nobody who is trusted has.
        stranger: the id of the key that has signed it and is not trusted; empty if there is none.
        demanded: whether its digest is the one that was demanded.
        warnings: what is odd and does not keep it from being installed.
        installed: what is installed under its id.
        before: the manifest of that, if it can be read.
        staging: where it lies.
        places: where it would be put.
    """

    manifest: Manifest
    entry: Entry
    vouched: str
    stranger: str
    demanded: bool
    warnings: list[str]
    installed: Entry | None
    before: Manifest | None
    staging: Staging
    places: Places

    @property
    def same(self) -> bool:
        """Whether it is what is installed already, and nobody has signed it who had not."""
        old = self.installed
        return old is not None and old.digest == self.entry.digest and self.entry.signed_by in {"", old.signed_by}

    @property
    def new_permissions(self) -> list[str]:
        """The permissions that the installed version does not ask for; all of them for a first one."""
        before = self.installed.permissions if self.installed else []
        return [name for name in self.entry.permissions if name not in before]

    @property
    def other_signer(self) -> bool:
        """Whether the installed version was signed with a key that has not signed this one."""
        return bool(self.installed and self.installed.signed_by not in {"", self.entry.signed_by})

    def accept(self) -> Path:
        """Put it in place, and return where that is.

        Raises:
            OperateError: what is installed is not what it was when this was offered.
            OSError: it cannot be written.
        """
        name = self.manifest.name
        with held(self.places):
            if installed_entries(self.places).get(name) != self.installed:
                raise OperateError(f"Another command has changed what is installed as {name}: look again.")
            _check_place(self.places, name, self.installed)
            self.staging.commit(name, self.entry)
        return self.places.plugins / name


def normal_digest(text: str) -> str:
    """A digest that a person gave, with or without `sha256:`, as it is recorded.

    Raises:
        OperateError: it is none.
    """
    found = _DIGEST.fullmatch(text.strip())
    if not found:
        raise OperateError("--digest must be 64 hexadecimal digits, with or without sha256: before them.")
    return f"sha256:{found[1].lower()}"


@contextmanager
def offered(
    places: Places, source: Path, demand: Demand, *, updates: str | None = None, limits: Limits | None = None
) -> Iterator[Offer]:
    """Read and examine the package in a directory or an archive; on the way out it is deleted if nobody has accepted.

    Args:
        places: where things are.
        source: the directory or archive.
        demand: what must be true of it.
        updates: None to install a package that is not there; otherwise it must be, and unless this is empty, under
            this id.
        limits: what is too much.

    Raises:
        OperateError: it cannot be used. Untrusted: its signature or digest is wrong, or a demanded one is missing.
        OSError: something cannot be read or written.
    """
    source = source.absolute()
    entries = installed_entries(places)
    with staged(places) as staging:
        signed = _fill(staging, source, places, demand, limits or Limits())
        manifest = _manifest(staging.package, source)
        installed = _claimed(places, entries, manifest.name, updates)
        if problems := unmet(manifest):
            raise OperateError(f"{source} cannot run here: {' '.join(problems)}")
        if problem := missing_program(manifest, staging.package):
            raise OperateError(f"{source}: {problem}")
        entry = lockfile.Entry(
            version=manifest.version,
            protocol=manifest.protocol,
            abi=manifest.abi,
            digest=signed.digest,
            code=contents_of(staging.package).code,
            permissions=list(dict.fromkeys(manifest.permissions)),
            source=str(source),
            signed_by=str(signed.key) if signed.key else "",
        )
        yield Offer(
            manifest,
            entry,
            signed.vouched,
            signed.stranger,
            bool(demand.digest),
            [*oddities(manifest), *unmet_here(manifest), *_changed(places, manifest.name, installed)],
            installed,
            _before(places, manifest.name) if installed else None,
            staging,
            places,
        )


def package_digest(source: Path, limits: Limits | None = None) -> str:
    """The digest of the package in a directory or an archive, without a look at signatures.

    Raises:
        OperateError, OSError: as for `offered`.
    """
    source = source.absolute()
    with tempfile.TemporaryDirectory(prefix="utter-") as directory:
        package = Path(directory, "package")
        _unpacked(Path(directory), package, source, limits or Limits())
        check_links(package, str(source))
        return digest_of(package)


class _Signed(NamedTuple):
    digest: str
    key: PublicKey | None
    vouched: str
    stranger: str


class _Verifier:
    """Looks at the signatures of one package, of which there may be none, one, or one of each kind."""

    def __init__(self, places: Places, demand: Demand) -> None:
        self._keys = {demand.key: "--key"} if demand.key else trusted_keys(places.trusted_keys)
        self.key: PublicKey | None = None
        self.vouched = ""
        self.stranger = ""

    def look(self, signature: Signature | None, message: BufferedReader | io.BytesIO) -> None:
        """Take a signature into account."""
        if signature is None:
            return
        key = signer(signature, message, self._keys)
        if key is None:
            self.stranger = signature.key_id[::-1].hex().upper()
        elif self.key is None:
            self.key, self.vouched = key, f"{self._keys[key]}: {signature.comment}"


def _fill(staging: Staging, source: Path, places: Places, demand: Demand, limits: Limits) -> _Signed:
    """Bring the package into `staging.package`, with its signatures verified."""
    verifier = _Verifier(places, demand)
    _unpacked(staging.directory, staging.package, source, limits, verifier)
    check_links(staging.package, str(source))
    digest = digest_of(staging.package)
    inner = staging.package / SIGNATURE_NAME
    verifier.look(read_signature(inner), io.BytesIO(f"{digest}\n".encode()))
    inner.unlink(missing_ok=True)
    if demand.key and verifier.key != demand.key:
        raise Untrusted(f"{source} is not signed with the key that --key names.")
    if demand.digest and demand.digest != digest:
        raise Untrusted(f"{source} has the digest {digest}, and --digest says {demand.digest}.")
    return _Signed(digest, verifier.key, verifier.vouched, verifier.stranger)


def _unpacked(directory: Path, package: Path, source: Path, limits: Limits, verifier: _Verifier | None = None) -> None:
    """Bring the package to the path `package`, by way of other files in `directory`."""
    unpacked = directory / "unpacked"
    unpacked.mkdir(mode=0o755)
    if source.is_dir():
        if not (source / MANIFEST_NAME).is_file():
            raise OperateError(f"{source} is no package: it has no {MANIFEST_NAME}.")
        copy_directory(source, unpacked, limits)
    else:
        archive = directory / "archive"
        _copy_file(source, archive, limits)
        with archive.open("rb") as file:
            if verifier:
                verifier.look(read_signature(source.with_name(source.name + SUFFIX)), file)
            unpack(file, str(source), unpacked, limits)
        archive.unlink()
    _top(unpacked, source).rename(package)


def _copy_file(source: Path, target: Path, limits: Limits) -> None:
    """Copy an archive to where nobody changes it while it is looked at."""
    with ExitStack() as stack:
        try:
            file = stack.enter_context(open_regular(source))
        except OSError as error:
            raise OperateError(f"{source} cannot be read: {error.strerror}.") from None
        copy = stack.enter_context(target.open("xb"))
        if file is None:
            raise OperateError(f"{source} is neither a directory nor a file.")
        left = limits.max_package_bytes
        while chunk := file.read(CHUNK):
            left -= len(chunk)
            if left < 0:
                raise OperateError(
                    f"{source} is larger than {limits.max_package_bytes} bytes, the limit of a package "
                    "(max_package_bytes)."
                )
            copy.write(chunk)


def _top(unpacked: Path, source: Path) -> Path:
    """The directory that the manifest is in: the archive's top, or the only directory there."""
    found = list(unpacked.iterdir())
    if (unpacked / MANIFEST_NAME).is_file():
        return unpacked
    if len(found) == 1 and not found[0].is_symlink() and (found[0] / MANIFEST_NAME).is_file():
        return found[0]
    raise OperateError(f"{source} is no package: it has no {MANIFEST_NAME} at its top, nor in its only directory.")


def _manifest(root: Path, source: Path) -> Manifest:
    try:
        return check_manifest(root / MANIFEST_NAME)
    except ManifestError as error:
        raise OperateError(str(error).replace(f"{root}/", f"{source}/")) from None


def _claimed(places: Places, entries: dict[str, Entry], name: str, updates: str | None) -> Entry | None:
    """The entry that a package of this name takes the place of."""
    bundled = bundled_directory()
    if bundled and (bundled / name / MANIFEST_NAME).exists():
        raise OperateError(f"A plugin named {name} ships with the runner, and no other one may take its name.")
    installed = entries.get(name)
    if updates and name != updates:
        raise OperateError(f"The package is of a plugin named {name}, and not of {updates}.")
    if updates is None and installed:
        raise OperateError(f"{name} {installed.version} is installed: use `utter plugins update`, or remove it first.")
    if updates is not None and not installed:
        raise OperateError(f"{name} was not installed by `utter plugins install`: there is nothing to update.")
    _check_place(places, name, installed)
    return installed


def _check_place(places: Places, name: str, installed: Entry | None) -> None:
    place = places.plugins / name
    if installed is None and os.path.lexists(place):
        raise OperateError(f"{place} is there and was not installed by `utter plugins install`: move it away first.")
    if place.is_symlink():
        raise OperateError(f"{place} is a link that somebody made, and is not touched: remove it first.")


def _changed(places: Places, name: str, installed: Entry | None) -> Iterator[str]:
    place = places.plugins / name
    if installed and place.is_dir() and digest_of(place) != installed.digest:
        yield f"{place} was changed since it was installed; what was changed there will be lost."


def _before(places: Places, name: str) -> Manifest | None:
    try:
        return load_manifest(places.plugins / name / MANIFEST_NAME)
    except ManifestError:
        return None


def installed_entries(places: Places) -> dict[str, Entry]:
    """What is recorded of the packages that were installed from here, by id, apart from what is only locked.

    Raises:
        OperateError: the record cannot be used.
    """
    return {name: entry for name, entry in lockfile.read(places.lockfile).items() if entry.source}


def installed_entry(places: Places, name: str) -> Entry:
    """What is recorded of an installed package.

    Raises:
        OperateError: it was not installed from here; the sentence says where it comes from.
    """
    found = installed_entries(places).get(name)
    if found:
        return found
    bundled = bundled_directory()
    if bundled and (bundled / name / MANIFEST_NAME).exists():
        raise OperateError(
            f"{name} ships with the runner and is not removed: take its [[plugin]] table out of the configuration, or "
            "write enabled = false there."
        )
    place = places.plugins / name
    if os.path.lexists(place):
        raise OperateError(f"{place} was not installed by `utter plugins install`: it is yours to delete.")
    raise OperateError(f"No plugin named {name} is installed in {places.plugins}.")


def remove(places: Places, name: str, agreed: Entry) -> None:
    """Take an installed package away, with its entry.

    Args:
        places: where things are.
        name: the plugin's id.
        agreed: what was recorded of it when the user agreed.

    Raises:
        OperateError: it is not what it was, or not from here.
        OSError: it cannot be moved.
    """
    with staged(places) as staging, held(places):
        if installed_entry(places, name) != agreed:
            raise OperateError(f"Another command has changed what is installed as {name}: look again.")
        _check_place(places, name, agreed)
        staging.commit(name, None)
