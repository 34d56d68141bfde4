"""The language model in vLLM, for ``engine=vllm``, and the workers that read its states."""

#: Key of our settings in vLLM's ``additional_config`` and in a request's ``extra_args``.
KEY = "probers"
