// Every `svg.flame` of the page: a click widens a frame, a search marks frames by regular expression.
(() => {
  const WIDTH = 1000, LETTER = 6.7, HAIR = 0.02;
  const fit = (f, x, width) => {
    f.rect.setAttribute("x", x); f.rect.setAttribute("width", Math.max(width, 0.4));
    const room = Math.floor((width - 6) / LETTER);
    if (!f.text && room >= 3) {
      f.text = f.g.appendChild(document.createElementNS(f.rect.namespaceURI, "text"));
      f.text.setAttribute("y", f.y + 12);
    }
    if (!f.text) return;
    f.text.setAttribute("x", x + 3);
    f.text.textContent = room < 3 ? "" : f.name.length <= room ? f.name : f.name.slice(0, room - 1) + "…";
  };
  const live = svg => {
    const frames = [...svg.querySelectorAll(".f")].map(g => {
      const rect = g.querySelector("rect"), title = g.querySelector("title").textContent;
      const n = a => Number(rect.getAttribute(a));
      return { g, rect, text: g.querySelector("text"), title, name: title.split("\n")[0], x: n("x"), w: n("width"), y: n("y") };
    });
    const said = svg.querySelector(".said"), rest = said.textContent;
    let answer = "";
    const say = text => { said.textContent = text || answer || rest; };
    const zoom = z => {
      for (const f of frames) {
        const inside = f.y <= z.y && f.x >= z.x - HAIR && f.x + f.w <= z.x + z.w + HAIR;
        const under = f.y > z.y && f.x <= z.x + HAIR && f.x + f.w >= z.x + z.w - HAIR;
        f.g.style.display = inside || under ? "" : "none";
        f.g.classList.toggle("under", under);
        if (under) fit(f, 0, WIDTH);
        else if (inside) fit(f, (f.x - z.x) * WIDTH / z.w, f.w * WIDTH / z.w);
      }
    };
    const whole = () => zoom({ x: 0, w: WIDTH, y: Infinity });
    const search = wanted => {
      let pattern = null;
      try { pattern = wanted ? new RegExp(wanted, "i") : null; } catch { answer = "not a regular expression"; return say(); }
      const hits = frames.filter(f => {
        const hit = pattern !== null && pattern.test(f.name);
        f.g.classList.toggle("hit", hit);
        return hit;
      });
      // a frame inside another hit is counted with it
      let end = 0, width = 0;
      for (const f of hits.sort((a, b) => a.x - b.x || b.w - a.w)) {
        if (f.x + f.w > end + HAIR) { width += f.x + f.w - Math.max(end, f.x); end = f.x + f.w; }
      }
      answer = pattern ? `${(width * 100 / WIDTH).toFixed(2)} % of samples pass through ${hits.length} boxes named like that` : "";
      say();
    };
    for (const f of frames) {
      f.g.addEventListener("click", () => zoom(f));
      f.g.addEventListener("mouseenter", () => say(f.title.replace("\n", ": ").replaceAll("\n", ", ")));
      f.g.addEventListener("mouseleave", () => say());
    }
    const tools = [svg.querySelector(".whole"), svg.querySelector(".search")];
    if (!document.body) {
      tools[0].addEventListener("click", whole);
      tools[1].addEventListener("click", () => search(prompt("a name or regular expression", "") || ""));
      return;
    }
    tools.forEach(t => t.remove());
    const bar = document.createElement("div"), input = document.createElement("input"), back = document.createElement("a");
    bar.className = "flame-tools"; back.href = "#"; back.textContent = "whole graph";
    input.type = "search"; input.placeholder = "search frames (regular expression)"; input.ariaLabel = input.placeholder;
    input.addEventListener("input", () => search(input.value));
    back.addEventListener("click", e => { e.preventDefault(); whole(); });
    bar.append(input, back); svg.before(bar);
  };
  document.querySelectorAll("svg.flame").forEach(live);
})();
