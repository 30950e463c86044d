// The fleet's canvas: where each GPU lies, and one pass that fills all of them.

const NODE_COLUMNS = 4;
const LABEL = 16;
const LARGE = [56, 40, 28];
const SIZES = [14, 12, 10, 8, 7, 6, 5, 4, 3, 2];
const TALLEST = 660, TALLEST_LARGE = 330;
const NAMED_WIDTH = 150;
const BETWEEN = 12;
const SHADES = 48;
const LEAST = 0.25;
const SMALL = 4;

/** What stands above a node that is drawn large. */
function nodeLabel(map, node) {
  const ranks = map.ranks[node], [first, last] = [ranks[0], ranks.at(-1)];
  return ranks.length ? `${map.nodes[node]}, ${first === last ? `rank ${first}` : `ranks ${first} to ${last}`}` : map.nodes[node];
}

/** Places of all cells: nodes as small blocks, in rows, below the name of their group; few are large and have names. */
export function layOut(map, cells, width) {
  for (const size of LARGE) {
    const placed = place(map, cells, width, size);
    if (placed.height <= TALLEST_LARGE) return placed;
  }
  for (const size of SIZES) {
    const placed = place(map, cells, width, size);
    if (placed.height <= TALLEST || size === SIZES.at(-1)) return placed;
  }
}

function place(map, cells, width, size) {
  const step = size > 3 ? size + 1 : size, gap = Math.max(2, Math.round(size / 2)), named = map.groups.length > 1;
  const aboveNode = size >= LARGE.at(-1) ? LABEL : 0;
  const xs = new Float32Array(cells.count), ys = new Float32Array(cells.count), labels = [];
  let left = 0, top = 0, tall = 0, node = 0, cell = 0, above = null;
  const newLine = () => { left = 0; top += tall + (tall ? BETWEEN : 0); tall = 0; };
  for (const group of map.groups) {
    const cellsWide = Math.min(NODE_COLUMNS, Math.max(...map.cells.slice(node, node + group.nodes))) * step + gap;
    const widest = aboveNode ? Math.max(cellsWide, NAMED_WIDTH) : cellsWide;
    const across = named ? Math.max(1, Math.min(Math.round(Math.sqrt(group.nodes / 2)), Math.floor(width / widest))) : Math.max(1, Math.floor(width / widest));
    if (named && group.above !== above) {
      newLine();
      above = group.above;
      if (above) { labels.push({ x: 0, y: top + LABEL - 4, text: above, strong: true }); top += LABEL; }
    }
    if (left > 0 && left + across * widest > width) newLine();
    if (named) labels.push({ x: left, y: top + LABEL - 5, text: group.name, width: across * widest });
    let y = top + (named ? LABEL : 0), row = 0;
    for (let at = 0; at < group.nodes; at += 1, node += 1) {
      if (at && at % across === 0) { y += row + gap; row = 0; }
      const x = left + (at % across) * widest, count = map.cells[node];
      if (aboveNode) labels.push({ x, y: y + LABEL - 5, text: nodeLabel(map, node), width: widest - gap });
      for (let local = 0; local < count; local += 1, cell += 1) { xs[cell] = x + (local % NODE_COLUMNS) * step; ys[cell] = y + aboveNode + Math.floor(local / NODE_COLUMNS) * step; }
      row = Math.max(row, aboveNode + Math.ceil(count / NODE_COLUMNS) * step);
    }
    tall = Math.max(tall, y + row - top);
    left += across * widest + BETWEEN;
  }
  const y = top + tall + 2;
  return {
    xs, ys, size, step, labels, width, height: Math.ceil(y), count: cells.count,
    at(left, top) {
      for (let index = 0; index < cells.count; index += 1) {
        if (left >= xs[index] && left < xs[index] + step && top >= ys[index] && top < ys[index] + step) return index;
      }
      return null;
    },
  };
}

function mixed(low, high, count) {
  const parse = text => { const digits = parseInt(text.slice(1), 16); return [digits >> 16, (digits >> 8) & 255, digits & 255]; };
  const [from, to] = [parse(low), parse(high)];
  return Array.from({ length: count }, (_, at) => `rgb(${from.map((part, index) => Math.round(part + (to[index] - part) * at / (count - 1))).join(" ")})`);
}

function shadesOf({ categories, better, colour }) {
  if (categories) return ["hover", "second", "bad", "text"].map(colour);
  return mixed(colour("hover"), colour(better === "more" ? "accent" : "second"), SHADES);
}

