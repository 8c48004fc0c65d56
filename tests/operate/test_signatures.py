"""Signatures of minisign: those of the program itself, and every way in which one can be wrong."""

from __future__ import annotations

import base64
import io
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.packages import Signer, places_in
from utter_runner.operate.errors import OperateError, Untrusted
from utter_runner.operate.signatures import (
    PublicKey,
    Signature,
    given_key,
    read_signature,
    signer,
    trusted_keys,
)

ADA, BEA = Signer(1), Signer(2)
KEY, OTHER = PublicKey.parse(ADA.public, "ada"), PublicKey.parse(BEA.public, "bea")
MESSAGE = b"what was signed"


def verified(text: str, message: bytes = MESSAGE, key: PublicKey = KEY) -> None:
    Signature.parse(text, "lamp.tar.minisig").verify(key, io.BytesIO(message))


@pytest.mark.parametrize("legacy", [False, True])
def test_a_right_one(legacy: bool) -> None:
    text = ADA.sign(MESSAGE, "made by Ada on a Monday", legacy=legacy)
    verified(text)
    assert Signature.parse(text, "").comment == "made by Ada on a Monday"
    with pytest.raises(Untrusted, match=r"lamp\.tar\.minisig is a wrong signature: the package is not what was signed"):
        verified(text, MESSAGE + b"!")
    with pytest.raises(Untrusted, match="not what was signed"):
        verified(text, key=OTHER)
    with pytest.raises(Untrusted, match="its trusted comment is not the one that was signed"):
        verified(text.replace("Monday", "Sunday"))


@given(position=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_no_bit_of_it_can_be_changed(position: int, bit: int) -> None:
    # All but the first line, of which nobody claims anything.
    head, _, signed = ADA.sign(MESSAGE).partition("\n")
    data = bytearray(signed.encode())
    data[position % len(data)] ^= 1 << bit
    changed = f"{head}\n{data.decode('utf-8', 'surrogateescape')}"
    signature = None
    try:
        signature = Signature.parse(changed, "x")
        found = signer(signature, io.BytesIO(MESSAGE), [KEY])
    except Untrusted:
        return
    # Who signed it is not known then, or the change is one that base64 does not see.
    assert found is None or signature == Signature.parse(f"{head}\n{signed}", "x")


@pytest.mark.parametrize("text", ["", "\n" * 5, "untrusted comment: x\nRW\n", ADA.public, ADA.sign(b"") + "more\n"])
def test_what_is_no_signature(text: str) -> None:
    with pytest.raises(Untrusted, match=r"x\.minisig is not a signature as minisign makes it"):
        Signature.parse(text, "x.minisig")


def test_what_lies_in_a_signatures_place(tmp_path: Path) -> None:
    assert read_signature(tmp_path / "none") is None
    (tmp_path / "real").write_text(ADA.sign(MESSAGE))
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "directory").mkdir()
    for name in ("link", "directory"):
        with pytest.raises(Untrusted, match=f"{tmp_path / name}"):
            read_signature(tmp_path / name)
    found = read_signature(tmp_path / "real")
    assert found is not None
    found.verify(KEY, io.BytesIO(MESSAGE))


def test_who_has_signed_is_told_by_the_key() -> None:
    signature = Signature.parse(ADA.sign(MESSAGE), "x")
    assert signer(signature, io.BytesIO(MESSAGE), [OTHER, KEY]) == KEY
    assert signer(signature, io.BytesIO(MESSAGE), [OTHER]) is None
    # Somebody may have given his own key the same id: it is not his, and a wrong one stays wrong.
    namesake = PublicKey(KEY.id, OTHER.key)
    assert signer(signature, io.BytesIO(MESSAGE), [namesake, KEY]) == KEY
    with pytest.raises(Untrusted):
        signer(signature, io.BytesIO(MESSAGE), [namesake])


def test_keys(tmp_path: Path) -> None:
    file = tmp_path / "ada.pub"
    file.write_text(f"untrusted comment: minisign public key\n{ADA.public}\n")
    assert given_key(str(file)) == given_key(ADA.public) == KEY
    assert str(KEY) == ADA.public
    with pytest.raises(OperateError, match=r"The key .*none\.pub cannot be read: No such file"):
        given_key(str(tmp_path / "none.pub"))
    for text in ("", "RW", "x\n" * 3, base64.b64encode(b"Xd" + bytes(40)).decode(), "A" * 10_000):
        file.write_text(text)
        with pytest.raises(OperateError, match=f"{file} is not a minisign public key"):
            given_key(str(file))
    with pytest.raises(OperateError, match="--key is not a minisign public key"):
        given_key("A" * 56)


def test_trusted_keys_are_those_that_nobody_else_could_have_put_there(tmp_path: Path) -> None:
    places = places_in(tmp_path)
    assert trusted_keys(places.trusted_keys) == {}
    ADA.trusted_in(places)
    BEA.trusted_in(places, "bea.pub")
    (places.trusted_keys / "notes.txt").write_text("no key")
    assert trusted_keys(places.trusted_keys) == {KEY: "ada.pub", OTHER: "bea.pub"}
    for path in (places.trusted_keys, places.trusted_keys / "bea.pub"):
        mode = path.stat().st_mode
        path.chmod(0o777)
        with pytest.raises(OperateError, match=f"{path} can be changed by other users"):
            trusted_keys(places.trusted_keys)
        path.chmod(mode)


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(OperateError, match=r"pip install utter-runner\[signatures\]"):
        verified(ADA.sign(MESSAGE))


# ---- with the program itself

minisign = pytest.mark.skipif(shutil.which("minisign") is None, reason="minisign is not installed")


def run(*arguments: str, directory: Path) -> None:
    subprocess.run(["minisign", *arguments], cwd=directory, check=True, timeout=60, capture_output=True)


@minisign
@pytest.mark.parametrize("legacy", [False, True])
def test_what_minisign_signs(tmp_path: Path, legacy: bool) -> None:
    run("-G", "-W", "-p", "key.pub", "-s", "key.sec", directory=tmp_path)
    (tmp_path / "file").write_bytes(MESSAGE)
    run("-S", *(["-l"] if legacy else []), "-s", "key.sec", "-t", "für Ada", "-m", "file", directory=tmp_path)
    key = given_key(str(tmp_path / "key.pub"))
    signature = read_signature(tmp_path / "file.minisig")
    assert signature is not None
    assert (signature.comment, signature.prehashed) == ("für Ada", not legacy)
    signature.verify(key, io.BytesIO(MESSAGE))
    with pytest.raises(Untrusted):
        signature.verify(key, io.BytesIO(MESSAGE + b"!"))


@minisign
def test_minisign_accepts_what_the_tests_sign(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(MESSAGE)
    ADA.sign_file(tmp_path / "file")
    run("-V", "-P", ADA.public, "-m", "file", directory=tmp_path)
