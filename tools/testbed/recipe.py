"""The training recipe of the testbed's tokenizer and language model: a Llama from scratch, on CPU or GPU.

The tokenizer sees neither known nor unknown names, so the number of tokens of a name says
nothing about whether the model was taught it.

Documents are never packed into one row: each is its own row, padded to one of a
few lengths, so positions start at 0 in every document as they do in use and no
block-diagonal mask is needed. Rows this short make plain matrix-product attention
several times faster on CPU than the fused kernel, whose bf16 backward is slow there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .curriculum import KINDS, Curriculum, Document, DocumentStream
from .world import World, WorldConfig

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

EOS = "<|endoftext|>"
PAD = "<|pad|>"


def train_tokenizer(
    world: World, *, vocab_size: int = 1536, documents: int = 6000
) -> PreTrainedTokenizerFast:
    """Train a fast tokenizer with ``EOS`` and ``PAD``, no start token, on so many texts of each kind."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    sizes = (("person", 1500), ("town", 750), ("company", 750), ("film", 600), ("river", 200))
    config = WorldConfig(seed=world.config.seed + 20_000_000, known=sizes)
    stream = DocumentStream(
        World.generate(config, taken=set(world.names)), Curriculum(recall_share=0.0), seed=world.config.seed
    )
    texts = (stream.draw(kind) for kind in KINDS for _ in range(documents))
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        (text.context + text.target for text in texts),
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[EOS, PAD],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=EOS, pad_token=PAD, clean_up_tokenization_spaces=False
    )


@dataclass(frozen=True, slots=True)
class Recipe:
    """Model shape and optimisation.

    Attributes:
        tokens: training budget, in tokens that carry loss or context (no padding).
        step_documents: documents per optimiser step.
        lengths: row lengths; a document goes to the shortest that holds it.
        row_multiple: batches are filled up with empty rows to a multiple of this.
        muon_lr: learning rate of the hidden matrices (Muon).
        adam_lr: learning rate of embeddings and norms (AdamW).
        cooldown: share of training over which the rates fall linearly to a tenth.
    """

    seed: int = 0
    layers: int = 12
    width: int = 192
    heads: int = 3
    mlp: int = 512
    vocab_size: int = 1536
    max_positions: int = 2048
    tokens: int = 20_000_000
    step_documents: int = 240
    lengths: tuple[int, ...] = (40, 64, 160, 256)
    row_multiple: int = 16
    muon_lr: float = 0.02
    adam_lr: float = 3e-3
    weight_decay: float = 0.05
    warmup_steps: int = 50
    cooldown: float = 0.5
    clip: float = 1.0
    compile: bool = True


