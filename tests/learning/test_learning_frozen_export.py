import json

import numpy as np
import pytest
import torch
from torch import nn

from cofal.errors import UserError
from cofal.learning.embed import embed
from cofal.learning.encoders import build_encoder
from cofal.learning.export import export_onnx
from cofal.learning.frozen import load_frozen
from cofal.learning.head import build_head, predict_proba
from cofal.rng import generator, torch_generator


def pictures(n, size=8, channels=1):
    return generator(0, "pictures").integers(0, 256, (n, size, size, channels), dtype=np.uint8)


def warmed_encoder():
    encoder = build_encoder("resnet-tiny", 1, torch_generator(0)).train()
    encoder(torch.rand(8, 1, 8, 8, generator=torch_generator(1)))
    return encoder.eval()


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    pytest.importorskip("onnxruntime")
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    encoder, head = warmed_encoder(), build_head(64, 256, 3, torch_generator(2))
    export_onnx(encoder, head, ["cat", "dog", "eel"], path, image_size=8)
    return path, encoder, head


@pytest.mark.parametrize("n", [1, 2, 33])
def test_the_exported_model_gives_torchs_probabilities(exported, n):
    import onnxruntime

    path, encoder, head = exported
    session = onnxruntime.InferenceSession(path)
    (probabilities,) = session.run(None, {"images": pictures(n)})
    np.testing.assert_allclose(probabilities, predict_proba(head, embed(encoder, pictures(n))), atol=1e-4)
    names = session.get_modelmeta().custom_metadata_map["classes"]
    assert json.loads(names) == ["cat", "dog", "eel"]
    assert [p.name for p in path.parent.iterdir()] == ["model.onnx"]


def test_an_onnx_file_serves_as_a_frozen_encoder(exported):
    path, encoder, head = exported
    frozen = load_frozen(str(path))
    expected = predict_proba(head, embed(encoder, pictures(5)))
    np.testing.assert_allclose(frozen(pictures(5)), expected, atol=1e-4)
    assert frozen(pictures(2, size=16)).shape == (2, 3)  # resized to the 8 pixels that the model fixes


def test_export_needs_a_name_for_each_class_and_an_image_size(tmp_path):
    encoder, head = warmed_encoder(), build_head(64, 8, 3, torch_generator(2))
    with pytest.raises(UserError, match="3 classes, but 2 names"):
        export_onnx(encoder, head, ["a", "b"], tmp_path / "m.onnx", 8)
    with pytest.raises(UserError, match="image size"):
        export_onnx(encoder, head, ["a", "b", "c"], tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_a_torchscript_file_serves_as_a_frozen_encoder(tmp_path):
    encoder = warmed_encoder()
    torch.jit.save(torch.jit.trace(encoder, torch.rand(2, 1, 8, 8)), tmp_path / "encoder.pt")
    frozen = load_frozen(str(tmp_path / "encoder.pt"))
    np.testing.assert_allclose(embed(frozen, pictures(9), batch_size=4), embed(encoder, pictures(9)), atol=1e-5)


def test_a_callable_is_found_by_name_and_held_to_its_contract(tmp_path, monkeypatch):
    (tmp_path / "site_encoder.py").write_text(
        "def pixels(images): return images.reshape(len(images), -1)\n"
        "def pooled(images): return images.mean(axis=(1, 2))[:, :, None, None]\n"
        "def short(images): return images[:-1].reshape(len(images) - 1, -1)\n"
        "def broken(images): return images.reshape(len(images), -1) * float('nan')\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert load_frozen("site_encoder:pixels")(pictures(3)).shape == (3, 64)
    assert load_frozen("site_encoder:pooled")(pictures(3)).shape == (3, 1)
    with pytest.raises(UserError, match=r"site_encoder:short.*\(2, 64\).*3 images"):
        load_frozen("site_encoder:short")(pictures(3))
    with pytest.raises(UserError, match="not finite"):
        load_frozen("site_encoder:broken")(pictures(3))
    with pytest.raises(UserError, match="no callable 'number'"):
        load_frozen("site_encoder:number")


@pytest.mark.parametrize("spec", ["absent.pt", "absent.onnx", "no_such_module:f", "encoder.zip"])
def test_what_is_not_there_is_named(spec):
    with pytest.raises(UserError, match=spec.partition(":")[0]):
        load_frozen(spec)


@pytest.mark.parametrize("suffix", [".pt", ".onnx"])
def test_a_file_of_something_else_is_refused(tmp_path, suffix):
    path = tmp_path / f"model{suffix}"
    path.write_bytes(b"something else")
    with pytest.raises(UserError, match=f"model{suffix}"):
        load_frozen(str(path))


def test_a_pickled_module_is_not_unpickled(tmp_path):
    path = tmp_path / "pickle.pt"
    torch.save(nn.Linear(2, 2), path)  # a pickle, not a TorchScript archive
    with pytest.raises(UserError, match="not a TorchScript file"):
        load_frozen(str(path))
