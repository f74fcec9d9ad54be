"""A deployed site's folder: how it is made from a folder of images and what its owner says about them."""

from __future__ import annotations

import csv
import difflib
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from cofal.data.choosing import Choice
from cofal.data.formats.folder import ENDINGS, blocks_of, images_below
from cofal.data.listing import Listing
from cofal.data.readers import decode_sets
from cofal.data.settings import DataSettings
from cofal.deploy.certificates import create_site_key
from cofal.errors import UserError
from cofal.federation.site_settings import ServerLink, SiteSettings, create_site
from cofal.files import new_folder, write_bytes
from cofal.labeling.store import LabelStore

KEY, PUBLIC, AUTHORITY = "site.key", "site.pub", "ca.crt"


def create_deployed_site(
    folder: Path,
    *,
    name: str,
    images: Path,
    classes: list[str],
    server: str,
    authority: Path,
    test_images: Path | None = None,
    known: dict[str, str] | None = None,
    data: DataSettings | None = None,
    frozen: str = "",
    device: str = "cpu",
) -> int:
    """Decode the images, make the key pair, the label store and the settings; returns the number of images.

    `images`: all images below it, whatever its folders are called; their labels are unknown but for `known` (path below
    `images` -> class). `test_images`: CLASS/*.png. `data`: image_size and skip_bad.
    """
    host, colon, port = server.rpartition(":")
    if not colon or not host or "/" in host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise UserError(f"--server {server!r} is not HOST:PORT (1 to 65535), such as cofal.example.org:9443")
    try:
        certificate = authority.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read --ca {authority}: {error.strerror}; ask the coordinator for tls/ca.crt") from None
    if b"PRIVATE KEY" in certificate or b"BEGIN CERTIFICATE" not in certificate:
        raise UserError(f"--ca {authority} is no certificate; ask the coordinator for tls/ca.crt")
    try:
        settings = SiteSettings(  # checked before the images are decoded, which may take a while
            name=name,
            images="images",
            test_images="test" if test_images else "",
            known_labels=sorted(known or {}),
            frozen=frozen,
            device=device,
            server=ServerLink(address=server, ca=AUTHORITY, key=KEY),
        )
    except ValidationError:  # of what is given here only the name can be wrong
        raise UserError(
            f"{name!r} cannot be a site's name; give --name with 1 to 64 characters, no blank or slash, no dot in front"
        ) from None
    with new_folder(folder, "a site", mode=0o700):
        listings = [_listing(images, classes, known or {})]
        if test_images:
            listings.append(_test_listing(test_images, classes))
        choices = [Choice(listing, np.arange(len(listing.ids))) for listing in listings]
        decode_sets(choices, [folder / "images", folder / "test"][: len(choices)], classes, data or DataSettings())
        write_bytes(folder / AUTHORITY, certificate)
        create_site_key(folder / KEY, folder / PUBLIC, name)
        LabelStore.open(folder, classes).close()
        create_site(folder, settings)  # last: a folder that holds it is whole
    return len(listings[0].ids)


def read_classes(given: str) -> list[str]:
    """Class names from a file with one a line, or from a list with commas; their order is the order of the labels."""
    path = Path(given).expanduser()
    if path.is_file():
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read --classes {given}: {error}") from None
    elif "," in given:
        lines = given.split(",")
    else:
        raise UserError(f"--classes {given!r} is neither a file nor a list such as cat,dog; give all class names")
    names = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    if len(names) < 2 or len(set(names)) != len(names):
        fault = "names a class twice" if len(set(names)) != len(names) else f"names {len(names)} class(es)"
        raise UserError(f"--classes {given} {fault}; give at least two different names")
    return names


def read_labels(path: Path) -> dict[str, str]:
    """Path below the images -> class, from a CSV with the columns id,label."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            if not {"id", "label"} <= set(reader.fieldnames or ()):
                raise UserError(f"{path} has the columns {reader.fieldnames}; it needs id and label")
            return {row["id"]: row["label"] for row in reader}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"cannot read {path}: {error}") from None


def labelled_folder(images: Path, classes: list[str], target: Path, data: DataSettings) -> int:
    """Decode a test set, CLASS/*.png, into `target`; returns the number of images."""
    listing = _test_listing(images, classes)
    decode_sets([Choice(listing, np.arange(len(listing.ids)))], [target], classes, data)
    return len(listing.ids)


def _files(folder: Path) -> tuple[list[Path], list[str]]:
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give the folder that holds the images")
    files = images_below(folder)
    if not files:
        raise UserError(f"{folder} holds no image ({', '.join(ENDINGS)})")
    return files, [file.relative_to(folder).as_posix() for file in files]


def _listing(folder: Path, classes: list[str], known: dict[str, str]) -> Listing:
    files, ids = _files(folder)
    number = {name: position for position, name in enumerate(classes)}
    for sample, label in known.items():
        if label not in number:
            raise UserError(
                f"the labels say {sample!r} is {label!r}, which is not among the classes{_near(label, classes)}"
            )
    if missing := set(known) - set(ids):
        first = min(missing)
        raise UserError(f"the labels name {first!r}, which is not below {folder}{_near(first, ids)}")
    labels = np.array([number[known[sample]] if sample in known else -1 for sample in ids], dtype=np.int64)
    return Listing(str(folder), ids, labels, None, blocks_of(files))


def _test_listing(folder: Path, classes: list[str]) -> Listing:
    files, ids = _files(folder)
    number = {name: position for position, name in enumerate(classes)}
    labels = []
    for sample in ids:
        name = sample.partition("/")[0] if "/" in sample else ""
        if name not in number:
            raise UserError(
                f"test image {folder / sample} does not lie in a folder named as a class; "
                f"expected {folder}/CLASS/image, CLASS one of {', '.join(classes[:5])}"
            )
        labels.append(number[name])
    return Listing(str(folder), ids, np.array(labels, dtype=np.int64), None, blocks_of(files))


def _near(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
