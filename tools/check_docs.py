#!/usr/bin/env python3
"""Fails when the documentation has drifted.

    python3 tools/check_docs.py

* The README's Rust example is that of crates/undraft/src/lib.rs, which the documentation tests compile and run.
* Every relative link of a Markdown file leads to a file, and to a heading where it names one.
* Every subcommand and long option that the README or docs/ show after `generate`, `bench`, `selftest` or `devices` is in
  the sources of the program.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
MARKDOWN = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "models/*.md", "testdata/*.md", "crates/*/*.md")
    for path in ROOT.glob(pattern)
)
PROGRAM = ROOT / "crates/undraft-cli/src"


def name(path):
    return path.relative_to(ROOT)


def fenced(text, language):
    """The first fenced block of this language."""
    match = re.search(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return match and match.group(1)


def visible(code):
    """Lines of a documentation example that rustdoc shows."""
    return [line for line in code.splitlines() if not re.match(r"#( |$)", line)]


def check_example():
    source = ROOT / "crates/undraft/src/lib.rs"
    lines = [line[3:].removeprefix(" ") for line in source.read_text().splitlines() if line.startswith("//!")]
    compiled = fenced("\n".join(lines) + "\n", "")
    shown = fenced((ROOT / "README.md").read_text(), "rust")
    if compiled is None or shown is None:
        yield f"an example in README.md (```rust) and in {name(source)} (```) expected, one is missing"
    elif visible(compiled) != shown.splitlines():
        yield f"README.md: the Rust example differs from that of {name(source)}, expected the same lines"


def anchors(path):
    """Names that GitHub gives to headings."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def check_links(path):
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        to = (path.parent / file).resolve() if file else path
        if not to.exists():
            yield f"{name(path)}: link to `{target}`, which is not there"
        elif anchor and to.suffix == ".md" and anchor not in anchors(to):
            yield f"{name(path)}: link to `{target}`, expected a heading of that name"


def check_options(path):
    source = "".join(file.read_text() for file in sorted(PROGRAM.rglob("*.rs")))
    # A field `max_tokens` with `long` is the option `--max-tokens`.
    fields = re.findall(r"#\[arg\([^\]]*\blong\b[^\]]*\)\]\s*(?:pub )?(\w+):", source)
    known = {"--" + field.replace("_", "-") for field in fields} | {"--help", "--version"}
    for command in re.findall(r"(?:-- |undraft )((?:generate|selftest|devices|bench)\b[^`\n|#>]*)", path.read_text()):
        for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", command):
            if option not in known:
                yield f"{name(path)}: `{command.strip()}` has option {option}, expected one of {', '.join(sorted(known))}"


def main():
    found = list(check_example())
    for path in MARKDOWN:
        found += check_links(path)
        found += check_options(path)
    for problem in found:
        print(f"docs: {problem}", file=sys.stderr)
    if found:
        return 1
    print(f"docs: {len(MARKDOWN)} files, links, options and the example are as they should be")
    return 0


if __name__ == "__main__":
    sys.exit(main())
