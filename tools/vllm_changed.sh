#!/usr/bin/env bash
# Succeeds where the last tag, or origin/main, differs in what vLLM's tests cover, and where neither exists.
set -euo pipefail
cd "$(dirname "$0")/.."
base=$(git describe --tags --abbrev=0 2>/dev/null || git rev-parse --verify --quiet origin/main || true)
if [ -z "$base" ]; then
  echo "vLLM's tests: run, there is no tag and no origin/main to compare with"
  exit 0
fi
covered=(probers/model probers/prober/loops.py probers/prober/token_scores.py probers/prober/watch.py serve/vllm serve/answers.py serve/http.py serve/on_high.py tests/with_vllm)
changed=$(git diff --name-only "$base" -- "${covered[@]}")
# Lines with a version, of the package's dependencies and of vLLM's own in the Makefile.
versions=$(git diff --unified=0 "$base" -- pyproject.toml Makefile | grep -E '^[-+][^-+].*[a-z_](\])?[<>=]=[0-9]' || true)
if [ -n "$changed$versions" ]; then
  echo "vLLM's tests: run, these differ from $base:"
  printf '%s\n' $changed ${versions:+dependencies}
  exit 0
fi
echo "vLLM's tests: left out, nothing that they cover differs from $base (make test-vllm runs them)"
exit 1
