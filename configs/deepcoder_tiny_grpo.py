"""GRPO at the full budget on DeepCoder-MT's template problems, with the tiny model on a CPU.

Command:  python launch/train.py --config=configs/deepcoder_tiny_grpo.py --run_dir=runs/code_grpo \\
          --init=run:runs/code_base
"""

from configs.deepcoder_tiny_base import get_config as base_config


def get_config():
    """Every trajectory may use all 5 turns."""
    config = base_config()
    config.algorithm.entropy_coefficient = 0.002
    # Some of the base's replies ramble to the limit: left out of the loss, nothing would tell it to stop.
    config.algorithm.train_on_cut_replies = True
    # At the lake's 7e-4 success fell within ten updates in two of three runs. This many updates are too few to see a
    # gain (WORKSPACE_NOTES.md); give --config.train.updates=100 where there is time.
    config.optimizer.learning_rate = 3e-4
    config.optimizer.schedule = "linear"
    config.rollout.prompts_per_update = 12
    config.train.updates, config.train.mini_batches = 25, 1
    return config