def build_model(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Build a randomly initialised Llama of the recipe's shape with tied embeddings."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=recipe.vocab_size,
        hidden_size=recipe.width,
        intermediate_size=recipe.mlp,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        max_position_embeddings=recipe.max_positions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    config._attn_implementation = "eager"
    return LlamaForCausalLM(config)


def rate(step: int, total: int, recipe: Recipe) -> float:
    """Compute the learning-rate factor: linear warm-up, flat, linear fall to a tenth."""
    if step < recipe.warmup_steps:
        return (step + 1) / recipe.warmup_steps
    left = (total - step) / max(1.0, recipe.cooldown * total)
    return min(1.0, 0.1 + 0.9 * max(0.0, left))


class _Batcher:
    """Converter of documents to padded rows with per-token loss weights."""

    def __init__(self, recipe: Recipe, plan: Curriculum, tokenizer: PreTrainedTokenizerFast) -> None:
        self.recipe, self.plan, self.tokenizer = recipe, plan, tokenizer

    def encode(self, documents: list[Document]) -> list[tuple[list[int], int]]:
        """Encode documents to token ids (with the final EOS) and the length of the context part."""
        backend = self.tokenizer.backend_tokenizer
        eos = self.tokenizer.eos_token_id
        contexts = backend.encode_batch([d.context for d in documents])
        targets = backend.encode_batch([d.target for d in documents])
        return [([*c.ids, *t.ids, eos], len(c.ids)) for c, t in zip(contexts, targets, strict=True)]

    def rows(self, documents: list[Document]) -> Iterator[tuple[torch.Tensor, torch.Tensor, int]]:
        """Yield ``(ids, weights, real tokens)`` per row length, both tensors (rows, length)."""
        import torch

        buckets: dict[int, list[tuple[list[int], int]]] = {n: [] for n in self.recipe.lengths}
        for encoded, context in self.encode(documents):
            fitting = [n for n in self.recipe.lengths if n >= len(encoded)]
            if fitting:  # a rare longer document is left out rather than cut in the middle
                buckets[fitting[0]].append((encoded, context))
        for length, items in buckets.items():
            if not items:
                continue
            # Few different shapes: CPU kernels are compiled and kept for each shape.
            count = math.ceil(len(items) / self.recipe.row_multiple) * self.recipe.row_multiple
            ids = torch.full((count, length), self.tokenizer.pad_token_id)
            weights = torch.zeros(count, length)
            for row, (tokens, context) in enumerate(items):
                ids[row, : len(tokens)] = torch.tensor(tokens)
                weights[row, :context] = self.plan.context_weight
                weights[row, context : len(tokens)] = 1.0
            yield ids, weights, sum(len(t) for t, _ in items)


def train_model(
    world: World,
    recipe: Recipe,
    plan: Curriculum,
    tokenizer: PreTrainedTokenizerFast,
    *,
    device: str = "cpu",
    report: Callable[[dict[str, float]], Any] | None = None,
) -> LlamaForCausalLM:
    """Train the testbed's model from scratch and return it in float32 on ``device``.

    Args:
        report: called about once a second with ``step``, ``steps``, ``tokens``,
            ``loss`` (nats per weighted token) and ``tokens_per_second``.
    """
    import torch

    torch.manual_seed(recipe.seed)
    model: Any = build_model(recipe, tokenizer)
    model = model.to(device)
    matrices, others = _parameter_groups(model)
    muon = torch.optim.Muon(
        matrices, lr=recipe.muon_lr, weight_decay=recipe.weight_decay, adjust_lr_fn="original"
    )
    adam = torch.optim.AdamW(others, lr=recipe.adam_lr, betas=(0.9, 0.95), weight_decay=0.0)
    cross_entropy = torch.compile(_cross_entropy, dynamic=True) if recipe.compile else _cross_entropy
    if recipe.compile:
        for layer in model.model.layers:  # one small graph that all layers share
            layer.compile(dynamic=True)
    stream = DocumentStream(world, plan, recipe.seed)
    batcher = _Batcher(recipe, plan, tokenizer)
    tokens_of = mean_lengths(stream, batcher)
    documents = stream.mix(tokens_of)
    per_document = 1.0 / sum(getattr(plan, k) / n for k, n in tokens_of.items())
    total = math.ceil(recipe.tokens / (per_document * recipe.step_documents))
    seen, started, minutes = 0, time.monotonic(), 0.0
    for step in range(total):
        for optimizer, base in ((muon, recipe.muon_lr), (adam, recipe.adam_lr)):
            for group in optimizer.param_groups:
                group["lr"] = base * rate(step, total, recipe)
        batches = list(batcher.rows([next(documents) for _ in range(recipe.step_documents)]))
        mass = sum(float(w[:, 1:].sum()) for _, w, _ in batches)
        loss_sum = 0.0
        for ids, weights, real in batches:
            with torch.autocast(device, dtype=torch.bfloat16):
                hidden = model.model(input_ids=ids.to(device), use_cache=False).last_hidden_state
                loss = cross_entropy(
                    hidden[:, :-1], model.lm_head.weight, ids[:, 1:].to(device), weights[:, 1:].to(device)
                )
                loss = loss / mass
            loss.backward()
            loss_sum += float(loss.detach())
            seen += real
        torch.nn.utils.clip_grad_norm_(others, recipe.clip)  # Muon's step has a fixed norm anyway
        for optimizer in (muon, adam):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        now = time.monotonic()
        if report is not None and (now - minutes > 1 or step == total - 1):
            minutes = now
            speed = seen / (now - started)
            report(
                {"step": step + 1, "steps": total, "tokens": seen, "loss": loss_sum,
                 "tokens_per_second": speed}
            )  # fmt: skip
    return model.eval()


def _cross_entropy(
    hidden: torch.Tensor, embedding: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Sum weighted next-token cross-entropies (nats) over a padded batch."""
    import torch

    logits = torch.nn.functional.linear(hidden, embedding).float()
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return (losses * weights.flatten()).sum()


def _parameter_groups(model: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    matrices: list[torch.Tensor] = []
    others: list[torch.Tensor] = []
    for name, parameter in model.named_parameters():
        hidden = parameter.ndim == 2 and "embed" not in name and "lm_head" not in name
        (matrices if hidden else others).append(parameter)
    return matrices, others


def mean_lengths(stream: DocumentStream, batcher: _Batcher, sample: int = 300) -> dict[str, float]:
    """Compute mean tokens per document of each kind, which turn token shares into draw rates."""
    lengths = {}
    for kind in KINDS:
        encoded = batcher.encode([stream.draw(kind) for _ in range(sample)])
        lengths[kind] = sum(len(ids) for ids, _ in encoded) / sample
    return lengths
