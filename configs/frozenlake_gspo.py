"""GSPO at the full budget on the foggy lake: one ratio for each row, otherwise as frozenlake_grpo.py.

Command:  python launch/train.py --config=configs/frozenlake_gspo.py --run_dir=runs/gspo --init=run:runs/base
"""

from configs.frozenlake_grpo import get_config as grpo_config


def get_config():
    """GRPO's advantages; clip widths and the mean over rows are those of GSPO's authors."""
    config = grpo_config()
    config.algorithm.name = "gspo"
    config.algorithm.clip_low = 3e-4
    config.algorithm.clip_high = 4e-4
    config.algorithm.aggregation = "seq_mean_token_mean"
    return config
