"""The page of dp-vs-ddp (self-contained HTML, dark if the reader's system is) and its trace."""
import html

from comparison_words import OF_PART, SHORT

KINDS = ["input", "forward", "backward", "communication", "update", "commit"]
PART_CLASS = {"slowest": "slowest", "exposed": "communication"}
STYLE = """
:root { --ground: #fcfcfa; --text: #1d2327; --faint: #69737c; --line: #d9dde0; --panel: #f2f3f1;
  --dp: #1f6fb4; --ddp: #d0721b; --torch: #8a8f94;
  --input: #9aa5ad; --forward: #3f8fd0; --backward: #1c4f86; --communication: #e07b1f; --slowest: #c73e3e;
  --update: #3d9a5f; --commit: #8e6bbf; --rest: #c9ced2; }
@media (prefers-color-scheme: dark) { :root { --ground: #15191c; --text: #e4e7e9; --faint: #98a3ab; --line: #363d43;
  --panel: #1e2428; --dp: #5aa9e6; --ddp: #f2a154; --torch: #8f979d;
  --input: #77838c; --forward: #5fb0ee; --backward: #4a7fbd; --communication: #f0a04b; --slowest: #ee6c6c;
  --update: #62c088; --commit: #b497e0; --rest: #4a535a; } }
* { box-sizing: border-box; }
body { background: var(--ground); color: var(--text); font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto;
  max-width: 62rem; padding: 0 1rem; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.2rem; margin-top: 2.4rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .3rem; }
p.faint, .faint { color: var(--faint); font-size: .875rem; }
.words { background: var(--panel); border-left: 4px solid var(--dp); padding: .6rem 1rem; margin: 1rem 0; }
.words p { margin: .35rem 0; } .words summary { font-weight: 600; cursor: pointer; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { white-space: normal; vertical-align: bottom; } th:first-child, td:first-child { text-align: left; }
svg { display: block; width: 100%; height: auto; min-width: 36rem; }
svg text { fill: var(--text); font: 12px system-ui, sans-serif; } svg text.faint { fill: var(--faint); }
svg .axis { stroke: var(--line); stroke-width: 1; } svg .whisker { stroke: var(--text); stroke-width: 1.2; }
svg polyline { fill: none; stroke-width: 2.5; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; font-size: .875rem; margin: .4rem 0; }
.legend i { display: inline-block; width: .85rem; height: .85rem; border-radius: 2px; margin-right: .35rem;
  vertical-align: -1px; }
"""
COLOURS = ["dp", "ddp", "torch"] + KINDS + ["slowest", "rest"]
CLASSES = "".join(".f-%s { fill: var(--%s); } .s-%s { stroke: var(--%s); } .b-%s { background: var(--%s); }\n" %
                  ((name,) * 6) for name in COLOURS)


def text(x, y, words, anchor="start", kind=""):
    return '<text x="%.1f" y="%.1f" text-anchor="%s"%s>%s</text>' % (
        x, y, anchor, ' class="%s"' % kind if kind else "", html.escape(words))


def bar(x, y, width, height, colour, title):
    return '<rect x="%.2f" y="%.2f" width="%.2f" height="%.2f" class="f-%s"><title>%s</title></rect>' % (
        x, y, max(width, 0), height, colour, html.escape(title))


def svg(width, height, parts, label):
    return '<div class="scroll"><svg viewBox="0 0 %d %d" role="img" aria-label="%s">%s</svg></div>' % (
        width, height, html.escape(label, quote=True), "".join(parts))


def legend(entries):
    return '<div class="legend">%s</div>' % "".join(
        '<span><i class="b-%s"></i>%s</span>' % (colour, html.escape(name)) for colour, name in entries)


def ceiling(value):
    """A round number at or above `value`, and the step of its ticks."""
    step = 10.0 ** -6
    while step * 10 < value:
        step *= 10
    for factor in (0.2, 0.25, 0.5, 1, 2, 2.5):
        for ticks in (4, 5):
            if step * factor * ticks >= value:
                return step * factor * ticks, step * factor


def figure_text(value):
    return "%g" % round(value, 6)


