"""A worker that counts how often its heads run; vLLM's processes import it."""

from typing import Any

from probers.serve.vllm.worker import ScoringWorker


class CountingWorker(ScoringWorker):
    """Counts the passes of the heads on this rank."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._passes = 0
        score = self._bank.head.forward

        def counted(*given: Any, **options: Any) -> Any:
            self._passes += 1
            return score(*given, **options)

        self._bank.head.forward = counted  # type: ignore[method-assign]

    def passes(self) -> int:
        return self._passes
