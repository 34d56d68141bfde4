"""A prober in your own generation loop, on an unmodified transformers model.

    probers-datagen --source cot && probers-train layer=all
    python examples/own_loop.py runs/train/cot-all

Give the folder that probers-train printed. The model here is the embedded testbed's; load
yours in the same way, by hub id or path.
"""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from probers import Prober
from probers.prompts import TESTBED_PROMPT
from probers.testbed.assets import load_questions, model_path

bank = Prober.from_pretrained(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(model_path(), padding_side="left")
model = AutoModelForCausalLM.from_pretrained(model_path(), dtype=torch.float32).eval()

prompts = [TESTBED_PROMPT.question(q.question) for q in load_questions()[:4]]
inputs = tokenizer(prompts, return_tensors="pt", padding=True)
length = inputs.input_ids.shape[1]

# Watching: what is generated stays the same, and every row gets a score.
with bank.watch(model) as scores:
    sequences = model.generate(**inputs, max_new_tokens=48, do_sample=False)
    scores.finish(sequences)
for row, wrong in zip(sequences, scores.probability, strict=True):
    print(f"P(wrong) {wrong:.2f} {tokenizer.decode(row[length:], skip_special_tokens=True)!r}")

# Stopping: a row ends where its score exceeds the prober's threshold. The heads were trained on
# whole answers, so the first tokens, which look like none, are not judged.
stop = bank.stopping_criteria(model, tokenizer, min_tokens=16)
sequences = model.generate(**inputs, max_new_tokens=48, do_sample=False, stopping_criteria=[stop])
for row, fired in zip(sequences, stop.fired, strict=True):
    text = tokenizer.decode(row[length:], skip_special_tokens=True)
    print(f"{'retrieve after' if fired else 'answered'}: {text!r}")