def case_name(case):
    return "%s, %d rows, %d %s" % (case["net"], case["batch"], case["devices"],
                                   "device" if case["devices"] == 1 else "devices")


def ways_of(result):
    """(name of the case, [(colour, name, rates)]) for every case."""
    for run in result["runs"]:
        if run["mode"] != "dp":
            continue
        alike = [other for other in result["runs"] if case_name(other) == case_name(run)]
        ways = [(other["mode"], SHORT[other["mode"]], other["samples_per_second"]) for other in alike]
        for theirs in result["pytorch"]:
            if case_name(theirs) == case_name(run):
                ways.append(("torch", "PyTorch " + theirs["best"], theirs["ways"][theirs["best"]]["samples_per_second"]))
        yield run, ways


def throughput(result):
    cases = list(ways_of(result))
    top, step = ceiling(max(rates["max"] for _, ways in cases for _, _, rates in ways))
    left, width, row = 170, 620, 22
    parts, y = [], 8
    begin = y
    for case, ways in cases:
        parts.append(text(left - 10, y + row * len(ways) / 2 + 4, case_name(case), "end"))
        for colour, name, rates in ways:
            scale = width / top
            parts.append(bar(left, y + 3, rates["median"] * scale, row - 6, colour, "%s: %.0f samples/s (%.0f to %.0f)" % (
                name, rates["median"], rates["min"], rates["max"])))
            parts.append('<line class="whisker" x1="%.2f" y1="%.1f" x2="%.2f" y2="%.1f"/>' % (
                left + rates["min"] * scale, y + row / 2, left + rates["max"] * scale, y + row / 2))
            parts.append(text(left + rates["max"] * scale + 6, y + row / 2 + 4, "%.0f" % rates["median"]))
            y += row
        y += 12
    grid = []
    for tick in range(int(round(top / step)) + 1):
        x = left + tick * step * width / top
        grid.append('<line class="axis" x1="%.1f" y1="%d" x2="%.1f" y2="%d"/>' % (x, begin, x, y))
        grid.append(text(x, y + 16, figure_text(tick * step), "middle", "faint"))
    return svg(left + width + 70, y + 24, grid + parts, "samples per second")


def scaling(result):
    counts = sorted({run["devices"] for run in result["runs"]})
    if len(counts) < 2:
        return '<p class="faint">Only one number of devices was measured.</p>'
    groups = sorted({(run["net"], run["batch"]) for run in result["runs"]})
    cell, high, columns = 280, 170, 3
    parts = []
    for number, (net, batch) in enumerate(groups):
        x0, y0 = 60 + number % columns * cell, 30 + number // columns * (high + 70)
        lines = [(colour, name, case["devices"], rates["median"]) for case, ways in ways_of(result)
                 if (case["net"], case["batch"]) == (net, batch) for colour, name, rates in ways]
        top, step = ceiling(max(rate for *_, rate in lines))
        parts.append(text(x0, y0 - 12, "%s, %d rows" % (net, batch)))
        for tick in range(int(round(top / step)) + 1):
            y = y0 + high - tick * step / top * high
            parts.append('<line class="axis" x1="%d" y1="%.1f" x2="%d" y2="%.1f"/>' % (x0, y, x0 + cell - 80, y))
            parts.append(text(x0 - 6, y + 4, figure_text(tick * step), "end", "faint"))
        place = {count: x0 + 15 + i * (cell - 110) / (len(counts) - 1) for i, count in enumerate(counts)}
        for count in counts:
            parts.append(text(place[count], y0 + high + 18, str(count), "middle", "faint"))
        for colour in ("dp", "ddp", "torch"):
            points = [(place[count], y0 + high - rate / top * high, name, rate)
                      for other, name, count, rate in lines if other == colour]
            parts.append('<polyline class="s-%s" points="%s"/>' % (
                colour, " ".join("%.1f,%.1f" % point[:2] for point in points)))
            for x, y, name, rate in points:
                parts.append('<circle class="f-%s" cx="%.1f" cy="%.1f" r="4"><title>%s: %.0f samples/s</title></circle>' %
                             (colour, x, y, html.escape(name), rate))
    rows = (len(groups) + columns - 1) // columns
    return svg(40 + columns * cell, 20 + rows * (high + 70), parts, "samples per second over devices")


