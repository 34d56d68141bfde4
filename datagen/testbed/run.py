"""The command ``probers-testbed``: train the testbed's language model and measure what it knows."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from probers.files import write_text
from probers.parts import plain
from probers.runs import RunFolder, canonical_json
from probers.testbed.world import World, WorldConfig

from .curriculum import Curriculum


def run(cfg: DictConfig) -> Path:
    """Train (unless ``evaluate`` names a model) and evaluate; returns the model's folder."""
    if cfg.evaluate is not None:
        folder = Path(cfg.evaluate)
        _evaluate(cfg, folder)
        return folder
    run_folder = RunFolder(Path(cfg.out), "testbed", plain(cfg))
    if not run_folder.begin(overwrite=cfg.overwrite, what="model"):
        return Path(cfg.out) / "model"
    folder = run_folder.path / "model"
    if not (folder / "testbed.json").exists():  # written last: training is done
        _train(cfg, folder)
    figures = _evaluate(cfg, folder)
    run_folder.finish({"model": str(folder), "figures": figures})
    print(f"next: probers-datagen --source cot model={folder}")
    return folder


def _train(cfg: DictConfig, folder: Path) -> None:
    import torch
    from tqdm import tqdm
    from transformers.utils import logging

    from .recipe import Recipe, train_model
    from .tokenizer import train_tokenizer

    logging.disable_progress_bar()
    if cfg.threads:
        torch.set_num_threads(cfg.threads)
    world = World.generate(_dataclass(WorldConfig, cfg.world))
    recipe = _dataclass(Recipe, cfg.recipe)
    tokenizer = train_tokenizer(world, vocab_size=recipe.vocab_size)
    with tqdm(total=recipe.tokens, unit="tok", unit_scale=True, desc="train", mininterval=5) as bar:

        def show(state: dict[str, float]) -> None:
            bar.set_postfix_str(f"loss {state['loss']:.3f}", refresh=False)
            bar.update(int(state["tokens"]) - bar.n)

        model = train_model(
            world, recipe, _dataclass(Curriculum, cfg.curriculum), tokenizer, device=cfg.device, report=show
        )
    folder.mkdir(parents=True, exist_ok=True)
    model.config._attn_implementation = "sdpa"
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    record = {"world": asdict(world.config), "recipe": asdict(recipe)}
    write_text(folder / "testbed.json", canonical_json(record))
    print(f"wrote the model to {folder}")


def _evaluate(cfg: DictConfig, folder: Path) -> dict[str, Any]:
    from hydra.utils import instantiate

    from probers.lm import CausalLM
    from probers.testbed.assets import load_corpus, load_world

    from .evaluate import evaluate

    world = load_world(folder)
    lm = CausalLM.from_pretrained(str(folder), dtype="float32", device=cfg.device)
    retriever = instantiate(cfg.retriever, load_corpus(world))
    figures = evaluate(lm, world, retriever=retriever, questions=cfg.questions, seed=cfg.seed)
    print(json.dumps(figures, indent=1))
    return figures


def _dataclass(kind: Any, node: DictConfig) -> Any:
    """A frozen dataclass from a config node, with lists as tuples."""
    values: dict[str, Any] = OmegaConf.to_container(node, resolve=True)  # type: ignore[assignment]
    return kind(**{k: _tuples(v) for k, v in values.items()})


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(value.items())
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
