#!/usr/bin/env python3
"""Compares images read and scaled by Lockstep with Pillow, and rows of a SegmentationFolder with the preprocessing of the
U-Net program for PyTorch (milesial/Pytorch-UNet, utils/data_loading.py).

Needs the Python packages Pillow and numpy; not part of the normal tests.
usage: check_images.py BUILD_DIR         (that contains bin/dump_images)
       check_images.py --record FILE     (writes tests/fixtures/recorded_images.h)
"""

import pathlib
import struct
import subprocess
import sys
import tempfile
import zlib

import numpy as np
from PIL import Image

PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))  # the passes of Adam7
FILTERS = {"nearest": Image.NEAREST, "bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC}


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(samples, bits, colour_type, interlaced=False, before=b""):
    """A PNG file of samples (height, width, channels), in formats that Pillow cannot write."""
    height, width, _ = samples.shape

    def lines(part):
        for line in part:
            if bits == 16:
                yield b"\0" + line.astype(">u2").tobytes()
            else:
                ones = np.unpackbits(line.reshape(-1, 1).astype(np.uint8), axis=1)[:, 8 - bits:]
                yield b"\0" + np.packbits(ones.reshape(-1)).tobytes()

    parts = [samples]
    if interlaced:
        parts = [samples[y::down, x::right] for x, y, right, down in PASSES]
    data = b"".join(line for part in parts if part.size for line in lines(part))
    header = struct.pack(">IIBBBBB", width, height, bits, colour_type, 0, 0, interlaced)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + before + chunk(b"IDAT", zlib.compress(data)) +
            chunk(b"IEND", b""))


