"""Say where a task's data are, and how to get what is missing.

python launch/get_data.py --task=deepcoder
python launch/get_data.py --task=deepcoder --fetch

For each source: path, files with their numbers of entries, licence; or every way to get it. --source picks one.
--fetch takes what is missing from the Hugging Face hub, where the hub has it, into the hub's own cache, which loaders
look in last.
"""

from absl import flags

from jaxrl_agent import command_line, data

_TASK = flags.DEFINE_enum("task", None, data.TASKS, "which task's data")
_SOURCE = flags.DEFINE_string("source", None, "one source of the task; by default all")
_FETCH = flags.DEFINE_bool("fetch", False, "fetch what is missing from the Hugging Face hub")
flags.mark_flag_as_required("task")


def main(_: list[str]) -> None:
    """Read flags, look, fetch if asked to, print."""
    lines = data.describe(_TASK.value, source=_SOURCE.value or "", fetch_missing=_FETCH.value)
    print("\n".join(lines))


if __name__ == "__main__":
    command_line.run_main(main)
