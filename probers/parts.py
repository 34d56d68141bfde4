"""The one table of parts: triggers, queries, heads, retrievers, question sets, formats, judges, launchers.

A part is one file and one line here, and a trigger to compare one in configs/methods.yaml. Names of the
command line, choices in messages, ``--help``, the reference of commands, exports of packages and lazy imports
all come from this table. It holds dotted paths below ``probers``, so that reading it imports no part.
"""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

from .types import lazily

#: Group -> name that users type -> class or function, in the module where it is defined.
PARTS: dict[str, dict[str, str]] = {
    "trigger": {
        "adaptive": "rag.triggers.rules.Adaptive",
        "always": "rag.triggers.rules.Always",
        "before_entity": "rag.triggers.entities.BeforeEntity",
        "entity_signal": "rag.triggers.entities.EntitySignal",
        "dtr": "rag.triggers.uncertainty.DTR",
        "eigenscore": "rag.triggers.sampled.Eigenscore",
        "entropy": "rag.triggers.uncertainty.Entropy",
        "etc": "rag.triggers.uncertainty.ETC",
        "helps": "rag.triggers.helps.Helps",
        "helps_before": "rag.triggers.helps.HelpsBefore",
        "fixed_length": "rag.triggers.rules.FixedLength",
        "fixed_sentence": "rag.triggers.rules.FixedSentence",
        "flare": "rag.triggers.uncertainty.Flare",
        "lexical_similarity": "rag.triggers.sampled.LexicalSimilarity",
        "llm_judge": "rag.triggers.rules.LlmJudge",
        "never": "rag.triggers.rules.Never",
        "oracle": "rag.triggers.rules.Oracle",
        "p_true": "rag.triggers.sampled.PTrue",
        "probing": "rag.triggers.probing.Probing",
        "probing_before": "rag.triggers.probing.ProbingBefore",
        "radio": "rag.triggers.probing.Radio",
        "random": "rag.triggers.rules.Random",
        "rarity": "rag.triggers.entities.Rarity",
        "rind": "rag.triggers.uncertainty.Rind",
        "self_consistency": "rag.triggers.sampled.SelfConsistency",
        "semantic_entropy": "rag.triggers.sampled.SemanticEntropy",
        "ungrounded": "rag.triggers.grounding.Ungrounded",
        "verbalised": "rag.triggers.sampled.Verbalised",
    },
    "query": {
        "answer": "rag.queries.text.AnswerQuery",
        "cioqf": "rag.queries.attention.CIOQF",
        "dtr": "rag.queries.text.DTRQuery",
        "etc": "rag.queries.attention.ETCQuery",
        "flare": "rag.queries.text.FlareQuery",
        "full_context": "rag.queries.text.FullContextQuery",
        "last_sentence": "rag.queries.text.LastSentenceQuery",
        "last_tokens": "rag.queries.text.LastTokensQuery",
        "qfs": "rag.queries.attention.QFS",
        "question": "rag.queries.text.QuestionQuery",
        "seakr": "rag.queries.text.SeakrQuery",
    },
    "head": {
        "probing_rag": "heads.single.ProbingRagHead",
        "linear": "heads.single.LinearHead",
        "radio": "heads.single.RadioHead",
        "mind": "heads.single.MindHead",
        "mean_difference": "heads.single.MeanDifferenceHead",
        "attention_pool": "heads.single.AttentionPoolHead",
        "concat": "heads.layers.ConcatHead",
        "mix": "heads.layers.MixHead",
        "layer_attention": "heads.layers.LayerAttentionHead",
        "sequence": "heads.layers.SequenceHead",
        "stacked": "train.methods.stacking.Stack",
        "lora": "train.methods.adapted.Lora",
        "adaptive": "train.methods.questions.Words",
        "own": "",  # the user gives the class
    },
    "retriever": {
        "bm25": "rag.retrievers.bm25.BM25",
        "dense": "rag.retrievers.dense.Dense",
        "elasticsearch": "rag.retrievers.elasticsearch.Elasticsearch",
        "opensearch": "rag.retrievers.elasticsearch.Elasticsearch",
        "rank_bm25": "rag.retrievers.lexical.RankBM25",
    },
    "questions": {
        "testbed": "data.questions.jsonl.Testbed",
        "hotpotqa": "data.questions.multihop.HotpotQA",
        "2wikimultihopqa": "data.questions.multihop.TwoWikiMultihopQA",
        "nq": "data.questions.factoid.NaturalQuestions",
        "triviaqa": "data.questions.factoid.TriviaQA",
        "musique": "data.questions.multihop.MuSiQue",
        "strategyqa": "data.questions.multihop.StrategyQA",
        "iirc": "data.questions.multihop.IIRC",
        "squad": "data.questions.factoid.SQuAD",
        "popqa": "data.questions.factoid.PopQA",
        "webquestions": "data.questions.factoid.WebQuestions",
        "bamboogle": "data.questions.factoid.Bamboogle",
        "simpleqa": "data.questions.factoid.SimpleQA",
        "msmarco": "data.questions.retrieval.MSMARCO",
        "beir": "data.questions.retrieval.BEIR",
        "ramdocs": "data.questions.retrieval.RAMDocs",
        "adarague": "data.questions.retrieval.AdaRAGUE",
        "completion": "data.questions.completion.Completion",
        "file": "data.questions.jsonl.JSONL",
    },
    "format": {  # of labelled texts; "auto" takes the first whose fields a record has
        "raglens": "data.texts.support.raglens",
        "summedits": "data.texts.support.summedits",
        "faithdial": "data.texts.support.faithdial",
        "faithbench": "data.texts.support.faithbench",
        "tofueval": "data.texts.support.tofueval",
        "wice": "data.texts.support.wice",
        "qags": "data.texts.support.qags",
        "ragtruth": "data.texts.formats.ragtruth",
        "lettucedetect": "data.texts.formats.lettucedetect",
        "hallucination_probes": "data.texts.formats.hallucination_probes",
        "halueval": "data.texts.formats.halueval",
        "shroom": "data.texts.formats.shroom",
        "helm": "data.texts.formats.helm",
        "factscore": "data.texts.formats.factscore",
        "truthfulqa": "data.texts.formats.truthfulqa",
        "statements": "data.texts.formats.statements",
        "adarague": "data.texts.formats.adarague",
        "jsonl": "data.texts.formats.jsonl",
    },
    "judge": {
        "article": "datagen.judges.article.ArticleJudge",
        "grounding": "datagen.judges.grounding.GroundingJudge",
        "hand": "datagen.judges.base.HandJudge",
        "majority": "datagen.judges.base.MajorityJudge",
        "openai": "datagen.judges.openai.OpenAIJudge",
    },
    "prompt": {"testbed": "prompts.PromptTemplate"},
    "launch": {
        "ray": "cli.launch.Ray",
        "submitit": "cli.launch.Submitit",
    },
}  # fmt: skip
#: Packages that export their parts; configurations name a class of theirs without its module.
DOORS = ("heads", "rag.queries", "rag.retrievers", "rag.triggers")


def target_of(group: str, name: str) -> str:
    """Return the dotted path of a part in configurations; "" if the user must give it."""
    path = PARTS[group][name]
    module, _, attribute = path.rpartition(".")
    package = module.rpartition(".")[0]
    path = f"{package}.{attribute}" if package in DOORS else path
    return f"probers.{path}" if path else ""


def load_part(group: str, name: str) -> Any:
    """Import a part."""
    return resolve_name(f"probers.{PARTS[group][name]}")


def exports(package: str) -> dict[str, str]:
    """Map the names of the parts that a package of :data:`DOORS` exports to their modules."""
    below = f"{package.removeprefix('probers.')}."
    paths = (path.rpartition(".") for named in PARTS.values() for path in named.values())
    return {name: f"probers.{module}" for module, _, name in paths if module.startswith(below)}


def exporting(package: str, **more: str) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a package that exports its parts, and ``more`` names with their modules."""

    def get(name: str) -> Any:
        module = (exports(package) | more).get(name, "").removeprefix(f"{package}.")
        return lazily(package, {module: name} if module else {})(name)

    return get
