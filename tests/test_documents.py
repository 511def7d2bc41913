import bz2
import json
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lesa import documents
from lesa.documents import Document
from lesa.errors import LesaError
from lesa.settings import Corpus
from lesa.shards import cut

SENTENCE = "The town is known for its bridges and its bread. "


def page(title: str, number: int, text: str, ns: int = 0, redirect: str = "") -> str:
    return (
        f"<page><title>{title}</title><ns>{ns}</ns><id>{number}</id>{redirect}"
        f"<revision><id>9</id><text>{text}</text></revision></page>"
    )


def dump(*pages: str) -> str:
    return f'<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/"><siteinfo/>{"".join(pages)}</mediawiki>'


def read(source: object, **settings: object) -> list[Document]:
    corpus = Corpus(source=str(source), **settings)
    shards = cut(corpus, 10**6, Path(str(source)))
    return [document for shard in shards for document in documents.read(shard, corpus)]


def test_text_file_is_one_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(" Hello.\n\nWorld. \n")
    assert read(tmp_path / "a.txt") == [Document("a.txt", "a", "Hello.\n\nWorld.")]


def test_jsonl_lines_are_documents(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"body": "One", "title": "T", "id": 7}\n\n{"body": " "}\n{"body": "Two"}\n')
    assert read(path, text_field="body") == [Document("7", "T", "One"), Document("a.jsonl@54", "", "Two")]


def test_parquet_rows_are_documents(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["One", None, "Two"], "id": ["x", "y", "z"]}), tmp_path / "a.parquet")
    assert [(d.id, d.text) for d in read(tmp_path / "a.parquet")] == [("x", "One"), ("z", "Two")]


@pytest.mark.parametrize("name", ["d.xml", "d.xml.bz2"])
def test_dump_gives_articles_only(tmp_path: Path, name: str) -> None:
    content = dump(
        page("Kept", 1, f"'''{SENTENCE * 10}'''"),
        page("Talk:Kept", 2, SENTENCE * 10, ns=1),
        page("Old name", 3, SENTENCE * 10, redirect='<redirect title="Kept"/>'),
        page("Stub", 4, SENTENCE),
    ).encode()
    (tmp_path / name).write_bytes(bz2.compress(content) if name.endswith("bz2") else content)
    assert read(tmp_path / name) == [Document("1", "Kept", (SENTENCE * 10).strip())]


def test_folder_gives_all_files_in_order(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.txt").write_text("Second")
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "First"}))
    (tmp_path / "notes.md").write_text("Ignored")
    assert [d.text for d in read(tmp_path)] == ["First", "Second"]


def test_hub_dataset_is_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "dataset"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"text": "One"}\n{"text": "Two"}\n')
    assert [d.text for d in read(f"hub://{folder}")] == ["One", "Two"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(LesaError, match="cannot be read from the Hub"):
        read(f"hub://{tmp_path}/empty")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.docx", b"x", "of no known kind"),
        ("a.txt", b"\xff\xfe\x00", "is not UTF-8 text"),
        ("a.jsonl", b"{", "line 1 of .*a.jsonl is not JSON"),
        ("a.jsonl", b"[1]", "is no JSON object"),
        (
            "a.jsonl",
            b'{"content": "x"}',
            "corpus.text_field is text, and a.jsonl@0 has no such text; .*: content",
        ),
        ("a.parquet", b"PAR1", "not a whole parquet file"),
        ("a.xml", b"<mediawiki><page>", "not a whole MediaWiki dump"),
        ("a.xml.bz2", bz2.compress(b"<mediawiki>" * 99)[:30], "not a whole MediaWiki dump"),
    ],
)
def test_unreadable_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(LesaError, match=message):
        read(tmp_path / name)
