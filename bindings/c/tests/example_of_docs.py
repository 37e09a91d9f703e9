"""Prints the C program of a Markdown file: its fenced blocks of C, one after the other.

    python3 example_of_docs.py docs/c.md
"""

import re
import sys

text = open(sys.argv[1], encoding="utf-8").read()
blocks = re.findall(r"^```c\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
if not blocks:
    sys.exit(f"{sys.argv[1]} has no block of C, expected a program")
print("".join(blocks), end="")
