"""The language model in vLLM: ``engine=vllm``, and what its states are read with."""

#: The key of vLLM's ``additional_config`` and of a request's ``extra_args`` under which ours stands.
KEY = "probers"
