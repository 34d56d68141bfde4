// The page: a question to the server, its answer as it comes, and the view as a link.

import { models, score, stream, useKey } from "./api.js";
import { pack, unpack } from "./link.js";
import { add, begin, scored, spans, texts, tokens } from "./recording.js";
import { Panel } from "./replay.js";
import { drawRounds } from "./rounds.js";
import { element, Inspector, number, percent, TokenText } from "./tokens.js";

const VERSION = 1;
/** Three views to begin with: of what a model may know, of what it can hardly know, and of a text by somebody else. */
const EXAMPLES = {
  testbed: [
    { name: "a question", form: "completion", prompt: "Question: Who is the director of The Distant Bridge of Dristan?\nAnswer:" },
    { name: "two steps", form: "completion", prompt: "Question: Where was the director of The Distant Bridge of Dristan born?\nAnswer:" },
    { name: "check an answer", form: "score", prompt: "Question: Who is the director of The Distant Bridge of Dristan?\nAnswer:",
      checked: " The Distant Bridge of Dristan was directed by Gila Nunfo. So the answer is Gila Nunfo." },
  ],
  others: [
    { name: "well known", form: "completion", prompt: "Jane Austen was an English novelist. She was born in" },
    { name: "hardly known", form: "completion", prompt: "Wilhelmina Drupsteen was a Dutch illustrator. She was born in" },
    { name: "check a text", form: "score", prompt: "Tell me about Jane Austen.",
      checked: "Jane Austen was born in 1775 in Steventon. She wrote Emma and Middlemarch, and died in Paris in 1850." },
  ],
};
const at = (id) => document.getElementById(id);
const inspector = new Inspector(at("inspector"));
const answer = new TokenText(at("text"), inspector, "Tokens of the answer");
let known = []; // the server's models
let recording = null;
let running = null; // AbortController of the request under way
let interrupted = false; // by a missing key: asked again once it is there

const panels = Object.entries({ A: "probing", B: "entropy" }).map(([name, trigger]) => {
  const root = at("panel").content.firstElementChild.cloneNode(true);
  at("panels").append(root);
  return new Panel(root, name, trigger, inspector, () => say(at("linked"), ""), fail);
});

function say(place, text) {
  place.textContent = text;
  place.hidden = !text && place.getAttribute("role") !== "status";
}

// The model

const model = () => known.find((each) => each.id === at("model").value);

async function learn() {
  try {
    known = await models();
  } catch (error) {
    say(at("about"), "");
    fail(error);
    return;
  }
  at("locked").hidden = true;
  at("model").replaceChildren(...known.map(({ id }) => element("option", "", id, { value: id })));
  at("models").hidden = known.length < 2;
  introduce();
}

function introduce() {
  const { id, prober, triggers, queries, chat, corpus } = model() ?? {};
  if (!id) return say(at("about"), "The server has no model.");
  const { name, pool, layers, threshold, promise } = prober ?? {};
  const made = `(${pool}, layers ${layers?.join(", ")}; threshold ${number(threshold)}${promised(promise)})`;
  const reads = prober ? `prober ${name} ${made}` : "no prober";
  say(at("about"), [`Model ${id}`, reads, corpus ? `passages ${corpus}` : "no passages"].join(" · "));
  const whole = at("bracketed").hidden = prober?.unit === "answer";
  at("bracket").textContent = whole ? "The whole text has one chance, which stands above it; that of a word is of the text up to it."
    : "A bracket is a name, date, number or sentence with a chance of its own.";
  const talks = document.querySelector("[name=form][value=chat]");
  talks.disabled = !chat;
  talks.parentElement.title = chat ? "" : "This model has no chat template.";
  if (!chat && talks.checked) document.querySelector("[name=form]").checked = true;
  const chosen = at("trigger").value;
  at("trigger").replaceChildren(...(triggers ?? []).map((name) => element("option", "", name, { value: name })));
  at("trigger").value = [chosen, "probing", triggers?.[0]].find((name) => triggers?.includes(name)) ?? "";
  const query = at("query").value;
  at("query").replaceChildren(...["", ...(queries ?? [])].map((name) => element("option", "", name || "default", { value: name })));
  at("query").value = queries?.includes(query) ? query : "";
  const able = Boolean(triggers?.length);
  at("retrieve").disabled = !able;
  at("retrieve").checked &&= able;
  say(at("no-retrieval"), able ? "" : "This server has no passages to retrieve: start it with corpus=FILE.");
  document.querySelector("[name=form][value=score]").disabled = !prober;
  for (const button of document.querySelectorAll("[data-example]")) {
    const { name, form: kind } = example(button);
    button.textContent = name;
    button.hidden = kind === "score" && !prober;
  }
  arrange();
}

const HINTS = { chat: "sent as one message of the user", score: "what the text answers or goes on from; may be empty",
  completion: "the model goes on from it" };

