"""DAPO's pieces on the foggy lake: clip-higher, no KL, token mean, dynamic sampling; otherwise as frozenlake_grpo.py.

Its soft overlong penalty has no place here, where every reply has two tokens; see config.algorithm.overlong_buffer.

Command:  python launch/train.py --config=configs/frozenlake_dapo.py --run_dir=runs/dapo --init=run:runs/base
"""

from configs.frozenlake_grpo import get_config as grpo_config


def get_config():
    """Two groups are sampled for each that is trained on, and the first with a spread of returns is kept."""
    config = grpo_config()
    config.algorithm.clip_high = 0.28
    config.algorithm.aggregation = "token_mean"
    config.rollout.candidates = 2
    return config
