"use strict";
(() => {
  const WRONG = {supported: false, contradicted: true, unknown: null};
  const KEYS = {s: "supported", c: "contradicted", u: "unknown"};
  const SIGNS = {supported: "✓", contradicted: "✗", unknown: "?"};
  const holder = document.getElementById("data");
  const {texts, parts} = JSON.parse(holder.textContent);
  const place = `probers-reading-${holder.dataset.key}`;
  const cases = [...document.querySelectorAll("article.case")];
  const judged = cases.map((each) => each.dataset.verdict);
  // Number of a case -> the reader's verdict, the latest last.
  const choices = new Map();
  let current = 0;

  const tell = (text) => { document.getElementById("told").textContent = text; };

  function load() {
    try {
      for (const [number, verdict] of JSON.parse(localStorage.getItem(place)) ?? []) {
        const known = Number.isInteger(number) && cases[number] && Object.hasOwn(WRONG, verdict);
        if (known) choices.set(number, verdict);
      }
    } catch {
      tell("Earlier choices cannot be read.");
    }
  }

  function keep() {
    try {
      localStorage.setItem(place, JSON.stringify([...choices]));
    } catch {
      tell("This browser keeps no choices: save the file before you leave the page.");
    }
  }

  function stateOf(number) {
    const choice = choices.get(number);
    if (choice === undefined) return "○ not read";
    return choice === judged[number] ? "= as judged" : `≠ corrected: ${SIGNS[choice]} ${choice}`;
  }

  function show(number) {
    const choice = choices.get(number);
    cases[number].classList.toggle("read", choice !== undefined);
    cases[number].querySelector(".state").textContent = stateOf(number);
    for (const button of cases[number].querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(button.dataset.verdict === choice));
    }
  }

  function count() {
    const corrected = [...choices].filter(([number, choice]) => choice !== judged[number]).length;
    document.getElementById("counts").textContent =
      `${choices.size} of ${cases.length} read · ${choices.size - corrected} agreed · ${corrected} corrected`;
  }

  function mark(number) {
    cases[current]?.classList.remove("current");
    cases[current]?.setAttribute("tabindex", "-1");
    current = number;
    cases[current]?.classList.add("current");
    cases[current]?.setAttribute("tabindex", "0");
  }

  function go(number) {
    if (!cases.length) return;
    mark(Math.min(Math.max(number, 0), cases.length - 1));
    const each = cases[current];
    each.focus({preventScroll: true});
    each.scrollIntoView({block: each.offsetHeight < innerHeight / 2 ? "center" : "start"});
  }

  function choose(number, verdict) {
    choices.delete(number);
    if (verdict !== undefined) choices.set(number, verdict);
    tell("");
    keep();
    show(number);
    count();
  }

  function takeBack() {
    const number = choices.has(current) ? current : [...choices.keys()].pop();
    if (number === undefined) return;
    choose(number, undefined);
    go(number);
  }

  function lines() {
    const found = texts.map((text) => ({...text}));
    for (const [number, verdict] of [...choices].sort((a, b) => a[0] - b[0])) {
      const {text, kind, part} = parts[number];
      (found[text][kind] ??= []).push({...part, wrong: WRONG[verdict]});
    }
    return found.filter((text) => text.spans || text.sentences).map((text) => `${JSON.stringify(text)}\n`);
  }

  function save() {
    const link = document.createElement("a");
    if (!choices.size) {
      tell("Nothing is read yet, so there is nothing to save.");
      return;
    }
    link.href = URL.createObjectURL(new Blob(lines(), {type: "application/json"}));
    link.download = "hand.jsonl";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    tell(`Saved as hand.jsonl, with ${choices.size} of ${cases.length} cases.`);
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    // Enter presses a button or opens a fold that has the focus.
    if (event.key === "Enter" && event.target.closest("button, summary")) return;
    const verdict = event.key === "Enter" ? judged[current] : KEYS[event.key.toLowerCase()];
    if (verdict && cases.length) {
      if (!event.repeat) {  // a key that is held down is one verdict
        choose(current, verdict);
        go(current + 1);
      }
    } else if (["j", "ArrowDown"].includes(event.key)) {
      go(current + 1);
    } else if (["k", "ArrowUp"].includes(event.key)) {
      go(current - 1);
    } else if (event.key === "Backspace") {
      takeBack();
    } else if (event.key === "d") {
      save();
    } else {
      return;
    }
    event.preventDefault();
  });
  document.getElementById("save").addEventListener("click", save);
  cases.forEach((each, number) => {
    each.addEventListener("focusin", () => mark(number));
    each.addEventListener("pointerdown", () => mark(number));
    for (const button of each.querySelectorAll("button")) {
      button.addEventListener("click", () => choose(number, button.dataset.verdict));
    }
  });

  load();
  cases.forEach((_, number) => show(number));
  count();
  mark(0);
  if (choices.size) go(Math.max(0, cases.findIndex((_, number) => !choices.has(number))));
})();