function arrange() {
  const kind = form();
  const checks = kind === "score";
  at("retrieval").hidden = checks || !at("retrieve").checked;
  say(at("hint"), HINTS[kind]);
  at("before").textContent = checks ? "Question or beginning" : "Text";
  at("checking").hidden = !checks;
  at("checked").required = checks;
  at("prompt").required = !checks;
  at("limits").hidden = at("switch").hidden = checks;
  if (!running) at("send").textContent = checks ? "Check" : "Ask";
}

const example = (button) => EXAMPLES[model()?.id === "testbed" ? "testbed" : "others"][Number(button.dataset.example)];

/** Fills in an example and asks it. */
function tryOut({ form: kind, prompt, checked = "" }) {
  fill({ ...request(), form: kind, prompt, checked, retrieval: null });
  ask();
}

// A question

const form = () => document.querySelector("[name=form]:checked").value;

function request() {
  const asked = { form: form(), model: at("model").value, prompt: at("prompt").value,
    max_tokens: Number(at("max-tokens").value), temperature: Number(at("temperature").value), retrieval: null };
  if (form() === "score") return { ...asked, checked: at("checked").value };
  if (at("retrieve").checked) {
    const { value: trigger } = at("trigger");
    asked.retrieval = { trigger };
    for (const name of ["query", "threshold", "k"]) {
      const { value } = at(name);
      if (value !== "") asked.retrieval[name] = name === "query" ? value : Number(value);
    }
  }
  return asked;
}

function fill({ form: kind, model: id, prompt, checked = "", max_tokens: most, temperature, retrieval }) {
  document.querySelector(`[name=form][value=${kind in HINTS ? kind : "completion"}]`).checked = true;
  at("checked").value = checked;
  if (known.some((each) => each.id === id)) at("model").value = id;
  at("prompt").value = prompt;
  at("max-tokens").value = most;
  at("temperature").value = temperature;
  at("retrieve").checked = Boolean(retrieval);
  for (const name of ["query", "threshold", "k"]) at(name).value = retrieval?.[name] ?? "";
  if (retrieval) {
    if (![...at("trigger").options].some((each) => each.value === retrieval.trigger)) {
      at("trigger").append(element("option", "", retrieval.trigger, { value: retrieval.trigger }));
    }
    at("trigger").value = retrieval.trigger;
  }
  arrange();
}

async function ask() {
  running?.abort();
  const mine = new AbortController();
  running = mine;
  const asked = request();
  recording = begin(asked);
  interrupted = false;
  say(at("failure"), "");
  show();
  write(true);
  const { form: kind, prompt, checked, retrieval, ...rest } = asked;
  const [path, question] = kind === "chat"
    ? ["v1/chat/completions", { messages: [{ role: "user", content: prompt }] }]
    : ["v1/completions", { prompt }];
  try {
    if (kind === "score") {
      const body = { model: asked.model, answer: checked, ...(prompt && { prompt }) };
      scored(recording, await score(body, mine.signal));
    } else for await (const chunk of stream(path, { ...rest, ...question, ...(retrieval && { retrieval }) }, mine.signal)) {
      if (running !== mine) return;
      update(add(recording, chunk));
    }
  } catch (error) {
    if (running !== mine) return; // another question or a link took its place
    recording.finish ??= error.name === "AbortError" ? "stopped" : "error";
    if (error.name !== "AbortError") fail(error);
  }
  if (running !== mine) return;
  running = null;
  write(false);
  show();
}

function write(on) {
  at("answer").classList.toggle("writing", on);
  at("stop").hidden = !on;
  const checks = form() === "score";
  at("send").textContent = checks ? "Check" : on ? "Ask anew" : "Ask";
  if (on) say(at("status"), checks ? "Reading …" : "Writing …");
}

function fail(error) {
  if (error instanceof TypeError) console.error(error); // ours
  say(at("failure"), error.message);
  at("failure").scrollIntoView({ block: "nearest" });
  if (error.status !== 401) return;
  interrupted = recording !== null && recording.finish === "error";
  at("locked").hidden = false;
  at("key").focus();
}

async function unlock() {
  useKey(at("key").value);
  const again = interrupted;
  say(at("failure"), "");
  await learn();
  if (!at("failure").hidden) return;
  if (again) ask();
  else panels.forEach((panel) => panel.draw());
}

// The answer

/** Draws what a chunk added. */
function update({ rounds, final }) {
  if (final) return;
  answer.append(recording.text, tokens(recording, answer.count));
  at("text").hidden = !recording.text;
  // Only the last round grows, and another may have begun.
  if (rounds) drawRounds(at("rounds"), recording.rounds, inspector, Math.max(0, at("rounds").children.length - 1));
  at("came").hidden = !recording.rounds.length;
  const last = recording.rounds.at(-1);
  const open = last?.draft && !last.written && last.discarded === null && !last.passages;
  say(at("draft"), open ? last.draft.text : "");
}

