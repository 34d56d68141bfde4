"""The testbed's tokenizer: byte-level BPE trained on throwaway worlds only.

Neither known nor unknown names are seen, so the number of tokens of a name says
nothing about whether the model was taught it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from probers.testbed.world import World, WorldConfig

from .curriculum import KINDS, Curriculum, DocumentStream

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

EOS = "<|endoftext|>"
PAD = "<|pad|>"


def train_tokenizer(world: World, *, vocab_size: int = 1536) -> PreTrainedTokenizerFast:
    """A fast tokenizer with ``EOS`` and ``PAD`` and no beginning-of-text token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    sizes = (("person", 1500), ("town", 750), ("company", 750), ("film", 600), ("river", 200))
    config = WorldConfig(seed=world.config.seed + 20_000_000, known=sizes)
    stream = DocumentStream(
        World.generate(config, taken=set(world.names)),
        Curriculum(recall_share=0.0),
        seed=world.config.seed,
    )
    documents = (stream.draw(kind) for kind in KINDS for _ in range(6000))
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        (d.context + d.target for d in documents),
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
