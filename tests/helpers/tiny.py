"""Tiny random models of several families, with tokenizers, saved and loaded like real ones."""

import json
import tempfile
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, MptConfig, PreTrainedTokenizerFast

from probers.model.causal_lm import CausalLM

EOS, PAD, BOS = "<|end|>", "<|pad|>", "<|begin|>"
CONTEXT = 256
#: The argument and output that holds keys and values: "cache" from transformers 5.24 on.
CACHE = (
    "cache" if "cache" in signature(transformers.LlamaForCausalLM.forward).parameters else "past_key_values"
)

#: Windows are short and Llama has a BOS, so that sliding attention and special tokens are always covered.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"config": transformers.LlamaConfig, "num_key_value_heads": 2, "bos": True},
    "mistral": {"config": transformers.MistralConfig, "num_key_value_heads": 1, "sliding_window": 8},
    "qwen2": {"config": transformers.Qwen2Config, "num_key_value_heads": 2},
    "qwen3": {"config": transformers.Qwen3Config, "num_key_value_heads": 2, "head_dim": 8},
    "gemma": {"config": transformers.GemmaConfig, "num_key_value_heads": 1, "head_dim": 16},
    "gemma2": {
        "config": transformers.Gemma2Config, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 8,
        "query_pre_attn_scalar": 8, "attn_logit_softcapping": 5.0,
    },
    "gemma3": {
        "config": transformers.Gemma3TextConfig, "num_key_value_heads": 1, "head_dim": 8, "sliding_window": 8,
        "query_pre_attn_scalar": 8, "sliding_window_pattern": 2,
    },
    "phi": {"config": transformers.PhiConfig, "partial_rotary_factor": 0.5},
    "gpt2": {"config": transformers.GPT2Config},
    "gpt_neox": {"config": transformers.GPTNeoXConfig, "rotary_pct": 0.5},
    "opt": {"config": transformers.OPTConfig, "word_embed_proj_dim": 32, "ffn_dim": 48, "init_std": 0.3},
    "falcon": {"config": transformers.FalconConfig},
    "falcon_alibi": {
        "config": transformers.FalconConfig, "alibi": True, "parallel_attn": False, "multi_query": False,
    },
    "mpt": {"config": MptConfig},
}  # fmt: skip

SHAPES = {MptConfig: {"d_model": 32, "n_heads": 4, "max_seq_len": CONTEXT}}

PROMPTS = (
    "Question: Who founded the mill?\nAnswer:", "The river",
    "Mira Tolven was born in Jomholm in 1912. She moved to the town of Arl when she was ten, and then",
    "Who? ", "The mayor of Jomholm is",
)  # fmt: skip

_TEXT = [
    "Question: Who founded the mill in Jomholm?\nAnswer: Mira Tolven founded the mill in 1912. So it is",
    "The river Arl flows through the town. Its mouth is near Kelby, and it is 40 km long. The mayor of",
    "She was born in 1931, moved when she was ten, and then worked as a baker. Who was her mother? And where",
]


def fast(tokenizer: Tokenizer, **tokens: str | None) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **tokens)


@cache
def byte_level(*, bos: bool = False, every_byte: bool = False, size: int = 320) -> PreTrainedTokenizerFast:
    """Byte-level BPE; unless ``every_byte`` it knows ASCII only, so that random tokens are clean text."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet()) if every_byte else []
    options = {"vocab_size": size, "initial_alphabet": alphabet, "show_progress": False}
    trainer = trainers.BpeTrainer(special_tokens=[EOS, PAD, BOS], **options)
    bpe.train_from_iterator(_TEXT, trainer)
    if bos:
        bpe.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A", special_tokens=[(BOS, bpe.token_to_id(BOS))]
        )
    return fast(bpe, eos_token=EOS, pad_token=PAD, bos_token=BOS if bos else None)


@cache
def sentence_piece() -> PreTrainedTokenizerFast:
    """BPE in SentencePiece's manner: a space marker before words, unknown characters as bytes, a BOS."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trained.train_from_iterator(_TEXT, trainers.BpeTrainer(vocab_size=200, show_progress=False))
    parts = json.loads(trained.to_str())["model"]
    pieces = ["<unk>", BOS, EOS, *(f"<0x{i:02X}>" for i in range(256)), *parts["vocab"]]
    bpe = Tokenizer(
        models.BPE(
            vocab={piece: i for i, piece in enumerate(pieces)},
            merges=[tuple(m) for m in parts["merges"]],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    bpe.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    bpe.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    bpe.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 1)])
    return fast(bpe, eos_token=EOS, bos_token=BOS, unk_token="<unk>")


@cache
def word_piece() -> PreTrainedTokenizerFast:
    """WordPiece in BERT's manner: no spaces in the vocabulary, the decoder puts them between words."""
    pieces = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pieces.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    trainer = trainers.WordPieceTrainer(
        vocab_size=160, special_tokens=["[UNK]", EOS, PAD], show_progress=False
    )
    pieces.train_from_iterator(_TEXT, trainer)
    return fast(pieces, eos_token=EOS, pad_token=PAD, unk_token="[UNK]")


