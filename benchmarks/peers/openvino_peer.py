"""OpenVINO GenAI in this process: `python -m benchmarks.peers.openvino_peer MODEL.gguf`."""

import itertools
import sys

import numpy as np
import openvino
import openvino_genai

from benchmarks.peers.protocol import Arrived, Prompts, answer_tasks

POOL_GIB = 2


def main(model: str) -> None:
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = POOL_GIB
    scheduler.enable_prefix_caching = True
    scheduler.max_num_seqs = 64
    scheduler.max_num_batched_tokens = 2048
    pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", {})
    numbers = itertools.count()

    def generate(prompts: Prompts, output_len: int, arrived: Arrived) -> None:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = output_len
        config.ignore_eos = True
        config.do_sample = False
        handles = [
            pipeline.add_request(next(numbers), openvino.Tensor(np.array([prompt], np.int64)), config)
            for prompt in prompts
        ]
        while pipeline.has_non_finished_requests():
            pipeline.step()
            for number, handle in enumerate(handles):
                while handle.can_read():
                    for output in handle.read().values():
                        for _ in output.generated_ids:
                            arrived(number)

    answer_tasks(openvino_genai.__version__.partition("-")[0], generate)


if __name__ == "__main__":
    main(sys.argv[1])
