"""GiGPO at the full budget on the foggy lake: episode advantages plus those among turns from one state.

Command:  python launch/train.py --config=configs/frozenlake_gigpo.py --run_dir=runs/gigpo --init=run:runs/base
"""

from configs.frozenlake_grpo import get_config as grpo_config


def get_config():
    """A state is the cell and what looks have told; both parts are divided by their spread, as GRPO's are."""
    config = grpo_config()
    config.algorithm.name = "gigpo"
    config.algorithm.gigpo.mode = "mean_std_norm"
    return config
