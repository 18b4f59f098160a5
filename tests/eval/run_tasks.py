"""Runs tasks of lm-eval with several models and prints, as JSON, what each said to every sample.

A process of its own: lm-eval and what it imports warn, and read environment variables when they are imported.
"""

import json
import sys


def main() -> None:
    """Arguments: a folder with tasks, their names by comma, then pairs of a model's kind and its arguments."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    folder, names, *models = sys.argv[1:]
    manager = TaskManager(include_path=folder, include_defaults=False)
    answers = []
    for kind, arguments in zip(models[::2], models[1::2], strict=True):
        results = simple_evaluate(
            model=kind, model_args=arguments, tasks=names.split(","), task_manager=manager, bootstrap_iters=0
        )
        answers.append({name: [sample["resps"] for sample in rows] for name, rows in results["samples"].items()})
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