def save_tiny(
    family: str,
    folder: Path,
    *,
    layers: int = 3,
    seed: int = 0,
    tokenizer: PreTrainedTokenizerFast | None = None,
) -> Path:
    """A random model of ``family`` with width 32 and 4 heads, and its tokenizer, in ``folder``."""
    options = dict(FAMILIES[family])
    kind, bos = options.pop("config"), options.pop("bos", False)
    tokenizer = tokenizer or byte_level(bos=bos)
    config = kind(
        vocab_size=len(tokenizer),
        **SHAPES.get(kind, {"max_position_embeddings": CONTEXT, "num_attention_heads": 4, "hidden_size": 32}),
        **{"n_layers" if kind is MptConfig else "num_hidden_layers": layers},
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.3,  # sharp distributions: differences would show
        **({"intermediate_size": 48} if "intermediate_size" in kind().to_dict() else {}),
        **options,
    )
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@cache
def tiny_path(family: str = "llama", seed: int = 0) -> Path:
    """The folder of a tiny model that lives as long as the test run."""
    holder = tempfile.TemporaryDirectory(prefix=f"tiny-{family}-")
    _HOLDERS.append(holder)
    return save_tiny(family, Path(holder.name), seed=seed)


_HOLDERS: list[tempfile.TemporaryDirectory[str]] = []


def tiny_lm(family: str = "llama", *, seed: int = 0, **options: Any) -> CausalLM:
    """A freshly loaded tiny model, which the test may change; it never writes a special token."""
    lm = CausalLM.from_pretrained(str(tiny_path(family, seed)), **{"device": "cpu", **options})
    without_specials(lm.model, lm.tokenizer)
    return lm


def without_specials(model: Any, tokenizer: Any) -> None:
    """Make special tokens impossible, so that random texts end only where a test wants them to."""
    known = model.get_output_embeddings().weight.shape[0]
    specials = torch.tensor([i for i in tokenizer.all_special_ids if i < known])
    model.get_output_embeddings().register_forward_hook(
        lambda module, given, logits: logits.index_fill(-1, specials.to(logits.device), -1e4)
    )


def reference(model: Any, generation: Any, **asked: bool) -> Any:
    """What transformers itself reports of a generation's prompt and tokens, one text without padding."""
    ids = torch.tensor([[*generation.prompt_ids, *generation.token_ids]])
    with torch.no_grad():
        return model(ids, attention_mask=torch.ones_like(ids), **(asked or {"output_hidden_states": True}))


def forwarded(lm: CausalLM, monkeypatch: Any) -> list[tuple[int, int]]:
    """(rows, columns) of every pass from now on."""
    passes: list[tuple[int, int]] = []
    forward = lm.model.forward

    def counted(**given: Any) -> Any:
        passes.append(tuple(given["input_ids"].shape))
        return forward(**given)

    monkeypatch.setattr(lm.model, "forward", counted)
    return passes


def save_gguf(file: Path, *, kind: str = "F32", seed: int = 0, most: int = 0) -> None:
    """The tiny Llama and its tokenizer as llama.cpp converts them; in ``kind`` what it divides.

    With ``most`` there is a new file after so many tensors.
    """
    import gguf

    lm = CausalLM.from_pretrained(str(tiny_path("llama", seed)), device="cpu", dtype="float32")
    config, weights = lm.model.config, lm.model.state_dict()
    writer = gguf.GGUFWriter(file, "llama", split_max_tensors=most)
    writer.add_name("tiny")
    for key, value in {
        "context_length": CONTEXT, "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers, "feed_forward_length": config.intermediate_size,
        "head_count": config.num_attention_heads, "head_count_kv": config.num_key_value_heads,
        "layer_norm_rms_eps": config.rms_norm_eps, "rope_dimension_count": config.head_dim,
        "rope_freq_base": config.rope_parameters["rope_theta"], "vocab_size": config.vocab_size,
    }.items():  # fmt: skip
        getattr(writer, f"add_{key}")(value)
    bpe = json.loads(lm.tokenizer.backend_tokenizer.to_str())
    ids = lm.tokenizer.get_vocab()
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(sorted(ids, key=lambda token: ids[token]))
    writer.add_token_types([3 if i in lm.tokenizer.all_special_ids else 1 for i in range(len(ids))])
    writer.add_token_merges([" ".join(pair) for pair in bpe["model"]["merges"]])
    for role in ("bos", "eos", "pad"):
        getattr(writer, f"add_{role}_token_id")(getattr(lm.tokenizer, f"{role}_token_id"))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    wanted = gguf.GGMLQuantizationType[kind]
    for key, tensor in weights.items():
        array = tensor.float().numpy()
        if (part := key.split(".")[-2]) in heads:  # rotary halves lie in turns there
            rows = array.reshape(heads[part], 2, -1, array.shape[-1])
            array = rows.swapaxes(1, 2).reshape(array.shape)
        block = gguf.GGML_QUANT_SIZES[wanted][0]
        used = wanted if array.ndim == 2 and array.shape[1] % block == 0 else gguf.GGMLQuantizationType.F32
        stored = names.get_name(key, try_suffixes=(".weight",))
        writer.add_tensor(stored, gguf.quantize(array, used), raw_dtype=used)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
