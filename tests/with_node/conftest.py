"""Tests with clients of Node (``make test-clients``); elsewhere they are not collected."""

import os

if "NODE" not in os.environ:  # the program, beside whose packages the tests run
    collect_ignore_glob = ["test_*.py"]
