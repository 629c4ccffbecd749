#!/usr/bin/env python3
"""Reads event files of bin/dump_event_log with TensorBoard's reader, and compares histograms with those of
torch.utils.tensorboard.

Needs the Python packages torch, tensorboard and pillow; not part of the normal tests.
usage: check_event_log.py BUILD_DIR [LOG_DIR]     (BUILD_DIR contains bin/dump_event_log; the log is kept in LOG_DIR)
"""

import io
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import numpy
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard.summary import make_histogram


def check(what, good):
    print("%-60s %s" % (what, "ok" if good else "WRONG"))
    return 0 if good else 1


def torch_bins():
    limits = []
    limit = 1e-12
    while limit < 1e20:
        limits.append(limit)
        limit *= 1.1
    return [-limit for limit in reversed(limits)] + [0] + limits


def main():
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    with tempfile.TemporaryDirectory() as temporary:
        place = pathlib.Path(sys.argv[2] if len(sys.argv) == 3 else temporary)
        program = pathlib.Path(sys.argv[1]) / "bin" / "dump_event_log"
        values = json.loads(subprocess.run([program, place], capture_output=True, text=True, check=True).stdout)
        found = EventAccumulator(str(place), size_guidance={"images": 0, "scalars": 0, "histograms": 0, "tensors": 0})
        found.Reload()
        tags = found.Tags()
        for kind in ("scalars", "images", "histograms", "tensors"):
            print("%s: %s" % (kind, ", ".join(tags[kind])))
        wrong = check("scalars", tags["scalars"] == ["loss", "epoch", "weights/not_finite"])
        losses = [(event.step, event.value) for event in found.Scalars("loss")]
        wrong += check("losses, once for each repeated step",
                       losses == [(step, numpy.float32(1 / (step + 1))) for step in range(30)])
        wrong += check("images", sorted(tags["images"]) == ["mask", "picture"])
        for tag, pixels in (("picture", values["picture"]), ("mask", values["mask"])):
            event = found.Images(tag)[0]
            image = Image.open(io.BytesIO(event.encoded_image_string))
            image.load()
            wrong += check("%s: %s %s" % (tag, image.mode, image.size),
                           (event.width, event.height) == image.size and list(image.tobytes()) == pixels)
        for tag, finite in values["histograms"].items():
            wanted = make_histogram(numpy.array(finite), torch_bins())
            got = found.Histograms(tag)[0].histogram_value
            same = (list(got.bucket_limit) == list(wanted.bucket_limit) and list(got.bucket) == list(wanted.bucket)
                    and all(math.isclose(getattr(got, name), getattr(wanted, name), rel_tol=1e-12)
                            for name in ("min", "max", "num", "sum", "sum_squares")))
            wrong += check("histogram %s: %d buckets" % (tag, len(got.bucket)), same)
        text = found.Tensors("configuration")[0].tensor_proto.string_val[0].decode()
        wrong += check("text", text == values["text"])
        plugin = found.SummaryMetadata("configuration").plugin_data.plugin_name
        wrong += check("plugin %s" % plugin, plugin == "text")
    raise SystemExit(wrong > 0)


if __name__ == "__main__":
    main()
