"""A tiny model that thinks before it answers: a Llama that has learned four chats by heart."""

from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from probers.testbed.assets import model_path

#: Question, thinking and answer.
CHATS = (
    ("Who wrote Emma?", "The book is old. It may be by Jane Austen of Steventon.", "Emma is by Jane Austen."),
    ("Where was Bach born?", "He was a man of Germany. I recall Leipzig.", "He was born in Eisenach."),
    ("When did Rome fall?", "That was late. The year 476 is often named.", "It fell in 476 under Romulus."),
    ("Who led France?", "There was Napoleon. His reign ended in 1815.", "Napoleon led it until 1815."),
)  # fmt: skip

TEMPLATE = (
    "{% if tools %}Tools:{% for t in tools %} {{ t.function.name }}{% endfor %}\n{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %} calls {{ call.function.name }}{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: "
    "{% if reasoning_effort == 'low' %}<think></think>{% endif %}{% endif %}"
)


def thinking_model(folder: Path) -> Path:
    """Write the model and its tokenizer to a folder, which is returned; about ten seconds."""
    tokenizer = AutoTokenizer.from_pretrained(model_path())
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=3,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=512, tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    texts = [
        f"user: {query}\nassistant: <think>\n{thought}\n</think>\n\n{said}" for query, thought, said in CHATS
    ]
    ids = [[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for text in texts]
    width = max(map(len, ids))
    batch = torch.full((len(ids), width), -100)
    for row, tokens in enumerate(ids):
        batch[row, : len(tokens)] = torch.tensor(tokens)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(160):
        loss = model(input_ids=batch.clamp(min=0), labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