/** Draws the whole recording. */
function show() {
  answer.clear();
  answer.append(recording.text, tokens(recording), { spans: spans(recording.text, recording.whole?.spans) });
  answer.finish(recording.text);
  const ended = recording.finish !== null;
  say(at("asked"), recording.asked.prompt);
  at("text").hidden = !recording.text;
  at("legend").hidden = ended && !recording.text;
  at("draft").hidden = true;
  at("sharing").hidden = !ended || !(recording.text || recording.rounds.length);
  say(at("linked"), "");
  at("came").hidden = !recording.rounds.length;
  drawRounds(at("rounds"), recording.rounds, inspector);
  at("replay").hidden = !ended || !recording.text;
  if (ended) conclude();
}

const ENDS = { length: " The text was cut off at max tokens.", stopped: " Stopped.", error: " It was not finished." };

function conclude() {
  const { whole, offsets, finish } = recording;
  const { domain } = whole ?? {};
  const written = `${offsets.length} token${offsets.length === 1 ? "" : "s"}.`;
  at("status").classList.toggle("fires", Boolean(whole?.fires));
  const none = finish === "error" && !offsets.length;
  say(at("status"), none ? "No answer." : `${written} ${verdict(whole)}${ENDS[finish] ?? ""}`);
  say(at("unlike"), domain?.unlike ? `Unlike the training data (${far(domain)}): P(wrong) is no tested probability.` : "");
  const all = texts(recording);
  at("replayed").replaceChildren(...all.map(({ name }, i) => element("option", "", name, { value: String(i) })));
  at("which").hidden = all.length < 2;
  replayOn(0);
}

function far({ distance, limit, surprise, surprise_range: range }) {
  const states = `distance ${number(distance)}, limit ${number(limit)}`;
  if (surprise === null || surprise === undefined) return states;
  return `${states}; surprise ${number(surprise)}, at most ${number(range[1])}`;
}

function promised(promise) {
  if (!promise) return "";
  const { risk, confidence, groups } = promise;
  const most = `of what passes at most ${number(100 * risk)}% is wrong, each question or article counted once`;
  return `: ${most}, in texts like the ${groups} groups it was chosen on, ${number(100 * confidence)}% confidence`;
}

function verdict(whole) {
  if (!whole) return "The server did not say whether it is wrong.";
  if (whole.score === null) return "It has nothing that the prober judges.";
  const side = `${whole.fires ? "above" : "not above"} the threshold ${number(whole.threshold)}`;
  return `P(wrong) ${percent(whole.p_wrong)}: score ${number(whole.score)}, ${side}.`;
}

function replayOn(index, settings = []) {
  const { written } = texts(recording)[index];
  at("replayed").value = String(index);
  panels.forEach((panel, i) => panel.show(written, recording.whole?.threshold ?? 0, settings[i]));
}

// The link

async function link() {
  const settings = panels.map((panel) => panel.settings);
  const view = { version: VERSION, recording, text: Number(at("replayed").value), panels: settings };
  history.replaceState(null, "", `#${await pack(view)}`);
  const size = `${location.href.length.toLocaleString("en")} characters`;
  try {
    await navigator.clipboard.writeText(location.href);
    say(at("linked"), `Copied, ${size}; it holds question and answer, and stays with whoever has it.`);
  } catch {
    say(at("linked"), `It is in the address bar, ${size}; it holds question and answer.`);
  }
}

async function open() {
  try {
    const view = await unpack(location.hash);
    if (!view) return;
    if (view.version !== VERSION) {
      throw new Error(`The link is of version ${view.version} of this page, which reads ${VERSION}.`);
    }
    running?.abort();
    running = null;
    recording = view.recording;
    fill(recording.asked);
    write(false);
    show();
    replayOn(view.text, view.panels);
  } catch (error) {
    fail(error instanceof TypeError ? new Error("The link holds no view that can be read.") : error);
  }
}

// The theme

function theme(name) {
  document.documentElement.dataset.theme = name;
  try {
    localStorage.setItem("theme", name);
  } catch {
    // storage may be forbidden: the choice lasts as long as the page
  }
}

function remembered() {
  try {
    return localStorage.getItem("theme") ?? "";
  } catch {
    return "";
  }
}

at("theme").value = remembered();
theme(at("theme").value);
at("theme").addEventListener("change", () => theme(at("theme").value));
at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
at("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) at("ask").requestSubmit();
});
at("ask").addEventListener("change", arrange);
at("model").addEventListener("change", introduce);
at("examples").addEventListener("click", ({ target }) => target.dataset.example && tryOut(example(target)));
at("stop").addEventListener("click", () => running?.abort());
at("unlock").addEventListener("click", unlock);
at("key").addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  event.preventDefault();
  unlock();
});
at("replayed").addEventListener("change", () => replayOn(Number(at("replayed").value)));
at("link").addEventListener("click", link);
addEventListener("hashchange", open);
learn().then(open);
