"""GRPO on DeepCoder-MT for a pretrained Qwen3-8B: as deepcoder_qwen3_4b.py, in smaller gradient pieces.

Command:  python launch/train.py --config=configs/deepcoder_qwen3_8b.py --init=hf:DIR --mesh=fsdp:16 \\
          --run_dir=runs/code_8b
Device:   written for 16 accelerators of 80 GB; not run at this size yet, so there is no time or score to quote.
"""

from configs.deepcoder_qwen3_4b import get_config as config_4b


def get_config():
    """One trajectory at a time on each device."""
    config = config_4b()
    config.train.micro_batch_tokens = 8192
    return config
