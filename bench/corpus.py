"""How preparing a corpus takes to size: time, memory, and whether a killed run goes on to the same bytes.

python bench/corpus.py TOKENIZER OUT.csv --sizes 100 200 300 --processes 2
"""

import argparse
import filecmp
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pandas as pd
import psutil

PROSE = """the of and to in is was for as on with by that from at his an were are which this also has be or had their
first one its new after who they two her she been other when time during there into school more years over only city
some world would where later up such used many can state about national out known university united then made south
company between most team film war well early name under three number group north against life house system river
government church family second history town public language several power since book station building member local
party german british french island water game series music court road century law age land northern science"""
WORDS = PROSE.split()
DOCUMENT_WORDS = 400
CODE = """
import json, sys
from lesa.corpus import prepare
from lesa.settings import Corpus
source, tokenizer, out, processes = sys.argv[1:]
if __name__ == "__main__":
    settings = Corpus(source=source, heldout_fraction=0.01, processes=int(processes), shard_size="16MB")
    print(json.dumps(prepare(settings, tokenizer, out, out + ".work")))
"""


def measure(folder: Path, sizes_mb: list[int], processes: int, tokenizer: Path) -> pd.DataFrame:
    """Prepare generated documents of each size; then kill a run of the largest half way, and let it go on.

    Args:
        folder: an existing folder for texts and outputs, some three times the largest size.
        sizes_mb: megabytes (10**6 bytes) of JSONL.
        processes: workers.
        tokenizer: a folder with a tokenizer.

    Returns:
        One row a run: ``run`` (``whole``, ``killed``, ``resumed``), ``mb``, ``processes``, ``seconds``,
        ``mb_per_second``, ``peak_memory_mb`` (resident, of all processes at one time; pages they share count for each),
        ``peak_main_mb``, ``peak_worker_mb``, and ``same_bytes`` of the resumed run.
    """
    rows: list[dict[str, Any]] = []
    for size in sizes_mb:
        text, out = folder / f"{size}.jsonl", folder / f"{size}"
        write_documents(text, size * 10**6)
        rows.append({"run": "whole", "mb": size, **_run(text, tokenizer, out, processes)})
    again = folder / "again"
    shards = len(list((out / "train").iterdir()))
    rows.append({"run": "killed", "mb": size, **_run(text, tokenizer, again, processes, kill_after=shards // 2)})
    rows.append({"run": "resumed", "mb": size, **_run(text, tokenizer, again, processes)})
    rows[-1]["same_bytes"] = _same(out, again)
    table = pd.DataFrame(rows)
    table.insert(2, "processes", processes)
    whole = table["run"] == "whole"
    table.insert(4, "mb_per_second", (table["mb"] / table["seconds"]).where(whole))
    return table


def write_documents(path: Path, size: int) -> None:
    """Write JSONL documents of random sentences, ``size`` bytes in all and a little."""
    rng = random.Random(0)
    with path.open("w") as file:
        while file.tell() < size:
            words = rng.choices(WORDS, k=rng.randrange(DOCUMENT_WORDS // 2, DOCUMENT_WORDS * 3 // 2))
            for place in range(0, len(words), 14):
                words[place] = words[place].capitalize()
                words[place - 1] += "."
            file.write(json.dumps({"text": " ".join(words)}) + "\n")


def _run(text: Path, tokenizer: Path, out: Path, processes: int, kill_after: int | None = None) -> dict[str, float]:
    """Time and memory of one run in a process of its own, killed once so many shards are tokenized."""
    start = time.monotonic()
    peaks = {"all": 0, "main": 0, "worker": 0}
    command = [sys.executable, "-c", CODE, str(text), str(tokenizer), str(out), str(processes)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            main, *workers = _resident(process.pid) or [0]
            largest = {"all": main + sum(workers), "main": main, "worker": max(workers, default=0)}
            peaks = {name: max(peak, largest[name]) for name, peak in peaks.items()}
            if kill_after is not None and len(_tokenized(out)) >= kill_after:
                process.kill()
            time.sleep(0.1)
    if process.returncode != (0 if kill_after is None else -9):
        raise RuntimeError(f"preparing {text} ended with {process.returncode}")
    memory = {f"peak_{name}_mb".replace("all", "memory"): peak / 1e6 for name, peak in peaks.items()}
    return {"seconds": time.monotonic() - start, **memory}


def _tokenized(out: Path) -> list[Path]:
    return list(out.parent.glob(f"{out.name}.work/*/tokenized/completions/*"))


def _resident(pid: int) -> list[int]:
    sizes = []
    try:
        main = psutil.Process(pid)
        for process in [main, *main.children(recursive=True)]:
            sizes.append(process.memory_info().rss)
    except psutil.NoSuchProcess:
        pass
    return sizes


def _same(one: Path, other: Path) -> bool:
    files = [sorted(path.relative_to(folder) for path in folder.rglob("*.*")) for folder in (one, other)]
    return files[0] == files[1] and all(filecmp.cmp(one / name, other / name, shallow=False) for name in files[0])


def main() -> None:
    """Measure with what the command line says, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[50, 100, 200, 300], metavar="MB")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lesa-bench-") as folder:
        table = measure(Path(folder), arguments.sizes, arguments.processes, arguments.tokenizer)
    arguments.csv.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(arguments.csv, index=False)
    print(table.to_string(index=False))


if __name__ == "__main__":
    main()
