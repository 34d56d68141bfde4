"""A scheduler of vLLM that has the last token of a scored text forwarded as well.

A token is scored by the state that it leads to, and vLLM forwards no token after which nothing is drawn.
A text that has reached its ``max_tokens`` therefore stays in the batch for one step more, of one position.
Its client gets the text when vLLM would have sent it, and drops what the further step draws, as it drops
whatever comes for a text that has ended.
"""

from __future__ import annotations

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutputs, FinishReason
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from .worker import closes, key_of


class ScoringScheduler(AsyncScheduler):  # type: ignore[misc]
    """vLLM's scheduler, for heads that read the state of the token that they score.

    Not lengthened are texts that fill the context, and those that vLLM cuts at a stop string, which it
    finds outside of the scheduler.
    """

    def add_request(self, request: Request) -> None:
        """As vLLM's, with room for a token more where the text is scored."""
        # A text that another engine goes on with must end here as that one expects.
        if key_of(request) is not None and not closes(request) and request.kv_transfer_params is None:
            request.max_tokens += 1
        super().add_request(request)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """As vLLM's; a lengthened text ends for its client one token earlier."""
        made = super().update_from_output(scheduler_output, model_runner_output)
        for told in (told for answers in made.values() for told in answers.outputs):
            request = self.requests.get(told.request_id)  # None once it has ended here too
            if request is None or request.sampling_params is None:
                continue
            asked = request.sampling_params.max_tokens
            if request.num_output_tokens == asked < request.max_tokens:
                told.finish_reason = FinishReason.LENGTH
        return made
