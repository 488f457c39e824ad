"""GRPO on DeepCoder-MT for a pretrained Qwen3-4B in non-thinking chat, problems of MBPP's training split.

Command:  python launch/train.py --config=configs/deepcoder_qwen3_4b.py --init=hf:DIR --mesh=fsdp:8 \\
          --run_dir=runs/code_4b
BudgetMix:  add --config.budget.schedule=budget_mix
DeepCoder's own problems:  add --config.task.coding.source=deepcoder --config.task.coding.path=FOLDER
Device:   written for 8 accelerators of 80 GB; not run at this size yet, so there is no time or score to quote.
"""

from configs.frozenlake_qwen3_4b import get_config as lake_config


def get_config():
    """16 groups of 8, up to 10 submissions of at most 1,024 tokens, failing public tests as feedback."""
    config = lake_config()  # the model, its precision and its optimizer
    task = config.task
    task.name, task.t_max, task.max_tokens, task.max_context = "deepcoder", 10, 1024, 16384
    task.coding.source = "mbpp"
    task.n_train, task.n_test = 371, 128
    config.rollout.prompts_per_update = 16
    config.rollout.lanes, config.rollout.shelf = 64, 64
    config.train.micro_batch_tokens = 16384
    return config
