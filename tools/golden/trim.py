#!/usr/bin/env python3
"""Cuts the golden vectors of the test models down to what the tests read.

    python3 tools/golden/trim.py SOURCE        # SOURCE holds qwen3_5-tiny-mtp/, qwen3_next-random/, qwen3_5-odd-random/

Needs nothing but Python 3.11. Writes testdata/golden, testdata/models and testdata/golden/MANIFEST.toml. Tensor names stay
as they are in the source; a name's suffix `_f64` says how the values were computed, not how they are stored.
"""

import array
import fnmatch
import hashlib
import json
import pathlib
import shutil
import struct
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2] / "testdata"
LIMIT = 10_000_000
WIDTH = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2}
TINY, NEXT, ODD = "qwen3_5-tiny-mtp", "qwen3_next-random", "qwen3_5-odd-random"

# First match wins. An action is DROP, KEEP, or (NARROW, axis, rows): store f64 as f32 (other dtypes stay), keep the first
# `rows` along `axis`.
DROP, KEEP, NARROW = "drop", "keep", "narrow"
TWINS = [("*_f32", DROP), ("*_f64", (NARROW, 0, None)), ("*", KEEP)]
GDN0 = [
    ("*_f32", DROP),
    ("in_proj_*", (NARROW, 0, None)),
    ("state_*", (NARROW, 0, None)),
    ("conv_state_*", (NARROW, 0, None)),
    ("g_*", (NARROW, 0, None)),
    ("beta_*", (NARROW, 0, None)),
    ("o_*", (NARROW, 0, None)),
    ("*_f64", (NARROW, 0, 5)),
]
LAYERS = [("*_f32", DROP), ("*_f64", (NARROW, 1, 12))]
CACHE = [("layers.*.conv", KEEP), ("layers.6.recurrent", KEEP), ("layers.7.?", KEEP), ("*", DROP)]
N3 = [("mtp_logits_*", DROP), *TWINS]


def weights(layer):
    names = ["A_log", "dt_bias", "conv1d.weight", "norm.weight"]
    return [*((f"*layers.{layer}.linear_attn.{name}", KEEP) for name in names), ("*", DROP)]


COPY = [
    *((f"{TINY}/golden/{name}.json", f"golden/{TINY}/{name}.json") for name in ["prompts", "tokenizer", "mtp", "acceptance"]),
    *((f"{name}/golden/golden.json", f"golden/{name}/golden.json") for name in [NEXT, ODD]),
    *((f"{name}/{file}", f"models/{name}/{file}") for name in [NEXT, ODD] for file in ["config.json", "model.safetensors"]),
]
TRIM = [
    *((f"{TINY}/golden/logits_{name}", TWINS) for name in ["one_token", "short", "chat", "code", "non_ascii", "long"]),
    *((f"{TINY}/golden/mtp_{name}", TWINS) for name in ["one_token", "short", "chat"]),
    (f"{TINY}/golden/layers_code", LAYERS),
    (f"{TINY}/golden/cache_code", CACHE),
    (f"{TINY}/golden/gdn0_code", GDN0),
    *((f"{NEXT}/golden/{name}", N3 if name == "n3" else TWINS) for name in ["n1", "n3", "n9", "n64", "n150"]),
    *((f"{ODD}/golden/{name}", N3 if name == "n3" else TWINS) for name in ["n1", "n3", "n9", "n64"]),
]
# The few weights that the operators' own tests need: (model folder, name of the file, layer).
WEIGHTS = [(TINY, "gdn0_weights", 0), (ODD, "gdn1_weights", 1)]


def read(path):
    """Gives {name: (dtype, shape, bytes)}."""
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + size])
    header.pop("__metadata__", None)
    data = raw[8 + size :]
    return {name: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for name, t in header.items()}


