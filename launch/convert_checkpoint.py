"""Convert a policy between a run directory, a Hugging Face folder and a GGUF file.

python launch/convert_checkpoint.py --from=run --source=runs/grpo --out=exported
python launch/convert_checkpoint.py --from=hf --source=DIR --out=runs/4b --config=configs/frozenlake_qwen3_4b.py
python launch/convert_checkpoint.py --from=hf --source=FILE.gguf --out=DIR

--from=run writes the newest checkpoint as float32 safetensors with config.json and, where the tokenizer is a Hugging
Face one, the tokenizer's files: transformers loads the folder, and so does every command that takes hf:DIR.
--from=hf makes a run directory without training; other commands take it as run:DIR. A GGUF file becomes a Hugging Face
folder with its tokenizer (float32; quantised ones need the package gguf), unless --to=run asks for a run directory.
"""

from absl import flags
from ml_collections import config_flags

from jaxrl_agent import command_line
from jaxrl_agent.config import build_config, default_config
from jaxrl_agent.convert import hf_to_hf, hf_to_run, run_to_hf
from jaxrl_agent.errors import ConfigError
from jaxrl_agent.models.gguf_file import is_gguf

_FROM = flags.DEFINE_enum("from", None, ["hf", "run"], "what the source is: weights, or a run directory")
_TO = flags.DEFINE_enum("to", None, ["hf", "run"], "with --from=hf: what to make; by default as described above")
_SOURCE = flags.DEFINE_string("source", None, "folder or .gguf file to read")
_OUT = flags.DEFINE_string("out", None, "folder to write; a run directory must not hold a run yet")
_TOKENIZER = flags.DEFINE_string(
    "tokenizer", None, "embedded name, folder or hub name of the policy's tokenizer, if it is not the source's own"
)
_CONFIG = config_flags.DEFINE_config_file("config", None, "settings that a new run directory states")
flags.mark_flags_as_required(["from", "source", "out"])


def main(_: list[str]) -> None:
    """Read flags, convert, say what came out."""
    from_run = _FROM.value == "run"
    target = _TO.value or ("hf" if from_run or is_gguf(_SOURCE.value) else "run")
    if from_run and target == "run":
        raise ConfigError("a run is converted to a Hugging Face folder", value="--to=run", remedy="Leave --to out.")
    if target == "hf":
        convert = run_to_hf if from_run else hf_to_hf
        tokenizer = convert(_SOURCE.value, _OUT.value, tokenizer=_TOKENIZER.value)
        print(f"weights folder: {_OUT.value} (tokenizer: {tokenizer})")
        return
    config = build_config(_CONFIG.value or default_config())
    run = hf_to_run(_SOURCE.value, _OUT.value, config=config, tokenizer=_TOKENIZER.value)
    print(f"run directory: {run.path}")


if __name__ == "__main__":
    command_line.run_main(main)
