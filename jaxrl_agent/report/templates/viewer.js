"use strict";
(() => {
  const contents = document.querySelector(".contents-fold");
  if (contents && window.matchMedia("(min-width: 72rem)").matches) contents.open = true;

  const source = document.getElementById("episodes");
  if (!source) return;
  const all = JSON.parse(source.textContent);
  const $ = (id) => document.getElementById(`viewer-${id}`);
  const root = document.getElementById("viewer");
  const GLYPHS = { left: "←", down: "↓", right: "→", up: "↑", look: "◎" };
  const MOVES = { left: [-1, 0], down: [0, 1], right: [1, 0], up: [0, -1] };
  const ENDINGS = {
    success: "reached the goal", failure: "failed", budget: "used up its turns", token_limit: "hit the token limit",
    context_limit: "filled the context", invalid: "gave an unusable reply", environment_error: "environment error",
    time_limit: "hit the time limit", could_not_check: "could not be checked",
  };
  const state = { run: "", outcome: "", stop: "", budget: "", condition: "", trajectory: 1, turn: 1 };

  const escape = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
  const unique = (values) => [...new Set(values)];
  const slotOf = (run) => {
    const button = [...$("runs").children].find((b) => b.dataset.run === run);
    return button ? button.className : "";
  };
  const round = (x, digits = 3) => (x === null || x === undefined ? "—" : Number(x.toFixed(digits)).toString().replace("-", "−"));
  const clamp = (x, low, high) => Math.min(Math.max(x, low), high);
  const turns = (n) => `${n} turn${n === 1 ? "" : "s"}`;
  const outcome = (episode) => (episode.success ? "solved" : "not solved");
  const ending = (episode) => {
    if (episode.stop === "failure" && episode.map) return "fell into a hole";
    return ENDINGS[episode.stop] || episode.stop || "ended";
  };

  const FILTERS = ["outcome", "stop", "budget", "condition"].filter((key) => $(key));
  const condition = (e) => e.condition || "of the evaluation";
  const mishap = (t) => {
    if (t.injected) return "injected, not the policy's own";
    if (t.failure) return `the environment failed: ${t.failure}`;
    if (t.action === null) return "unusable reply";
    return t.call_ok === false ? "tool error" : "";
  };

  const matches = (e) => (!state.run || e.run === state.run) && (!state.outcome || outcome(e) === state.outcome)
    && (!state.stop || e.stop === state.stop) && (!state.budget || String(e.budget) === state.budget)
    && (!state.condition || condition(e) === state.condition);
  const listed = () => all.filter(matches);

  function fill(select, values, texts) {
    select.innerHTML = ["", ...values].map((v, i) => `<option value="${escape(v)}">${escape(i ? texts[i - 1] : "all")}</option>`).join("");
  }

  // ---- the board -------------------------------------------------------------------------------------------------
  const SIDE = 56, MARGIN = 22;
  const x0 = (col) => MARGIN + col * SIDE, y0 = (row) => MARGIN + row * SIDE;

  function known(episode, turn) {
    const columns = episode.map[0].length;
    const cells = new Set(episode.turns.slice(0, turn).flatMap((t) => (t.cell === null ? [] : [t.cell])));
    const current = episode.turns[Math.min(turn, episode.turns.length) - 1];
    for (const cell of (current && current.seen) || []) cells.add(cell);
    if (turn > episode.turns.length) {
      if (episode.end !== null) cells.add(episode.end);
      if (current && current.action === "look" && current.cell !== null) {
        const row = Math.floor(current.cell / columns), col = current.cell % columns;
        for (const [dx, dy] of Object.values(MOVES)) {
          if (col + dx >= 0 && col + dx < columns && row + dy >= 0 && row + dy < episode.map.length) cells.add((row + dy) * columns + col + dx);
        }
      }
    }
    return cells;
  }

  function drawTiles(episode, turn) {
    const foggy = episode.turns.some((t) => t.seen !== null && t.seen !== undefined);
    const seen = known(episode, turn), columns = episode.map[0].length;
    const visited = new Set(episode.turns.slice(0, turn).map((t) => t.cell));
    let out = "";
    episode.map.forEach((line, row) => [...line].forEach((letter, col) => {
      const cell = row * columns + col, x = x0(col), y = y0(row), cx = x + SIDE / 2, cy = y + SIDE / 2;
      const clear = !foggy || seen.has(cell) || letter === "G" || letter === "S";
      out += `<rect x="${x}" y="${y}" width="${SIDE}" height="${SIDE}" rx="4" class="cell${visited.has(cell) ? " visited" : ""}"/>`;
      if (!clear) out += `<rect x="${x + 1}" y="${y + 1}" width="${SIDE - 2}" height="${SIDE - 2}" rx="4" class="fog"/>`;
      if (letter === "H") out += `<ellipse cx="${cx}" cy="${cy}" rx="18" ry="15" class="hole${clear ? "" : " hidden"}"/>`;
      if (letter === "S") out += `<circle cx="${cx}" cy="${cy}" r="17" class="start"/>`;
      if (letter === "G") out += `<path d="M${cx - 8} ${cy + 16}V${cy - 16}L${cx + 14} ${cy - 8}L${cx - 5} ${cy}V${cy + 16}Z" class="goal"/>`;
    }));
    for (let c = 0; c < columns; c++) out += `<text x="${x0(c) + SIDE / 2}" y="${MARGIN - 7}" text-anchor="middle" font-size="12">${"abcdefghij"[c] || c + 1}</text>`;
    episode.map.forEach((_, r) => { out += `<text x="${MARGIN - 8}" y="${y0(r) + SIDE / 2 + 4}" text-anchor="end" font-size="12">${r + 1}</text>`; });
    return out;
  }

  function drawAgent(episode, turn) {
    const columns = episode.map[0].length, over = turn > episode.turns.length;
    const centre = (cell) => [x0(cell % columns) + SIDE / 2, y0(Math.floor(cell / columns)) + SIDE / 2];
    const path = episode.turns.slice(0, turn).map((t) => t.cell);
    if (over) path.push(episode.end);
    const places = path.filter((cell) => cell !== null && cell !== undefined).map(centre);
    if (!places.length) return "";
    let out = places.length > 1 ? `<path d="M${places.map((p) => p.join(" ")).join("L")}" class="trail"/>` : "";
    if (over && (episode.end === null || episode.end === undefined)) return out;
    const [x, y] = places[places.length - 1], action = over ? null : episode.turns[turn - 1].action;
    if (action === "look") out += `<circle cx="${x}" cy="${y}" r="${SIDE * 0.62}" class="looking"/>`;
    if (MOVES[action]) {
      const [dx, dy] = MOVES[action], tx = x + dx * 37, ty = y + dy * 37;
      out += `<path d="M${x} ${y}L${tx} ${ty}M${tx - dx * 8 - dy * 7} ${ty - dy * 8 - dx * 7}L${tx} ${ty}L${tx - dx * 8 + dy * 7} ${ty - dy * 8 + dx * 7}" class="arrow"/>`;
    }
    return `${out}<circle cx="${x}" cy="${y}" r="11" class="agent"/>`;
  }

  function drawBoard(episode, turn) {
    $("body").classList.toggle("plain", !episode.map);
    if (!episode.map) { $("board").innerHTML = ""; return; }
    const width = MARGIN + episode.map[0].length * SIDE + 6, height = MARGIN + episode.map.length * SIDE + 6;
    const fog = '<defs><pattern id="fog" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><path d="M0 0V7" class="fog-line"/></pattern></defs>';
    const hidden = episode.turns.some((t) => t.seen !== null && t.seen !== undefined);
    const legend = ["○ start", "⚑ goal", "● hole", ...(hidden ? ["hatched: unknown to the agent", "dashed: a hole it has not seen"] : [])];
    $("board").innerHTML = `<svg viewBox="0 0 ${width} ${height}" role="img" aria-label="Map with the agent" class="${slotOf(episode.run)}">${fog}${drawTiles(episode, turn)}${drawAgent(episode, turn)}</svg>`
      + `<p class="board-key">${legend.map((t) => `<span>${t}</span>`).join("")}</p>`;
  }

  // ---- the text --------------------------------------------------------------------------------------------------
  function fact(name, value) { return `<div><dt>${name}</dt><dd>${escape(value)}</dd></div>`; }

  function testFacts(t) {
    if (!t || !t.tests) return [];
    const { public_passed, public_total, hidden_passed, hidden_total, statuses } = t.tests;
    const kinds = unique(statuses).filter((s) => s !== "ok").map((s) => `${s} ${statuses.filter((x) => x === s).length}`);
    return [fact("Public tests passed", `${public_passed} of ${public_total}`), fact("Hidden tests passed", `${hidden_passed} of ${hidden_total}`),
      ...(kinds.length ? [fact("Tests failed by", kinds.join(", ").replaceAll("_", " "))] : [])];
  }

  function drawTurn(episode, turn) {
    const used = episode.turns.length;
    if (turn > used) {
      $("turn").innerHTML = `<h4>End</h4><p>${escape(episode.run)} ${ending(episode)} after ${used} of ${turns(episode.budget)}.</p><dl>`
        + testFacts(episode.turns[used - 1]).join("")
        + fact("Return", round(episode.return)) + fact("Outcome", outcome(episode)) + fact("Turns unused", episode.budget - used) + "</dl>";
      return;
    }
    const t = episode.turns[turn - 1], facts = [fact(t.tests ? "Program, tests passed" : "Action", t.action === null ? "unusable reply" : t.action), fact("Reward", round(t.reward))];
    facts.push(fact("Turns left before it", episode.budget - turn + 1));
    facts.push(...testFacts(t));
    if (!t.tests && t.quality !== null && t.quality !== undefined) {
      facts.push(fact("Value of the action", round(t.quality)));
      if (t.best !== null && t.best !== undefined) facts.push(fact("Value of the best", round(t.best)), fact("Q gap: best − action", round(t.best - t.quality)));
    }
    if (t.probability !== null) facts.push(fact("Reply's probability", round(t.probability, 3)));
    if (t.llr !== null && t.llr !== undefined) facts.push(fact(`LLR, ${episode.pair} − ${episode.base}`, `${round(t.llr)} nats`));
    if (t.call_ok !== null && t.call_ok !== undefined) facts.push(fact("Tool call", t.call_ok ? "worked" : "returned an error"));
    const wrong = mishap(t);
    $("turn").innerHTML = `<h4>Turn ${turn} of ${used} used, ${episode.budget} allowed</h4>`
      + (wrong ? `<p class="mishap"><b>! Error turn:</b> ${escape(wrong)}.</p>` : "")
      + `<p class="part">The agent reads</p><pre>${escape(t.observation) || "(nothing new)"}</pre>`
      + `<p class="part">${t.injected ? "In its place was played" : "It replies"}</p><pre class="reply ${t.injected ? "foreign" : slotOf(episode.run)}">${escape(t.text) || "(empty)"}</pre><dl>${facts.join("")}</dl>`;
  }

  function drawStrip(episode, turn) {
    const buttons = episode.turns.map((t, i) => {
      const glyph = GLYPHS[t.action] || (t.action === null ? "·" : String(i + 1));
      const wrong = mishap(t), said = [t.action, wrong].filter(Boolean).join(", ");
      return `<button type="button" data-turn="${i + 1}"${wrong ? ' class="error"' : ""} aria-label="Turn ${i + 1}: ${escape(said)}"${turn === i + 1 ? ' aria-current="true"' : ""}>${glyph}${wrong ? "<sup>!</sup>" : ""}</button>`;
    });
    const end = episode.turns.length + 1;
    buttons.push(`<button type="button" data-turn="${end}" class="end ${episode.success ? "good" : "bad"}" aria-label="End: ${outcome(episode)}"${turn === end ? ' aria-current="true"' : ""}>${episode.success ? "✓" : "✕"}</button>`);
    $("strip").innerHTML = buttons.join("");
  }

  function drawTwins(episode) {
    const same = (a, b) => a.instance === b.instance && (!a.pair || !b.pair || a.pair === b.pair);
    const twins = all.filter((e) => e !== episode && same(e, episode) && (e.budget === episode.budget || e.run === episode.run));
    $("twins").innerHTML = twins.length ? `<span>Same ${episode.map ? "map" : "task"}:</span>` + twins.map((e) =>
      `<button type="button" data-episode="${all.indexOf(e)}"><b class="run ${slotOf(e.run)}">${escape(e.run)}</b> ${e.condition ? escape(e.condition) : `T=${e.budget}`} ${e.success ? "✓" : "✕"} ${turns(e.turns.length)}</button>`).join("") : "";
  }

  // ---- state -----------------------------------------------------------------------------------------------------
  function draw({ write = true } = {}) {
    const episodes = listed();
    for (const button of $("runs").children) button.setAttribute("aria-pressed", String(button.dataset.run === state.run));
    for (const key of FILTERS) $(key).value = state[key];
    state.trajectory = clamp(state.trajectory, 1, Math.max(1, episodes.length));
    $("previous").disabled = state.trajectory <= 1;
    $("next").disabled = state.trajectory >= episodes.length;
    const episode = episodes[state.trajectory - 1];
    if (!episode) {
      $("title").textContent = "No trajectory passes these filters.";
      for (const part of ["board", "turn", "strip", "twins"]) $(part).innerHTML = "";
      $("back").disabled = $("forward").disabled = true;
    } else {
      state.turn = clamp(state.turn, 1, episode.turns.length + 1);
      $("title").innerHTML = `<b class="run ${slotOf(episode.run)}">${escape(episode.run)}</b> with ${turns(episode.budget)} allowed, `
        + `${episode.map ? "map" : "task"} ${escape(episode.instance.slice(0, 24))}<span class="ended">${state.trajectory} of ${episodes.length}; ${ending(episode)} after ${turns(episode.turns.length)}</span>`
        + (episode.condition ? `<span class="condition">${escape(episode.condition)}</span>` : "");
      drawBoard(episode, state.turn); drawTurn(episode, state.turn); drawStrip(episode, state.turn); drawTwins(episode);
      $("back").disabled = state.turn <= 1;
      $("forward").disabled = state.turn > episode.turns.length;
    }
    root.dataset.state = JSON.stringify({ ...state, listed: episodes.length });
    if (write) remember();
  }

  function remember() {
    const parts = new URLSearchParams();
    for (const [key, value] of Object.entries(state)) if (value !== "") parts.set(key, value);
    try { history.replaceState(null, "", `#${parts}`); } catch { /* a framed document may have no history */ }
  }

  function recall() {
    const parts = new URLSearchParams(location.hash.slice(1));
    if (!parts.has("trajectory")) return false;
    for (const key of ["run", ...FILTERS]) state[key] = parts.get(key) || "";
    for (const key of ["trajectory", "turn"]) state[key] = Number.parseInt(parts.get(key), 10) || 1;
    return true;
  }

  function turnBy(step) { state.turn += step; draw(); }
  function trajectoryBy(step) { state.trajectory += step; state.turn = 1; draw(); }
  function filterBy(key, value) { state[key] = value; state.trajectory = 1; state.turn = 1; draw(); }

  function show(episode) {
    if (!matches(episode)) Object.assign(state, { outcome: "", stop: "", budget: "", condition: "", run: state.run && episode.run });
    state.trajectory = listed().indexOf(episode) + 1;
    state.turn = 1;
    draw();
  }

  function inView() {
    const box = root.getBoundingClientRect();
    return box.top < window.innerHeight && box.bottom > 0;
  }

  fill($("outcome"), ["solved", "not solved"], ["solved", "not solved"]);
  const stops = unique(all.map((e) => e.stop).filter(Boolean));
  fill($("stop"), stops, stops.map((s) => s.replace(/_/g, " ")));
  const budgets = unique(all.map((e) => e.budget)).sort((a, b) => a - b).map(String);
  fill($("budget"), budgets, budgets.map((b) => `${b} turns`));

  $("runs").addEventListener("click", (event) => { const b = event.target.closest("button"); if (b) filterBy("run", b.dataset.run); });
  const conditions = unique(all.map(condition));
  if ($("condition")) fill($("condition"), conditions, conditions);
  for (const key of FILTERS) $(key).addEventListener("change", (event) => filterBy(key, event.target.value));
  $("previous").addEventListener("click", () => trajectoryBy(-1));
  $("next").addEventListener("click", () => trajectoryBy(1));
  $("back").addEventListener("click", () => turnBy(-1));
  $("forward").addEventListener("click", () => turnBy(1));
  $("strip").addEventListener("click", (event) => { const b = event.target.closest("button"); if (b) { state.turn = Number(b.dataset.turn); draw(); } });
  $("twins").addEventListener("click", (event) => { const b = event.target.closest("button"); if (b) show(all[Number(b.dataset.episode)]); });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) || !inView()) return;
    const action = { ArrowLeft: () => turnBy(-1), ArrowRight: () => turnBy(1), "[": () => trajectoryBy(-1), "]": () => trajectoryBy(1) }[event.key];
    if (action) { event.preventDefault(); action(); }
  });
  window.addEventListener("hashchange", () => { if (recall()) { draw({ write: false }); root.scrollIntoView({ behavior: "instant" }); } });

  root.hidden = false;
  if (recall()) {
    draw({ write: false });
    root.scrollIntoView({ behavior: "instant" });
  } else {
    state.trajectory = Math.max(0, all.findIndex((e) => e.turns.length > 3)) + 1; // one with something to follow
    draw({ write: false });
  }
})();