def split(result):
    top, step = ceiling(max(run["split"]["step"] for run in result["runs"]))
    left, width, row = 210, 600, 24
    parts, y = [], 8
    for run in result["runs"]:
        x = left
        parts.append(text(left - 10, y + row / 2 + 4, "%s, %s" % (case_name(run), SHORT[run["mode"]]), "end"))
        for part in OF_PART:
            length = run["split"][part] * width / top
            parts.append(bar(x, y + 3, length, row - 6, PART_CLASS.get(part, part),
                             "%s: %.3f ms" % (OF_PART[part], run["split"][part])))
            x += length
        parts.append(text(x + 6, y + row / 2 + 4, "%.2f ms" % run["split"]["step"]))
        y += row + (10 if run["mode"] == "ddp" else 0)
    grid = []
    for tick in range(int(round(top / step)) + 1):
        x = left + tick * step * width / top
        grid.append('<line class="axis" x1="%.1f" y1="8" x2="%.1f" y2="%d"/>' % (x, x, y))
        grid.append(text(x, y + 16, figure_text(tick * step) + " ms", "middle", "faint"))
    return svg(left + width + 80, y + 24, grid + parts, "split of a step")


def shown_timelines(result):
    """The runs on most devices of the first network and batch."""
    first = result["runs"][0]
    most = max(run["devices"] for run in result["runs"])
    return [run for run in result["runs"]
            if (run["net"], run["batch"], run["devices"]) == (first["net"], first["batch"], most)]


def streams_of(run):
    """(name, spans) of every stream of a run's logged step, from 0 ms."""
    start = min(span["begin"] for rank in run["timeline"] for span in rank["spans"])
    rows = {}
    for rank in run["timeline"]:
        for span in rank["spans"]:
            name = span["stream"] if run["mode"] == "dp" else "rank %d, %s" % (rank["rank"], span["stream"])
            rows.setdefault((rank["rank"], name), []).append(
                {**span, "begin": span["begin"] - start, "end": span["end"] - start})
    return [(name, spans) for (_, name), spans in sorted(rows.items())]


def timeline(run, longest):
    left, width, row = 190, 640, 20
    top, step = ceiling(longest)
    parts, y = [], 6
    for name, spans in streams_of(run):
        parts.append(text(left - 10, y + row / 2 + 4, name, "end"))
        for span in spans:
            x = left + span["begin"] * width / top
            parts.append(bar(x, y + 2, max((span["end"] - span["begin"]) * width / top, 0.4), row - 4, span["kind"],
                             "%s, %s: %.3f to %.3f ms" % (span["kind"], span["name"], span["begin"], span["end"])))
        y += row
    grid = []
    for tick in range(int(round(top / step)) + 1):
        x = left + tick * step * width / top
        grid.append('<line class="axis" x1="%.1f" y1="6" x2="%.1f" y2="%d"/>' % (x, x, y))
        grid.append(text(x, y + 16, figure_text(tick * step) + " ms", "middle", "faint"))
    return svg(left + width + 40, y + 24, grid + parts, "streams of one step of " + SHORT[run["mode"]])


def table(head, rows):
    lines = ["<tr>%s</tr>" % "".join("<th>%s</th>" % html.escape(name) for name in head)]
    lines += ["<tr>%s</tr>" % "".join("<td>%s</td>" % html.escape(cell) for cell in row) for row in rows]
    return '<div class="scroll"><table>%s</table></div>' % "".join(lines)


def figures_table(result):
    rows = []
    for run in result["runs"]:
        rate = run["samples_per_second"]
        rows.append((case_name(run) + ", " + SHORT[run["mode"]], rate, run["memory_per_device"]["median"],
                     run["startup"]["median"], "%.3f" % run["host_input_wait"]))
    for case in result["pytorch"]:
        for way, figures in case["ways"].items():
            startup = figures["startup"]["median"] if figures["startup"] else None
            rows.append((case_name(case) + ", PyTorch " + way, figures["samples_per_second"],
                         figures["memory"]["median"] / case["devices"], startup, ""))
    return table(["", "samples/s", "min", "max", "MB per device", "first step after s",
                  "host waits for batches, ms per step"],
                 [(name, "%.0f" % rate["median"], "%.0f" % rate["min"], "%.0f" % rate["max"], "%.0f" % (memory / 1e6),
                   "" if startup is None else "%.2f" % startup, wait) for name, rate, memory, startup, wait in rows])