def picture(height, width, channels, seed):
    """Waves, edges and noise."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    planes = []
    for c in range(channels):
        wave = 127 + 90 * np.sin(x / (3 + c) + seed) * np.cos(y / (4 - c / 2))
        planes.append(wave + 60 * ((x // 5 + y // 4 + c) % 2) + random.normal(0, 25, (height, width)))
    return np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8)


def palette_image(height, width, colours, seed):
    random = np.random.default_rng(seed)
    image = Image.fromarray(random.integers(0, colours, (height, width), dtype=np.uint8), "P")
    image.putpalette(random.integers(0, 256, 3 * colours, dtype=np.uint8).tobytes())
    return image


def write_files(folder, height, width):
    """Writes a file of every supported kind; returns their paths."""
    rgb, rgba, grey, grey_alpha = (picture(height, width, n, n) for n in (3, 4, 1, 2))
    wide = np.random.default_rng(5).integers(0, 65536, (height, width, 3))
    few = np.random.default_rng(6).integers(0, 256, (height, width, 1))
    pillow = {mode: Image.fromarray(array if array.shape[2] > 1 else array[..., 0], mode)
              for mode, array in (("RGB", rgb), ("RGBA", rgba), ("L", grey), ("LA", grey_alpha))}
    pillow["RGB"].save(folder / "rgb.jpg", quality=90)
    pillow["RGB"].save(folder / "full.jpg", quality=95, subsampling=0)
    pillow["RGB"].save(folder / "progressive.jpg", quality=60, progressive=True)
    pillow["L"].save(folder / "grey.jpg")
    for mode, image in pillow.items():
        image.save(folder / (mode + ".png"))
    palette_image(height, width, 200, 7).save(folder / "palette.png")
    palette_image(height, width, 5, 8).save(folder / "few.png", transparency=1)
    palette_image(height, width, 200, 9).save(folder / "palette.gif")
    palette_image(height, width, 2, 10).save(folder / "two.gif", interlace=0)
    pillow["L"].save(folder / "levels.gif")  # Pillow omits unused greys
    if height * width >= 256:
        ramp = np.resize(np.arange(256, dtype=np.uint8), (height, width))
        Image.fromarray(ramp, "L").save(folder / "ramp.gif")
    frames = [palette_image(height, width, 30, seed) for seed in (11, 12)]
    frames[0].save(folder / "moving.gif", save_all=True, append_images=frames[1:])
    colours = chunk(b"PLTE", bytes(range(48)))
    for bits in (1, 2, 4, 8):
        for interlaced in (False, True):
            name = "%d%s.png" % (bits, "i" if interlaced else "")
            folder.joinpath("grey" + name).write_bytes(png(few % 2**bits, bits, 0, interlaced))
            folder.joinpath("index" + name).write_bytes(png(few % min(2**bits, 16), bits, 3, interlaced, colours))
    for colour_type, channels in ((0, 1), (2, 3), (4, 2), (6, 4)):
        samples = np.concatenate([wide, wide[..., :1]], -1)[..., :channels]
        folder.joinpath("wide%d.png" % channels).write_bytes(png(samples, 16, colour_type, colour_type == 2))
    folder.joinpath("i2.png").write_bytes(png(rgb, 8, 2, True))
    folder.joinpath("key.png").write_bytes(png(rgb, 8, 2, False, chunk(b"tRNS", bytes(6))))
    return sorted(folder.iterdir())


MODES = {"1": "grey", "L": "grey", "I;16": "grey", "LA": "grey with alpha", "RGB": "RGB", "RGBA": "RGBA",
         "P": "palette"}


def loaded(path):
    """The image with the levels that Lockstep promises: 1 bit scaled to 8, the upper 8 of 16 bits of grey."""
    image = Image.open(path)
    image.load()
    if image.mode == "1":
        return image.convert("L")
    if path.name == "wide2.png":  # Pillow makes three equal colours of 16 bits of grey with alpha
        return image.convert("LA")
    if image.mode.startswith("I"):
        return Image.fromarray((np.asarray(image).astype(np.int64) >> 8).astype(np.uint8), "L")
    return image


def difference(image, answer):
    mode, height, width, levels = answer.split(":")
    got = np.frombuffer(bytes.fromhex(levels), np.uint8).astype(int)
    wanted = np.asarray(image).astype(int)
    assert (mode, int(height), int(width)) == (MODES[image.mode], image.height, image.width), answer[:60]
    return np.abs(got - wanted.reshape(-1)).max()


def check_reading_and_scaling(ask, folder):
    wrong = 0
    folder.mkdir()
    paths = write_files(folder, 37, 53)
    for path in paths:
        wrong += report("read " + path.name, difference(loaded(path), ask("read %s" % path)[0]), 0)
    sizes = ((18, 26), (37, 20), (9, 53), (11, 7), (1, 1), (74, 106), (50, 61), (200, 3))
    for name in ("grey.jpg", "rgb.jpg", "LA.png", "RGBA.png", "palette.png", "palette.gif", "wide3.png"):
        for filter_name, filter_of in FILTERS.items():
            worst = 0
            for height, width in sizes:
                image = loaded(folder / name).resize((width, height), filter_of)
                answer = ask("resize %s %d %d %s" % (folder / name, height, width, filter_name))[0]
                worst = max(worst, difference(image, answer))
            wrong += report("resize %s %s" % (name, filter_name), worst, 1)
    return wrong


def unique_values(mask):
    values = np.asarray(mask)
    return np.unique(values) if values.ndim == 2 else np.unique(values.reshape(-1, values.shape[-1]), axis=0)


def preprocess(mask_values, image, scale, is_mask):
    size = int(scale * image.size[0]), int(scale * image.size[1])
    array = np.asarray(image.resize(size, resample=Image.NEAREST if is_mask else Image.BICUBIC))
    if is_mask:
        classes = np.zeros((size[1], size[0]), dtype=np.int64)
        for i, value in enumerate(mask_values):
            classes[array == value if array.ndim == 2 else (array == value).all(-1)] = i
        return classes
    array = array[np.newaxis] if array.ndim == 2 else array.transpose((2, 0, 1))
    return array / 255.0 if (array > 1).any() else array


def check_folders(ask, folder):
    wrong = 0
    kinds = {"grey": ("L", 1, "L", ".png"), "colour": ("RGB", 3, "RGB", ".png"), "alpha": ("RGBA", 4, "RGBA", ".png"),
             "index": ("RGB", 3, "P", ".gif"), "black-and-white": ("RGB", 3, "1", ".png")}
    for kind, (mode, channels, mask_mode, extension) in kinds.items():
        images, masks = folder / kind / "imgs", folder / kind / "masks"
        images.mkdir(parents=True)
        masks.mkdir()
        for i in range(3):
            levels = picture(31, 42, channels, i)
            Image.fromarray(levels if channels > 1 else levels[..., 0], mode).save(images / ("car_%d.png" % i))
            index = np.random.default_rng(i).integers(0, 2 if mask_mode == "1" else 3, (31, 42)).astype(np.uint8)
            if mask_mode == "P":
                mask = palette_image(31, 42, 3, i)
            elif mask_mode == "1":
                mask = Image.fromarray(index * 255, "L").convert("1")
            elif mask_mode == "L":
                mask = Image.fromarray(index * 100, "L")
            else:
                colours = np.array([[255, 0, 0, 9], [0, 128, 255, 0], [0, 0, 64, 255]], np.uint8)
                mask = Image.fromarray(colours[index][..., :len(mask_mode)].copy(), mask_mode)
            mask.save(masks / ("car_%d_mask%s" % (i, extension)))
        pairs = [(Image.open(p), Image.open(masks / (p.stem + "_mask" + extension))) for p in sorted(images.iterdir())]
        mask_values = sorted(np.unique(np.concatenate([unique_values(m) for _, m in pairs]), axis=0).tolist())
        for scale in (1, 0.5, 0.37):
            answers = ask("folder %s %s %s" % (images, masks, scale), 2 * len(pairs))
            worst = 0
            for i, (image, mask) in enumerate(pairs):
                for j, wanted in enumerate((preprocess(None, image, scale, False),
                                            preprocess(mask_values, mask, scale, True))):
                    shape, numbers = answers[2 * i + j].split(":")
                    assert shape == str(wanted.shape), (shape, wanted.shape)
                    far = np.abs(np.array(numbers.split(), float) - wanted.reshape(-1)).max()
                    worst = max(worst, far * (255 if j == 0 else 1000))
            wrong += report("folder %s, scale %s" % (kind, scale), worst, 1.001)
    return wrong


def report(what, worst, most):
    print("%-40s largest difference %.3g of a grey level%s" % (what, worst, "" if worst <= most else "   WRONG"))
    return worst > most


def record(path):
    """Some of the files and sizes, small, as C++ arrays."""
    text = ["// Files and images made by Pillow %s: tests/pytorch/check_images.py --record." % Image.__version__,
            "#pragma once", "", "namespace lockstep::test {", "",
            "/// A file with the pixels that Pillow reads from it or, if `filter` is not empty, scales it to.",
            "struct RecordedImage {", "    const char* name;", "    const char* file;  ///< its bytes; null: those of the previous entry",
            "    const char* filter;", "    int height, width;", "    const char* levels;", "};", "",
            "inline constexpr RecordedImage recorded_images[] = {"]

    def literal(data):
        digits = data.hex()
        return "\n     ".join('"%s"' % digits[i:i + 100] for i in range(0, len(digits), 100)) or '""'

    def entry(name, file, filter_name, image):
        levels = np.asarray(image).tobytes()
        text.append('    {"%s",\n     %s,\n     "%s", %d, %d,\n     %s},' %
                    (name, "nullptr" if file is None else literal(file), filter_name, image.height, image.width,
                     literal(levels)))

    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        write_files(folder, 9, 13)
        sizes = {"nearest": (4, 20), "bilinear": (14, 5), "bicubic": (4, 6)}
        for name, filters in (("rgb.jpg", ()), ("grey.jpg", ("bicubic",)), ("progressive.jpg", ()),
                              ("RGB.png", ("nearest", "bilinear", "bicubic")), ("LA.png", ("bicubic",)),
                              ("RGBA.png", ("nearest", "bicubic")), ("few.png", ("bicubic",)), ("index4i.png", ()),
                              ("grey2.png", ()), ("wide3.png", ()), ("two.gif", ("nearest",)), ("levels.gif", ())):
            image = loaded(folder / name)
            entry(name, (folder / name).read_bytes(), "", image)
            for filter_name in filters:
                height, width = sizes[filter_name]
                entry(name, None, filter_name, image.resize((width, height), FILTERS[filter_name]))
            if name == "RGB.png":
                entry(name, None, "bicubic", image.resize((29, 17), Image.BICUBIC))
    text += ["};", "", "}  // namespace lockstep::test"]
    pathlib.Path(path).write_text("\n".join(text) + "\n")


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--record":
        return record(sys.argv[2])
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    program = subprocess.Popen([pathlib.Path(sys.argv[1]) / "bin" / "dump_images"], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)

    def ask(line, answers=1):
        program.stdin.write(line + "\n")
        program.stdin.flush()
        return [program.stdout.readline().rstrip("\n") for _ in range(answers)]

    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        wrong = check_reading_and_scaling(ask, folder / "files") + check_folders(ask, folder / "folders")
    print("%d cases disagree" % wrong)
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
