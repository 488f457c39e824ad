"""GRPO on the stock lake for a pretrained Qwen3-8B: as frozenlake_qwen3_4b.py, in smaller gradient pieces.

Command:  python launch/train.py --config=configs/frozenlake_qwen3_8b.py --init=hf:DIR --mesh=fsdp:16 --run_dir=runs/8b
Device:   written for 16 accelerators of 80 GB; not run at this size yet, so there is no time or score to quote.
"""

from configs.frozenlake_qwen3_4b import get_config as config_4b


def get_config():
    """One row of tokens at a time on each device."""
    config = config_4b()
    config.train.micro_batch_tokens = 3072
    return config