def write(path, tensors):
    # Wide elements first, then by name, so that every tensor is aligned.
    header, blobs, offset = {}, [], 0
    for name in sorted(tensors, key=lambda n: (-WIDTH[tensors[n][0]], n)):
        dtype, shape, data = tensors[name]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
        blobs.append(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def first_rows(shape, data, axis, rows, width):
    if rows is None or shape[axis] <= rows:
        return shape, data
    outer, inner = 1, width
    for size in shape[:axis]:
        outer *= size
    for size in shape[axis + 1 :]:
        inner *= size
    step = shape[axis] * inner
    kept = b"".join(data[i * step : i * step + rows * inner] for i in range(outer))
    return [*shape[:axis], rows, *shape[axis + 1 :]], kept


def apply(tensors, rules):
    """Gives the trimmed tensors and one line of words per change."""
    out, notes = {}, []
    for name, (dtype, shape, data) in tensors.items():
        action = next(action for pattern, action in rules if fnmatch.fnmatchcase(name, pattern))
        if action == DROP:
            continue
        if action != KEEP:
            _, axis, rows = action
            full = shape
            shape, data = first_rows(shape, data, axis, rows, WIDTH[dtype])
            if shape != full:
                notes.append(f"{name}: first {rows} of {full[axis]} tokens")
            if dtype == "F64":
                dtype, data = "F32", array.array("f", array.array("d", data)).tobytes()
        out[name] = (dtype, shape, data)
    return out, notes


def entry(target, source, kept, notes):
    digest = hashlib.sha256((ROOT / target).read_bytes()).hexdigest()
    quoted = ", ".join(json.dumps(note) for note in notes)
    return (
        f'[[file]]\npath = "{target}"\nsource = "{source}"\nbytes = {(ROOT / target).stat().st_size}\n'
        f'sha256 = "{digest}"\nkept = "{kept}"\nnotes = [{quoted}]\n'
    )


def main(source):
    if sys.byteorder != "little":
        sys.exit("this script moves raw little-endian tensors: run it on a little-endian machine")
    source = pathlib.Path(source)
    entries = []
    for origin, target in COPY:
        (ROOT / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / origin, ROOT / target)
        entries.append(entry(target, origin, "all", []))
    for stem, rules in TRIM:
        origin, target = f"{stem}.safetensors", f"golden/{stem.replace('/golden/', '/')}.safetensors"
        tensors = read(source / origin)
        out, notes = apply(tensors, rules)
        dropped = sorted(name for name in tensors if name not in out and not name.endswith("_f32"))
        notes += [f"dropped {', '.join(dropped)}"] if dropped else []
        write(ROOT / target, out)
        entries.append(entry(target, origin, f"{len(out)} of {len(tensors)} tensors", notes))
    for model, stem, layer in WEIGHTS:
        shards = sorted((source / model).glob("*.safetensors"))
        tensors = {name: tensor for shard in shards for name, tensor in read(shard).items()}
        out, _ = apply(tensors, weights(layer))
        short = {name.rsplit("linear_attn.", 1)[1]: tensor for name, tensor in out.items()}
        write(ROOT / f"golden/{model}/{stem}.safetensors", short)
        note = f"linear_attn of layer {layer}, names without their prefix"
        entries.append(entry(f"golden/{model}/{stem}.safetensors", f"{model}/*.safetensors", f"{len(short)} tensors", [note]))
    head = (
        "# Written by tools/golden/trim.py; paths are relative to testdata.\n"
        'script = "tools/golden/trim.py"\n'
        'generator = "transformers 5.17.0, torch 2.11, CPU, sdpa"\n'
        'precision = "weights as stored, widened; f64 = the same code with its float32 casts lifted, delta rule token by token"\n'
        'storage = "f64 values are stored as f32 under their own name; their f32 twins are dropped"\n\n'
    )
    (ROOT / "golden/MANIFEST.toml").write_text(head + "\n".join(entries))
    total = sum(path.stat().st_size for path in ROOT.rglob("*") if path.is_file())
    print(f"{total} bytes in {ROOT}")
    if total > LIMIT:
        sys.exit(f"testdata has {total} bytes, expected at most {LIMIT}")


if __name__ == "__main__":
    main(*sys.argv[1:])
