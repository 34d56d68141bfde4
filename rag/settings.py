"""Settings of ``probers-rag`` and ``probers-compare``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from probers.cli.components import Component, choice, values_of
from probers.cli.settings import Answering, Resamples, Screen, Split
from probers.options import Count, Name, Natural


@dataclass(frozen=True, kw_only=True)
class Rag(Answering):
    """Answer questions, retrieving where the trigger says so.

    One question streams to the terminal: where it fired, what was asked and fetched. Several are answered in
    batches into out/traces.jsonl and out/results.json; an interrupted run resumes with the same command.
    """

    screen = Screen(
        'probers-rag question="Who directed Polish-Russian War?" trigger=rind', "about 10 seconds",
        "question out model.name engine prober corpus k limit split max_new_tokens max_retrievals "
        "allow_overlap model.device model.dtype batch_size part seed overwrite",
    )  # fmt: skip

    question: str | None = None
    """a question in plain words; writes nothing unless out is given"""
    split: Split | None = "test"
    """split of the questions to ask; null asks all. A set without splits counts as test, but is split for
    triggers with a prober or classifier, which may have been trained on it"""
    out: Name | None = None
    """folder to write; null is runs/rag/<trigger> for several questions, and none for one"""
    trigger: Component = choice("probing")
    query: Component = choice("answer")

    @property
    def of_testbed(self) -> Sequence[str]:
        needless = {"questions"} if self.question is not None else set()
        needless |= {"corpus"} if self.trigger.target.endswith(".Never") else set()
        return [key for key in super().of_testbed if key not in needless]

    @property
    def unread(self) -> Mapping[str, str]:
        names = [] if self.question is None else ["split", *(["limit"] if self.limit is not None else [])]
        one = dict.fromkeys(names, "question= gives the question")
        return {**super().unread, **one}


@dataclass(frozen=True, kw_only=True)
class Compare(Answering):
    """Run every trigger on the same questions, with the same prompt, retriever and limits, and report who was
    right.

    Thresholds without a published value are chosen by one rule on the same validation questions.
    """

    screen = Screen(
        'probers-compare limit=20 "triggers=[never,always,rind]"', "about a minute",
        "triggers out model.name engine prober corpus k limit split validation queries vary threshold "
        "wrong max_new_tokens resamples model.device batch_size part seed overwrite",
    )  # fmt: skip

    out: Name = "runs/compare"
    """folder for the results; results.json, outcomes.jsonl, report.html, report_data.json and
    traces/<method>.jsonl"""
    limit: Count | None = 300
    """test questions, drawn by seed; null takes all. A set without splits counts as test, but is split if
    thresholds are chosen or a prober or classifier was trained"""
    split: Literal["test", "all"] = "test"
    """questions to ask: test or all; test is validation for a set without one, and all is for methods
    without a threshold to choose, such as the training data of head=adaptive"""
    validation: Count | None = 600
    """validation questions to choose thresholds on; for a set without a test split these are training
    questions"""
    triggers: list[Name] = field(
        default_factory=lambda: [
            "never", "always", "always_answer", "random", "oracle", "fixed_length", "fixed_sentence", "flare",
            "flare_mean", "entropy", "entropy_sentence", "rind_paper", "rind_released", "radio",
            "before_entity", "entity_signal", "rarity", "llm_judge", "adaptive", "probing_before", "probing",
            "probing_entropy",
        ]
    )  # fmt: skip
    """names of methods to compare; every trigger is a method by its own name"""
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: values_of("", "methods"))
    """method -> its trigger and query (names, or _target_ of your own) with trigger_options and
    query_options, and a retriever of its own with retriever_options. if_given names a key without which the
    method is left out. tune=true chooses the threshold of a prober like those of the others; otherwise the
    prober's own is taken"""
    queries: list[Name | Mapping[str, Any]] | None = None
    """queries to ask with in place of the methods' own; [question] compares only when to retrieve,
    several compare what to ask for: triggers=[never,probing] queries=[question,answer,qfs]"""
    vary: Mapping[str, Mapping[str, list[Any]]] | None = None
    """several values of an option to run a method at; of its trigger or query: {rind: {threshold: [0.6,
    0.9]}}, {probing: {bank: [FOLDER, FOLDER]}}, {radio: {query.top_n: [25, 35]}}"""
    match: Name | None = "probing"
    """method whose mean number of retrievals random gets; null leaves random at its own rate"""
    threshold: Name = "balanced_accuracy"
    """rule that chooses those thresholds; as in probers-train: balanced_accuracy, f1, accuracy,
    budget=0.4, recall_at_fpr=0.1, cost=5, or risk=0.1@0.95 (at most that share of the closed-book
    answers at which a trigger does not fire is wrong; a trigger for which that cannot be promised always
    fires)"""
    wrong: Name = "em"
    """rule by which an answer is wrong; for thresholds, AUROC, oracle and consistency: failing em, acc,
    acc_substring, match or f1>=0.8"""
    sweep: Natural = 0
    """further settings at which triggers that fire within an answer are run, for their curves, such as 4;
    each takes about as long as the method itself"""
    probers: list[Name] = field(default_factory=lambda: [])
    """several probers in place of one: folders, or folders of folders such as PROBER/sizes or
    PROBER/layers; probing becomes a method for each, named after its folder, with a table of them in
    the report"""
    token_prober: Name | None = None
    """prober of single tokens for radio; null is prober= if it is one, else the newest of this model"""
    entity_prober: Name | None = None
    """prober of pool=predicting for before_entity (entity_signal reads entropy at the same place); null
    is prober= if it is one, else the newest of this model"""
    grounding_prober: Name | None = None
    """prober of what answers take from their passages, for ungrounded"""
    prompt_prober: Name | None = None
    """prober of pool=prompt for probing_before; null is prober= if it is one, else the newest of this
    model"""
    helps_prober: Name | None = None
    """prober of label=helps for helps; null is the newest of this model"""
    helps_prompt_prober: Name | None = None
    """prober of label=helps and pool=prompt for helps_before; null is the newest of this model"""
    classifier: Name | None = None
    """classifier of questions for adaptive; null is the newest of this model"""
    examples: Natural = 10
    """questions shown with their tokens in the report, drawn by seed"""
    resamples: Resamples = 10000
    """bootstrap resamples for every interval and p-value; with few, p-values of many pairs cannot be small"""
    memory: Natural = 1024
    """megabytes of generations to keep for methods that meet the same prompt again"""
