// Draws the charts of the page: numbers come from the JSON beside it, colours from the style sheet.
// Names are only ever set as text, never as HTML.
(() => {
  "use strict";
  const { charts, moments } = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const reset = document.getElementById("reset");
  const plots = new Map();
  const TIMES = [["s", 1e9], ["ms", 1e6], ["µs", 1e3], ["ns", 1]];
  const BYTES = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]];
  const POWERS = Array.from({ length: 50 }, (_, power) => 2 ** power);
  const CLOCK = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200];
  const SECONDS = [...[-4, -3, -2, -1].flatMap(power => [1, 2, 5].map(part => part * 10 ** power)), ...CLOCK, ...[1, 2, 5, 10, 20, 50].map(days => days * 86400)];
  const PAPER_WIDTH = 690;
  const STRIPES = ["epoch"];
  const KINDS = { validation: "--c-backward", checkpoint: "--c-optimizer", mark: "--c-own7", restart: "--red", warning: "--amber" };
  let zoom = null;
  let onPaper = false;

  const css = name => getComputedStyle(root).getPropertyValue(name).trim();
  const color = name => css(`--c-${name}`);
  const faint = (hex, share) => hex + Math.round(share * 255).toString(16).padStart(2, "0");
  const figures = value => {
    const size = Math.abs(value);
    if (!size) return "0";
    if (size < 9.995) return value.toPrecision(3);
    return size < 99.95 ? value.toFixed(1) : Math.round(value).toLocaleString("en");
  };
  const scaled = (value, units) => {
    const [name, size] = units.find(([, size]) => Math.abs(value) >= size * 0.9995) || units.at(-1);
    return `${figures(value / size)} ${name}`;
  };
  const written = (value, unit) => {
    if (value == null) return "–";
    if (unit === "ns") return scaled(value, TIMES);
    if (unit === "By") return scaled(value, BYTES);
    if (unit === "1") return `${figures(100 * value)} %`;
    const name = { W: " W", Cel: " °C" }[unit] || "";
    return (name ? figures(value) : Number(value.toPrecision(6)).toString()) + name;
  };
  const ticks = (values, unit) => {
    const units = { ns: TIMES, By: BYTES }[unit];
    if (unit === "1") return values.map(value => `${Number((100 * value).toPrecision(6))} %`);
    const [name, size] = units
      ? units.find(([, size]) => Math.max(...values) >= size) || units.at(-1)
      : [{ W: "W", Cel: "°C" }[unit] || "", 1];
    return values.map(value => `${Number((value / size).toPrecision(6))} ${name}`);
  };
  const since = at => {
    if (at < 60) return `${Number(at.toFixed(3))} s`;
    const [h, m, s] = [Math.floor(at / 3600), Math.floor(at / 60) % 60, Math.floor(at % 60)];
    const two = value => String(value).padStart(2, "0");
    if (h) return `${h}:${two(m)}${s ? `:${two(s)}` : ""} h`;
    return s ? `${m}:${two(s)} min` : `${m} min`;
  };
  const made = (tag, kind, text) => {
    const node = document.createElement(tag);
    if (kind) node.className = kind;
    if (text != null) node.textContent = text;
    return node;
  };

  // What uPlot gets: a line for each mean, and for a band two more without a stroke around it.
  function series(chart) {
    const data = [chart.x], lines = [{}], bands = [];
    if (chart.kind === "stack") {
      let below = chart.x.map(() => 0);
      for (const one of chart.series) {
        below = below.map((sum, at) => sum + one.mean[at]);
        const paint = color(one.color);
        data.push(below);
        lines.push({ stroke: paint, fill: faint(paint, 0.82), width: 1, points: { show: false } });
        if (data.length > 2) bands.push({ series: [data.length - 1, data.length - 2] });
      }
      return { data, lines, bands };
    }
    for (const one of chart.series) {
      const paint = color(one.color);
      if (one.low) {
        const quiet = { stroke: "transparent", width: 0, points: { show: false }, spanGaps: true };
        data.push(one.high, one.low);
        lines.push(quiet, { ...quiet });
        bands.push({ series: [data.length - 2, data.length - 1], fill: faint(paint, 0.22) });
      }
      data.push(one.mean);
      const few = one.mean.filter(value => value != null).length < 40;
      lines.push({ stroke: paint, width: 1.5, spanGaps: true, points: { show: few, size: 5, fill: paint } });
    }
    return { data, lines, bands };
  }

  // Epochs as stripes behind the lines, all else that happened as lines from top to bottom.
  function drawMoments(plot) {
    const { ctx, bbox } = plot;
    const scale = window.devicePixelRatio || 1;
    const at = time => Math.min(bbox.left + bbox.width, Math.max(bbox.left, plot.valToPos(time, "x", true)));
    ctx.save();
    ctx.font = `${11 * scale}px system-ui, sans-serif`;
    ctx.textBaseline = "bottom";
    let stripes = 0, free = 0, marked = 0;
    for (const [kind, name, begin, lasted] of moments) {
      const left = at(begin), right = at(begin + lasted);
      if (right <= bbox.left || left >= bbox.left + bbox.width) { stripes += STRIPES.includes(kind); continue; }
      if (STRIPES.includes(kind)) {
        ctx.fillStyle = css("--shade");
        if (stripes++ % 2 === 0) ctx.fillRect(left, bbox.top, right - left, bbox.height);
        const text = right - left > ctx.measureText(name).width + 8 * scale ? name : name.split(" ").at(-1);
        if (left >= free && left + ctx.measureText(text).width <= bbox.left + bbox.width) {
          ctx.fillStyle = css("--soft");
          ctx.fillText(text, left, bbox.top - 3 * scale);
          free = left + ctx.measureText(text).width + 10 * scale;
        }
        continue;
      }
      const paint = css(KINDS[kind]);
      ctx.fillStyle = faint(paint, 0.18);
      ctx.fillRect(left, bbox.top, right - left, bbox.height);
      ctx.fillStyle = faint(paint, 0.75);
      ctx.fillRect(left, bbox.top, scale, bbox.height);
      if (kind !== "mark") continue;
      // Below the line of the epochs, where there is room behind the mark before.
      const past = left + ctx.measureText(name).width + 8 * scale;
      if (left < marked || past > bbox.left + bbox.width) continue;
      ctx.fillStyle = paint;
      ctx.fillText(name, left + 4 * scale, bbox.top + 14 * scale);
      marked = past;
    }
    ctx.restore();
  }

  function showTip(plot, chart, tip) {
    const { left, top, idx } = plot.cursor;
    tip.hidden = idx == null || left < 0;
    if (tip.hidden) return;
    tip.replaceChildren(made("div", "head", [chart.labels[idx], since(chart.x[idx])].filter(Boolean).join(" · ")));
    const row = (paint, name, value) => {
      const line = made("div", "row"), key = made("span");
      if (paint) key.appendChild(made("i")).style.background = paint;
      key.append(name);
      line.append(key, made("span", "", value));
      tip.appendChild(line);
    };
    for (const one of [...chart.series].reverse()) {
      if (one.mean[idx] == null) continue;
      const hasBand = one.low && one.low[idx] !== one.high[idx];
      if (hasBand) row("", chart.unit === "ns" ? "longest" : "largest", written(one.high[idx], chart.unit));
      row(color(one.color), hasBand ? `${one.name}, mean` : one.name, written(one.mean[idx], chart.unit));
      if (hasBand) row("", chart.unit === "ns" ? "shortest" : "smallest", written(one.low[idx], chart.unit));
    }
    const reach = (plot.scales.x.max - plot.scales.x.min) / plot.bbox.width * 6;
    // What happened nearer to this point than to its neighbours.
    const halfway = other => (chart.x[idx] + (chart.x[other] ?? chart.x[idx])) / 2;
    const from = halfway(idx - 1) - reach, until = halfway(idx + 1) + reach;
    for (const [kind, name, begin, lasted] of moments) {
      if (begin <= until && begin + lasted >= from) row("", kind === "epoch" ? name : kind, kind === "epoch" ? "" : name);
    }
    const room = plot.over.clientWidth, wide = tip.offsetWidth;
    tip.style.left = `${plot.over.offsetLeft + (left + wide + 24 > room ? Math.max(0, left - wide - 14) : left + 14)}px`;
    tip.style.top = `${Math.max(0, top - 20)}px`;
  }

  const mixed = (low, high, share) => low.map((part, at) => Math.round(part + (high[at] - part) * share));
  const parts = hex => [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16));

  // One cell for each rank and piece of the run: the colour reaches from the shortest mean to the longest.
  function drawMap(figure, chart) {
    const place = figure.querySelector(".plot"), legend = figure.querySelector(".legend");
    figure.classList.add("map");
    const canvas = made("canvas"), tip = made("div", "tip");
    canvas.width = chart.x.length;
    canvas.height = chart.rows.length;
    canvas.style.height = `${Math.max(3, Math.min(22, Math.floor(320 / chart.rows.length))) * chart.rows.length}px`;
    const known = chart.mean.flat().filter(value => value != null).sort((one, other) => one - other);
    // The longest hundredth has the last colour: one step that hung would leave all others alike.
    const least = known[0], most = known[Math.floor(0.99 * (known.length - 1))];
    const ramp = ["--map-0", "--map-1", "--map-2"].map(name => parts(css(name)));
    const shade = value => {
      const share = most > least ? Math.min(1, (value - least) / (most - least)) : 0;
      return share < 0.5 ? mixed(ramp[0], ramp[1], 2 * share) : mixed(ramp[1], ramp[2], 2 * share - 1);
    };
    const ctx = canvas.getContext("2d"), image = ctx.createImageData(canvas.width, canvas.height);
    chart.mean.flat().forEach((value, at) => {
      if (value != null) image.data.set([...shade(value), 255], 4 * at);
    });
    ctx.putImageData(image, 0, 0);
    tip.hidden = true;
    canvas.addEventListener("mousemove", event => {
      const column = Math.min(chart.x.length - 1, Math.floor(event.offsetX / canvas.clientWidth * chart.x.length));
      const row = Math.min(chart.rows.length - 1, Math.floor(event.offsetY / canvas.clientHeight * chart.rows.length));
      tip.replaceChildren(
        made("div", "head", chart.rows[row]),
        made("div", "", `${chart.labels[column]}: ${written(chart.mean[row][column], chart.unit)}`),
      );
      tip.hidden = false;
      tip.style.left = `${Math.max(0, Math.min(event.offsetX + 14, canvas.clientWidth - tip.offsetWidth))}px`;
      tip.style.top = `${event.offsetY + 16}px`;
    });
    canvas.addEventListener("mouseleave", () => { tip.hidden = true; });
    place.replaceChildren(canvas, tip);
    const scale = made("i", "scale");
    scale.style.background = `linear-gradient(90deg,${["--map-0", "--map-1", "--map-2"].map(css).join()})`;
    legend.replaceChildren(`top row: ${chart.rows[0]} · ${written(least, chart.unit)}`, scale, `≥ ${written(most, chart.unit)}`);
    plots.set(figure.dataset.chart, { canvas, chart });
  }

  function range(chart) {
    const first = chart.x[0], last = chart.x.at(-1);
    return first === last ? [first - 0.5, last + 0.5] : [first, last];
  }

  function setZoom(next) {
    zoom = next;
    if (reset) reset.hidden = !zoom;
    for (const { plot, chart } of plots.values()) {
      if (!plot) continue;
      const [min, max] = zoom || range(chart);
      plot.setScale("x", { min, max });
    }
  }

  function draw(figure) {
    const id = figure.dataset.chart, chart = charts[id];
    if (chart.kind === "map") { drawMap(figure, chart); return; }
    const place = figure.querySelector(".plot"), legend = figure.querySelector(".legend");
    plots.get(id)?.plot.destroy();
    place.replaceChildren();
    const { data, lines, bands } = series(chart);
    const [min, max] = zoom || range(chart);
    const tip = made("div", "tip");
    tip.hidden = true;
    const half = figure.parentElement.classList.contains("pair") ? 2 : 1;
    const axis = { stroke: css("--soft"), grid: { stroke: css("--grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const plot = new uPlot({
      width: onPaper ? Math.floor(PAPER_WIDTH / half - 20 * (half - 1)) : Math.max(200, place.clientWidth),
      height: figure.classList.contains("tall") ? 250 : 170,
      series: lines,
      bands,
      padding: [18, 26, 0, 0],
      legend: { show: false },
      scales: {
        x: { time: false, min, max },
        y: { range: (_, low, high) => {
          if (low == null) return [0, 1];
          const floor = chart.unit === "" ? low - (high - low || Math.abs(high) || 1) * 0.06 : 0;
          return [floor, chart.unit === "1" && high <= 1 ? 1.02 : high + (high - floor || 1) * 0.08];
        } },
      },
      axes: [
        { ...axis, size: 30, values: (_, values) => values.map(since), space: 80, incrs: SECONDS },
        { ...axis, size: 74, values: (_, values) => ticks(values, chart.unit), space: 34, ...(chart.unit === "By" && { incrs: POWERS }) },
      ],
      cursor: { sync: { key: "time", scales: ["x", null] }, drag: { x: true, y: false, setScale: false }, points: { size: 6 } },
      hooks: {
        drawClear: [drawMoments],
        setCursor: [plot => showTip(plot, chart, tip)],
        setSelect: [plot => {
          const { left, width } = plot.select;
          if (width > 4) setZoom([plot.posToVal(left, "x"), plot.posToVal(left + width, "x")]);
          plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        }],
      },
    }, data, place);
    plot.over.addEventListener("dblclick", () => setZoom(null));
    place.appendChild(tip);
    plots.set(id, { plot, chart });
    legend.replaceChildren();
    const entry = (paint, name, kind) => {
      const key = made("span");
      key.appendChild(made("i", kind)).style.background = paint;
      key.append(name);
      legend.appendChild(key);
    };
    if (chart.series.length > 1 || chart.series[0].name.startsWith("mean of")) for (const one of chart.series) entry(color(one.color), one.name);
    if (id === "steps") {
      for (const kind of Object.keys(KINDS)) {
        if (moments.some(moment => moment[0] === kind)) entry(css(KINDS[kind]), kind, "mark");
      }
    }
  }

  // A picture of one chart: its title, what its colours mean, and the chart as it is shown now.
  function picture(figure) {
    const { plot, canvas } = plots.get(figure.dataset.chart);
    const drawn = plot ? plot.ctx.canvas : canvas;
    const scale = plot ? devicePixelRatio || 1 : 1;
    const width = plot ? drawn.width : 1200, height = plot ? drawn.height : Math.max(120, 12 * drawn.height);
    const sheet = made("canvas"), head = 34 * scale, foot = 30 * scale;
    sheet.width = width + 16 * scale;
    sheet.height = height + head + foot;
    const ctx = sheet.getContext("2d");
    ctx.fillStyle = css("--card");
    ctx.fillRect(0, 0, sheet.width, sheet.height);
    ctx.fillStyle = css("--ink");
    ctx.font = `600 ${15 * scale}px system-ui, sans-serif`;
    ctx.fillText(`${document.querySelector("h1").textContent} · ${figure.querySelector("b").textContent}`, 8 * scale, 22 * scale);
    ctx.imageSmoothingEnabled = false;
    ctx.drawImage(drawn, 8 * scale, head, width, height);
    ctx.font = `${12 * scale}px system-ui, sans-serif`;
    let at = 8 * scale;
    for (const key of figure.querySelectorAll(".legend > span")) {
      ctx.fillStyle = key.firstChild.style.background;
      ctx.fillRect(at, head + height + 10 * scale, 10 * scale, 10 * scale);
      ctx.fillStyle = css("--soft");
      ctx.fillText(key.textContent, at + 15 * scale, head + height + 19 * scale);
      at += 30 * scale + ctx.measureText(key.textContent).width;
    }
    return sheet;
  }

  document.querySelectorAll("[data-chart]").forEach(figure => {
    const button = made("button", "save", "PNG");
    button.type = "button";
    button.title = "Save this chart as a PNG file";
    button.addEventListener("click", () => picture(figure).toBlob(blob => {
      const link = made("a");
      link.href = URL.createObjectURL(blob);
      link.download = `${figure.dataset.chart}.png`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    }));
    figure.prepend(button);
  });
  const drawAll = () => document.querySelectorAll("[data-chart]").forEach(draw);
  const setPaper = paper => {
    onPaper = paper;
    if (paper) root.dataset.paper = ""; else delete root.dataset.paper;
    drawAll();
  };
  drawAll();
  reset?.addEventListener("click", () => setZoom(null));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  addEventListener("beforeprint", () => setPaper(true));
  addEventListener("afterprint", () => setPaper(false));
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width && !onPaper) { width = innerWidth; drawAll(); }
  });
  root.dataset.charts = String(plots.size);
  window.otelMlperf = { plots, charts };
})();
