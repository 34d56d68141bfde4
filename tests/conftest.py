"""One thread per process: the models here are so small that threads cost more than they give."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
