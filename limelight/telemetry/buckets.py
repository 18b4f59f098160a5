"""Upper bounds of histograms. Where the GenAI semantic conventions or vLLM's dashboards have some, ours hold them."""


def one_two_five(largest: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50 ... up to `largest`."""
    bounds = (digit * 10**power for power in range(len(str(largest))) for digit in (1, 2, 5))
    return tuple(bound for bound in bounds if bound <= largest)


GENAI_REQUEST_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
GENAI_FIRST_TOKEN_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
GENAI_TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
"""Those of `gen_ai.server.request.duration`, `.time_to_first_token` and `.time_per_output_token`."""

REQUEST_SECONDS = (*GENAI_REQUEST_SECONDS, 163.84, 327.68, 655.36, 1310.72)
FIRST_TOKEN_SECONDS = (*GENAI_FIRST_TOKEN_SECONDS, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, *GENAI_TOKEN_SECONDS, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
PHASE_SECONDS = (0.0001, 0.0005, 0.001, 0.0025, 0.005, *REQUEST_SECONDS)
STEP_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
EXCHANGE_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
LAG_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""The first is about what a timer of an idle loop is late by."""

TOKENS = (0, *one_two_five(1_000_000))
STEP_TOKENS = one_two_five(20_000)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CHOICES = (1, 2, 5, 10, 20)
PREEMPTIONS = (0, 1, 2, 5, 10, 20, 50)
