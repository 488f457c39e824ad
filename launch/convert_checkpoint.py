"""Convert a policy between a run directory and a Hugging Face folder.

python launch/convert_checkpoint.py --from=run --source=runs/grpo --out=exported
python launch/convert_checkpoint.py --from=hf --source=DIR --out=runs/4b --config=configs/frozenlake_qwen3_4b.py

--from=run writes the newest checkpoint as float32 safetensors with config.json and, where the tokenizer is a Hugging
Face one, the tokenizer's files: transformers loads the folder, and so does every command that takes hf:DIR.
--from=hf makes a run directory without training; other commands take it as run:DIR.
"""

from absl import flags
from ml_collections import config_flags

from jaxrl_agent import command_line
from jaxrl_agent.config import build_config, default_config
from jaxrl_agent.convert import hf_to_run, run_to_hf

_FROM = flags.DEFINE_enum("from", None, ["hf", "run"], "what the source is: a Hugging Face folder, or a run directory")
_SOURCE = flags.DEFINE_string("source", None, "folder to read")
_OUT = flags.DEFINE_string("out", None, "folder to write; with --from=hf it must not hold a run yet")
_TOKENIZER = flags.DEFINE_string(
    "tokenizer", None, "embedded name, folder or hub name of the policy's tokenizer, if it is not the source's own"
)
_CONFIG = config_flags.DEFINE_config_file("config", None, "with --from=hf: settings that the new run states")
flags.mark_flags_as_required(["from", "source", "out"])


def main(_: list[str]) -> None:
    """Read flags, convert, say what came out."""
    if _FROM.value == "run":
        tokenizer = run_to_hf(_SOURCE.value, _OUT.value, tokenizer=_TOKENIZER.value)
        print(f"weights folder: {_OUT.value} (tokenizer: {tokenizer})")
        return
    config = build_config(_CONFIG.value or default_config())
    run = hf_to_run(_SOURCE.value, _OUT.value, config=config, tokenizer=_TOKENIZER.value)
    print(f"run directory: {run.path}")


if __name__ == "__main__":
    command_line.run_main(main)
