#!/usr/bin/env python3
"""Runs dp-vs-ddp for a few steps and checks its output: figures add up, and the page is self-contained and shows them.
A usage error prints one line and measures nothing.

    bench/check_dp_vs_ddp.py build/release/bin
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.dom.minidom

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True  # no cache next to the sources
import comparison_words  # noqa: E402

PARTS = ["input", "forward", "backward", "slowest", "exposed", "update", "rest"]


def check_refusals(programs, out):
    (out / "file").touch()
    for bad, said in [(["/nodir"], "/nodir/dp-vs-ddp-worker is missing"),
                      ([programs, "--out", str(out / "file" / "x")], "cannot be written: Not a directory"),
                      ([programs, "--with-pytorch", "/nodir/python"], "No such file"),
                      ([programs, "--with-pytorch", "/bin/false"], "cannot import torch: status 1"),
                      ([programs, "--cores-per-device", "10000"], "cores requested"),
                      ([programs, "--net", "gpt", "--with-pytorch", "/bin/true"], "--with-pytorch has no gpt"),
                      ([programs, "--steps", "1"], "expected at least 2"), ([], "required: bin")]:
        done = subprocess.run([sys.executable, str(HERE / "dp-vs-ddp"), *bad], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=60)
        assert done.returncode == 2 and done.stdout == "" and said in done.stderr, (bad, done)
        assert done.stderr.startswith("dp-vs-ddp: ") and done.stderr.count("\n") == 1, (bad, done)


def check_verdicts():
    case, run = {"net": "cnn", "batch": 64, "devices": 2}, {"step": {"median": 1.0}}
    for low, high, repetitions, verdict in [(1.2, 1.3, 9, ": DataParallel is faster. DP reaches 1.25 times (1.20 to"),
                                            (0.7, 0.8, 3, ": DistributedDataParallel is faster."),
                                            (0.9, 1.1, 9, ": neither is faster than the other"),
                                            (1.2, 1.3, 2, ": 2 repetitions hardly show a spread; at least 3 are needed"),
                                            (1.0, 1.0, 1, ": one repetition has no spread;")]:
        figures = {"median": (low + high) / 2, "min": low, "max": high}
        words = comparison_words.faster({**case, "dp_over_ddp": figures}, run, run, repetitions)
        assert verdict in words and ("1.00 to 1.00" not in words), words


def main():
    check_verdicts()
    with tempfile.TemporaryDirectory() as out:
        check_refusals(sys.argv[1], pathlib.Path(out))
    with tempfile.TemporaryDirectory() as out:
        subprocess.run([sys.executable, str(HERE / "dp-vs-ddp"), sys.argv[1], "--net", "small", "--batch-size", "16",
                        "--devices", "1", "2", "--steps", "3", "--logged", "4", "--repetitions", "2", "--out", out],
                       check=True)
        (page,) = pathlib.Path(out).glob("*.html")
        (trace,) = pathlib.Path(out).glob("*-trace.json")
        (figures,) = set(pathlib.Path(out).glob("*.json")) - {trace}
        result, events = json.loads(figures.read_text()), json.loads(trace.read_text())["traceEvents"]
        text = page.read_text()

    assert [(run["mode"], run["devices"]) for run in result["runs"]] == [("dp", 1), ("ddp", 1), ("dp", 2), ("ddp", 2)]
    for run in result["runs"]:
        split, rate = run["split"], run["samples_per_second"]
        assert abs(sum(split[part] for part in PARTS) - split["step"]) < 1e-6 * split["step"], split
        assert split["forward"] > 0 and split["backward"] > 0 and split["overlap"] <= split["communication"] + 1e-9
        assert (split["communication"] > 0) == (run["devices"] > 1 or run["mode"] == "ddp")
        assert 0 < rate["min"] <= rate["median"] <= rate["max"]
        assert run["memory_per_device"]["min"] > 1e6 and 0 < run["startup"]["median"] < 60
        # Every figure of the table and of the chart is on the page.
        assert "<td>%.0f</td>" % rate["median"] in text and "%.2f ms</text>" % split["step"] in text
    for comparison in result["comparisons"]:
        assert "%.2f times" % comparison["dp_over_ddp"]["median"] in comparison["words"][0]

    document = xml.dom.minidom.parseString(text.split("\n", 1)[1])
    assert not re.search(r"https?://|\bsrc=|\bhref=|@import|url\(", text), "the page loads other files"
    assert "prefers-color-scheme: dark" in text and len(document.getElementsByTagName("svg")) == 5
    for rectangle in document.getElementsByTagName("rect"):
        assert float(rectangle.getAttribute("width")) >= 0 and float(rectangle.getAttribute("x")) >= 0

    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {"DP", "DDP rank 0", "DDP rank 1"}, names
    spans = [event for event in events if event["ph"] == "X"]
    assert {"forward", "backward", "communication", "update"} <= {span["cat"] for span in spans}
    assert all(span["dur"] >= 0 and span["ts"] >= 0 for span in spans)


if __name__ == "__main__":
    main()