/** Cells of which nothing is known: outlines, or dots where they are small. */
function outline(drawing, places, size, colour) {
  if (size <= SMALL) {
    drawing.fillStyle = colour("mixed");
    const at = Math.floor(size / 2);
    for (const [x, y] of places) drawing.fillRect(x + at, y + at, 1, 1);
    return;
  }
  drawing.strokeStyle = colour("mixed");
  drawing.lineWidth = 1;
  drawing.beginPath();
  for (const [x, y] of places) drawing.rect(x + .5, y + .5, Math.max(size - 1, 1), Math.max(size - 1, 1));
  drawing.stroke();
}

/** A few unknown cells for the legend, as the map draws them. */
export function drawUnknown(canvas, placed, colour) {
  const ratio = devicePixelRatio || 1, across = Math.max(1, Math.floor(14 / placed.step)), size = Math.min(placed.size, 14), long = across > 1 ? across * placed.step : size;
  canvas.width = canvas.height = Math.round(long * ratio);
  canvas.style.width = canvas.style.height = `${long}px`;
  const drawing = canvas.getContext("2d");
  drawing.setTransform(ratio, 0, 0, ratio, 0, 0);
  outline(drawing, Array.from({ length: across * across }, (_, at) => [(at % across) * placed.step, Math.floor(at / across) * placed.step]), size, colour);
}

/**
 * Fill all cells, shade by shade, so that the colour changes few times; outlines or dots where nothing is known. With
 * `root`, shades follow the square root and whatever is not nothing is seen. Small cells that are strong, or of a
 * category but the first, are drawn a pixel larger.
 */
export function drawCells(canvas, placed, values, options) {
  const began = performance.now();
  const { low, high, categories, root, colour } = options, ratio = devicePixelRatio || 1;
  canvas.width = Math.round(placed.width * ratio);
  canvas.height = Math.round(placed.height * ratio);
  canvas.style.width = `${placed.width}px`;
  canvas.style.height = `${placed.height}px`;
  const drawing = canvas.getContext("2d");
  drawing.setTransform(ratio, 0, 0, ratio, 0, 0);
  const shades = shadesOf(options), last = shades.length - 1, span = high - low || 1;
  const part = value => !root ? (value - low) / span : value > low ? LEAST + (1 - LEAST) * Math.sqrt((value - low) / span) : 0;
  const shade = value => categories ? Math.min(value, last) : Math.max(0, Math.min(last, Math.round(last * part(value))));
  const buckets = Array.from({ length: shades.length + 1 }, () => []);
  for (let cell = 0; cell < placed.count; cell += 1) buckets[values[cell] === null ? shades.length : shade(values[cell])].push(cell);
  const { xs, ys, size } = placed;
  buckets.forEach((bucket, at) => {
    if (!bucket.length) return;
    if (at < shades.length) {
      drawing.fillStyle = shades[at];
      const more = size <= SMALL && (categories ? at > 0 : root && 2 * at > last) ? 1 : 0;
      for (const cell of bucket) drawing.fillRect(xs[cell] - more, ys[cell] - more, size + 2 * more, size + 2 * more);
    } else outline(drawing, bucket.map(cell => [xs[cell], ys[cell]]), size, colour);
  });
  drawing.font = "11px system-ui, sans-serif";
  for (const label of placed.labels) {
    drawing.fillStyle = colour(label.strong ? "text" : "quiet");
    drawing.fillText(label.text, label.x, label.y, label.width);
  }
  canvas.dataset.milliseconds = (performance.now() - began).toFixed(2);
  return { of: value => shades[shade(value)] };
}

/** The cell that an arrow key leads to; null where it leads nowhere. */
export function neighbour(placed, cell, key) {
  const { xs, ys, count } = placed;
  if (key === "Home") return 0;
  if (key === "End") return count - 1;
  if (!["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"].includes(key)) return null;
  if (cell === undefined || cell === null || cell >= count) return 0;
  if (key === "ArrowLeft") return Math.max(cell - 1, 0);
  if (key === "ArrowRight") return Math.min(cell + 1, count - 1);
  const down = key === "ArrowDown" ? 1 : -1;
  let best = null, least = Infinity;
  for (let other = 0; other < count; other += 1) {
    const dy = down * (ys[other] - ys[cell]);
    if (dy <= 0) continue;
    const distance = 8 * dy + Math.abs(xs[other] - xs[cell]);
    if (distance < least) { least = distance; best = other; }
  }
  return best;
}
