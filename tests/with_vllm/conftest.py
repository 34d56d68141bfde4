"""Tests that need vLLM (``make test-vllm``); elsewhere they are not collected."""

import importlib.util
import os

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")

if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]
