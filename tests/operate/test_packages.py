"""What may be installed, updated and removed, and that a refusal changes nothing."""

from __future__ import annotations

import os
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.packages import KEPT, Entry, Signer, entries_of, files_below, package, places_in, tar_bytes, zip_bytes
from utter_protocol.packages import MANIFEST_NAME, check_package, find_package
from utter_runner.operate import lockfile
from utter_runner.operate.contents import contents_of
from utter_runner.operate.errors import OperateError, Untrusted
from utter_runner.operate.packages import (
    Demand,
    installed_entry,
    normal_digest,
    offered,
    package_digest,
    remove,
)
from utter_runner.operate.places import Places
from utter_runner.operate.signatures import PublicKey
from utter_runner.operate.tree import Limits

ADA, BEA = Signer(1), Signer(2)
KEY = PublicKey.parse(ADA.public, "ada")


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return places_in(tmp_path / "home")


def archive(source: Path, path: Path) -> Path:
    path.write_bytes(tar_bytes(entries_of(source, "lamp/"), "w:xz"))
    return path


def everything(places: Places) -> dict[str, bytes]:
    """All that an installation could change."""
    root = places.plugins.parents[3]
    return {str(path): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_from_an_archive_into_its_place(places: Places, tmp_path: Path) -> None:
    source = archive(package(tmp_path / "source", "1.0.0", "network"), tmp_path / "lamp.tar.xz")
    with offered(places, source, Demand()) as offer:
        assert (offer.manifest.name, offer.vouched, offer.new_permissions) == ("lamp", "", ["network"])
        place = offer.accept()
    assert place == places.plugins / "lamp"
    assert files_below(place) == KEPT
    assert os.access(place / "bin" / "light", os.X_OK)
    check_package(place / MANIFEST_NAME)
    found = find_package("lamp", [places.plugins])
    assert found is not None
    assert lockfile.read(places.lockfile) == {"lamp": offer.entry}
    assert offer.entry == lockfile.Entry(
        version="1.0.0",
        protocol="1.0",
        abi=1,
        digest=package_digest(tmp_path / "source"),
        permissions=["network"],
        source=str(source),
        code=contents_of(place).code,
    )
    assert [path.name for path in places.plugins.iterdir()] == ["lamp"]


def test_an_offer_that_nobody_accepts_leaves_nothing(places: Places, tmp_path: Path) -> None:
    with offered(places, package(tmp_path / "source"), Demand()):
        pass
    assert everything(places) == {}
    assert list(places.plugins.iterdir()) == []


def test_what_is_accepted_is_what_was_offered(places: Places, tmp_path: Path) -> None:
    source = package(tmp_path / "source")
    with offered(places, source, Demand()) as offer:
        (source / "bin" / "lamp").write_text("something else")
        offer.accept()
    assert package_digest(places.plugins / "lamp") == offer.entry.digest


def test_an_update_takes_the_place_and_says_what_is_new(places: Places, tmp_path: Path) -> None:
    source = package(tmp_path / "source", "1.0.0", "network", "gpu")
    with offered(places, source, Demand()) as offer:
        offer.accept()
    old = offer.entry
    package(source, "1.1.0", "network", "microphone", "microphone")
    (source / "docs" / "lies" / "deep" / "read me.txt").unlink()
    (places.plugins / "lamp" / "bin" / "lamp").write_text("changed by hand")
    with offered(places, source, Demand(), updates="") as offer:
        assert (offer.installed, offer.new_permissions, offer.same) == (old, ["microphone"], False)
        assert offer.entry.permissions == ["network", "microphone"]
        assert offer.before is not None
        assert offer.before.version == "1.0.0"
        assert any("was changed since it was installed" in warning for warning in offer.warnings)
        offer.accept()
    assert files_below(places.plugins / "lamp") == KEPT - {"docs/lies/deep/read me.txt"}
    assert lockfile.read(places.lockfile)["lamp"].version == "1.1.0"
    with offered(places, source, Demand(), updates="lamp") as offer:
        assert offer.same
    remove(places, "lamp", installed_entry(places, "lamp"))
    assert list(places.plugins.iterdir()) == []
    assert lockfile.read(places.lockfile) == {}


# ---- what is refused


def change(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


def test_a_package_that_could_not_run(places: Places, tmp_path: Path) -> None:
    cases = {
        ("./bin/lamp", "./bin/lump"): "names './bin/lump', which is not in the package",
        ("./bin/lamp", "../source/bin/lamp"): "'../source/bin/lamp', which",
        ("./bin/lamp", "./docs"): "'./docs', which is no file",
        ("./bin/lamp", f"./{MANIFEST_NAME}"): "which is not executable",
        ("abi = 1", 'abi = 1\nplatforms = ["plan9"]'): "cannot run here: The plugin runs on plan9",
        ("abi = 1", "abi = 0"): f"source/{MANIFEST_NAME}:5: ",
        ("abi = 1", "abi = 1\nlicence = 3"): f"source/{MANIFEST_NAME}:6: ",
        ('"lamp"', '"espeak"'): "espeak ships with the runner, and no other one may take its name",
    }
    for (old, new), why in cases.items():
        source = package(tmp_path / "source")
        change(source / MANIFEST_NAME, old, new)
        with pytest.raises(OperateError, match=why), offered(places, source, Demand()):
            pass
        assert everything(places) == {}


def test_what_is_no_package(places: Places, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "pipe.tar").symlink_to("/dev/null")
    two = tmp_path / "two.zip"
    two.write_bytes(zip_bytes([Entry(f"a/{MANIFEST_NAME}"), Entry("b/x")]))
    huge = tmp_path / "huge.tar"
    huge.write_bytes(bytes(5000))
    for path, why in {
        tmp_path / "none.tar": "none.tar cannot be read: No such file",
        tmp_path / "empty": "empty is no package: it has no utter-plugin.toml",
        tmp_path / "pipe.tar": "neither a directory nor a file",
        two: "no utter-plugin.toml at its top, nor in its only directory",
        huge: r"larger than 4096 bytes, the limit of a package \(max_package_bytes\)",
    }.items():
        with pytest.raises(OperateError, match=why), offered(places, path, Demand(), limits=Limits(10, 4096)):
            pass
    assert everything(places) == {}


def test_what_is_there_already(places: Places, tmp_path: Path) -> None:
    source = package(tmp_path / "source")
    by_hand = places.plugins / "lamp"
    package(by_hand)
    with pytest.raises(OperateError, match="lamp is there and was not installed by"), offered(places, source, Demand()):
        pass
    with pytest.raises(OperateError, match="it is yours to delete"):
        installed_entry(places, "lamp")
    with pytest.raises(OperateError, match="nothing to update"), offered(places, source, Demand(), updates=""):
        pass
    by_hand.rename(tmp_path / "mine")
    with offered(places, source, Demand()) as offer:
        offer.accept()
    with pytest.raises(OperateError, match=r"lamp 1\.0\.0 is installed"), offered(places, source, Demand()):
        pass
    other = package(tmp_path / "other", name="torch")
    with (
        pytest.raises(OperateError, match="named torch, and not of lamp"),
        offered(places, other, Demand(), updates="lamp"),
    ):
        pass
    # A link that leads to somebody's work is not replaced, nor followed.
    by_hand.rename(tmp_path / "moved")
    by_hand.symlink_to(tmp_path / "mine")
    with pytest.raises(OperateError, match="is a link"), offered(places, source, Demand(), updates="lamp"):
        pass
    with pytest.raises(OperateError, match="is a link"):
        remove(places, "lamp", installed_entry(places, "lamp"))
    assert files_below(tmp_path / "mine") > KEPT
    with pytest.raises(OperateError, match="espeak ships with the runner and is not removed"):
        installed_entry(places, "espeak")
    with pytest.raises(OperateError, match="No plugin named nobody is installed"):
        installed_entry(places, "nobody")


def test_what_somebody_else_has_changed_meanwhile(places: Places, tmp_path: Path) -> None:
    source = package(tmp_path / "source")
    with offered(places, source, Demand()) as late:
        with offered(places, source, Demand()) as early:
            early.accept()
        with pytest.raises(OperateError, match="Another command has changed what is installed as lamp"):
            late.accept()
    entry = installed_entry(places, "lamp")
    package(source, "2.0.0")
    with offered(places, source, Demand(), updates="lamp") as offer:
        offer.accept()
    with pytest.raises(OperateError, match="Another command"):
        remove(places, "lamp", entry)
    assert lockfile.read(places.lockfile)["lamp"].version == "2.0.0"


names = st.sampled_from(["x", "bin/lamp", "bin", "docs/a", "../x", "/x", "X", "../../../state/utter/install.lock"])
kinds = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
hostile = st.builds(
    Entry,
    name=names,
    data=st.binary(max_size=20),
    kind=kinds,
    link=st.one_of(names, st.sampled_from(["../../../lamp", "..", "bin/..", "."])),
)


@settings(max_examples=60, deadline=None)
@given(entries=st.lists(hostile, min_size=1, max_size=5), top=st.sampled_from(["", "lamp/"]))
def test_whatever_an_archive_holds_nothing_changes_before_it_is_accepted(entries: list[Entry], top: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        places = places_in(home / "home")
        with offered(places, package(home / "source"), Demand()) as offer:
            offer.accept()
        before = everything(places)
        newer = home / "newer.tar"
        good = entries_of(package(home / "source", "2.0.0"), top)
        newer.write_bytes(tar_bytes([*good, *(one._replace(name=top + one.name) for one in entries)]))
        with suppress(OperateError), offered(places, newer, Demand(), updates="lamp"):
            pass
        assert everything(places) == before
        assert [path.name for path in places.plugins.iterdir()] == ["lamp"]
        assert {path.name for path in home.iterdir()} == {"home", "source", "newer.tar"}


def test_what_is_installed_is_writable_by_nobody_else_whatever_the_umask(places: Places, tmp_path: Path) -> None:
    source = archive(package(tmp_path / "source"), tmp_path / "lamp.tar")
    before = os.umask(0)
    try:
        with offered(places, source, Demand()) as offer:
            place = offer.accept()
    finally:
        os.umask(before)
    found = [place, *place.rglob("*")]
    assert {oct(path.lstat().st_mode & 0o777) for path in found if not path.is_symlink()} == {"0o755", "0o644"}


# ---- signatures and digests


def test_a_signed_archive(places: Places, tmp_path: Path) -> None:
    source = archive(package(tmp_path / "source"), tmp_path / "lamp.tar")
    ADA.sign_file(source)
    with offered(places, source, Demand()) as offer:
        assert (offer.vouched, offer.stranger) == ("", ADA.id[::-1].hex().upper())
        assert offer.entry.signed_by == ""
    ADA.trusted_in(places)
    with offered(places, source, Demand()) as offer:
        assert (offer.vouched, offer.entry.signed_by) == ("ada.pub: made by Ada", ADA.public)
        offer.accept()
    # Another version by nobody is another signer; one by the same is not.
    for signed, other in ((False, True), (True, False)):
        newer = archive(package(tmp_path / "source", "2.0.0"), tmp_path / "newer.tar")
        if signed:
            ADA.sign_file(newer)
        with offered(places, newer, Demand(), updates="lamp") as offer:
            assert offer.other_signer is other
    before = everything(places)
    newer.write_bytes(newer.read_bytes() + bytes(512))
    with (
        pytest.raises(Untrusted, match=r"newer\.tar\.minisig is a wrong signature"),
        offered(places, newer, Demand(), updates=""),
    ):
        pass
    assert everything(places) == before


def test_a_signed_directory_and_archives_of_it(places: Places, tmp_path: Path) -> None:
    ADA.trusted_in(places)
    source = package(tmp_path / "source")
    (source / "utter-plugin.minisig").write_text(ADA.sign(f"{package_digest(source)}\n".encode()))
    inner = tmp_path / "lamp.zip"
    inner.write_bytes(zip_bytes(entries_of(source)))
    for path in (source, inner):
        with offered(places, path, Demand()) as offer:
            assert offer.entry.signed_by == ADA.public
    with offered(places, inner, Demand()) as offer:
        offer.accept()
    assert files_below(places.plugins / "lamp") == KEPT
    (source / "bin" / "lamp").write_text("something else")
    with pytest.raises(Untrusted, match="wrong signature"), offered(places, source, Demand(), updates=""):
        pass


def test_what_is_demanded(places: Places, tmp_path: Path) -> None:
    directory = package(tmp_path / "source")
    source = archive(directory, tmp_path / "lamp.tar")
    digest = package_digest(directory)
    with offered(places, source, Demand(digest=digest)) as offer:
        assert offer.demanded
    wrong = normal_digest("0" * 64)
    with (
        pytest.raises(Untrusted, match=f"has the digest {digest}, and --digest says {wrong}"),
        offered(places, source, Demand(digest=wrong)),
    ):
        pass
    # A key that is demanded must have signed it, and then no other one counts.
    BEA.trusted_in(places, "bea.pub")
    for sign in (None, BEA):
        if sign:
            sign.sign_file(source)
        with (
            pytest.raises(Untrusted, match="not signed with the key that --key names"),
            offered(places, source, Demand(key=KEY)),
        ):
            pass
    ADA.sign_file(source)
    with offered(places, source, Demand(key=KEY)) as offer:
        assert offer.vouched == "--key: made by Ada"
    assert normal_digest(digest.removeprefix("sha256:").upper()) == digest
    with pytest.raises(OperateError, match="64 hexadecimal digits"):
        normal_digest("sha256:123")


def test_places() -> None:
    found = Places.of({"HOME": "/h", "XDG_DATA_HOME": "/d", "XDG_STATE_HOME": "relative", "XDG_CONFIG_HOME": ""})
    assert [str(place) for place in found] == [
        "/d/utter/plugins",
        "/h/.local/state/utter/install.lock",
        "/h/.config/utter/trusted-keys",
    ]
    with pytest.raises(OperateError, match="Neither XDG_DATA_HOME nor HOME"):
        Places.of({})