def split_table(result):
    parts = list(OF_PART) + ["communication", "overlap", "updating"]
    names = [OF_PART[part] for part in OF_PART]
    names += ["total communication", "communication that overlaps with backward", "total updating"]
    return table(["ms per step", "step"] + names,
                 [[case_name(run) + ", " + SHORT[run["mode"]], "%.2f" % run["split"]["step"]] +
                  ["%.2f" % run["split"][part] for part in parts] for run in result["runs"]])


def page(result):
    shown = shown_timelines(result)
    longest = max(span["end"] for run in shown for _, spans in streams_of(run) for span in spans)
    body = ["<h1>DataParallel and DistributedDataParallel on one machine</h1>",
            '<p class="faint">%s</p>' % html.escape("%s, %d cores; %s; %s; %d repetitions of %d steps; DDP over %s" % (
                result["cpu"], result["cores"], result["system"], result["date"], result["repetitions"],
                result["steps"], result["backend"]))]
    for comparison in result["comparisons"]:
        first, *others = (html.escape(words) for words in comparison["words"])
        body.append('<details class="words"%s><summary>%s</summary>%s</details>' % (
            ' open="open"' if len(result["comparisons"]) <= 4 else "", first, "".join("<p>%s</p>" % w for w in others)))
    modes = [("dp", "DP: one process"), ("ddp", "DDP: a process for each device")]
    modes += [("torch", "PyTorch, best setting")] if result["pytorch"] else []
    body += ["<h2>Throughput</h2>", legend(modes), throughput(result),
             '<p class="faint">Samples per second: median, smallest and largest of all repetitions.</p>',
             figures_table(result), "<h2>Scaling over devices</h2>", legend(modes), scaling(result),
             "<h2>Parts of a step</h2>",
             legend([(PART_CLASS.get(part, part), name) for part, name in OF_PART.items()]), split(result),
             split_table(result), "<h2>One step, stream by stream</h2>",
             legend([(kind, kind) for kind in KINDS])]
    for run in shown:
        body += ["<h3>%s</h3>" % html.escape(SHORT[run["mode"]] + ": " + case_name(run)), timeline(run, longest)]
    body += ['<p class="faint">The step of median length of the repetition of median length. Point at a bar for its '
             "name and times; the trace file shows the same in ui.perfetto.dev.</p>", "<h2>How to read this</h2>"]
    body += ["<p>%s</p>" % html.escape(caveat) for caveat in result["caveats"]]
    body.append('<p class="faint">%s</p>' % html.escape(", ".join("%s %s" % pair for pair in result["versions"].items())))
    return ('<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
            '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
            '<meta name="color-scheme" content="light dark"/><title>DP and DDP</title><style>%s%s</style></head>'
            "<body>%s</body></html>\n" % (STYLE, CLASSES, "\n".join(body)))


def trace(result):
    """Chrome's trace format: a process for each rank of each mode, a thread for each stream."""
    events, process = [], 0
    for run in shown_timelines(result):
        start = min(span["begin"] for rank in run["timeline"] for span in rank["spans"])
        for rank in run["timeline"]:
            process += 1
            name = SHORT[run["mode"]] + (" rank %d" % rank["rank"] if run["mode"] == "ddp" else "")
            events.append({"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}})
            streams = {}
            for span in rank["spans"]:
                if span["stream"] not in streams:
                    streams[span["stream"]] = len(streams) + 1
                    events.append({"ph": "M", "name": "thread_name", "pid": process, "tid": streams[span["stream"]],
                                   "args": {"name": span["stream"]}})
                events.append({"ph": "X", "name": span["name"], "cat": span["kind"], "pid": process,
                               "tid": streams[span["stream"]], "ts": 1000 * (span["begin"] - start),
                               "dur": 1000 * (span["end"] - span["begin"])})
    return {"displayTimeUnit": "ms", "traceEvents": events}
