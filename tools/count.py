#!/usr/bin/env python3
"""Counts by which the structure of the code is judged: `./dev count`. Python's standard library only.

Test code is left out everywhere: files `tests.rs`, folders `tests/`, and items and modules under `#[cfg(test)]`.

Named constants are the `const` and `static` items of crates/core/src, by folder. A constant is *tuned*, that is a number
that somebody chose and could choose otherwise, if all of these hold:

- its type is made of numbers only: integers, floats, Duration, Bytes, Bitrate, and tuples, arrays and ranges of them;
- it is no size, offset or bound of a table or buffer: its type is not `usize`, and if its type is another integer, its name
  does not begin with MAX_ or end in _LEN or _BITS;
- it is no sentinel: its value is not 0, a ZERO or a type's MAX or BITS, and it is not computed from other constants alone;
- it comes from no format: it is not in a file of FORMATS, and its comment cites no RFC;
- it is not in EXCEPTIONS, each of which has a reason.

A table (array) of tuned numbers counts once as a constant, and each number in it as a table entry. Numbers without a name
are not counted.

A function's length is from `fn` to its closing brace; a struct's fields are those with names. An import circle is a set of
modules (one a file) of a crate that reach each other by `use`. A `use` of an ancestor is left out: a module is part of its
parent and sees the parent's private items.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

MOST_LINES = 400
MOST_FUNCTION_LINES = 100
MOST_FIELDS = 25

# Files and folders of crates/core/src whose numbers are those of a format, a cipher, a code or a unit.
FORMATS = ("wire", "packet", "session", "sec", "fec/gf256", "fec/coefficients", "units", "time", "ids", "counters")

# Constants of which the rule above would be wrong, by file and name.
EXCEPTIONS = {
    ("class/classifier", "UDP"): "protocol number",
    ("class/classifier", "VOICE_DSCP"): "code points EF and VOICE-ADMIT",
    ("compression", "MARK"): "bits of the compressed header",
    ("compression/template", "TCP"): "protocol number",
    ("compression/template", "UDP"): "protocol number",
    ("compression", "NUMBERS"): "size of a number space on the wire",
    ("compression", "TEMPLATES"): "size of a table at both ends",
    ("endpoint", "PROTOCOL_VERSION"): "version on the wire",
    ("resequencer/in_order", "WINDOW"): "size of a bitmap",
    ("path", "FULL_PACKET"): "bytes of a full packet",
    ("path/on_wire", "UDP_IPV4"): "length of two headers",
    ("queue", "QUANTUM"): "one full Ethernet frame, as in fq_codel",
    ("queue/codel", "MAX_PACKET_BYTES"): "one full Ethernet frame, as in CoDel",
    ("sched/flow", "MANTISSA"): "bits of a float's significand",
    ("tunnel/fec/losses", "MILLION"): "a unit",
}

FOLDERS = ("path", "tunnel", "sched/adaptive", "resequencer", "queue")

NUMBER = r"(?:[ui](?:8|16|32|64|128|size)|f32|f64|Duration|Bytes|Bitrate)"


def without_comments(text):
    """`text` with comments and the insides of strings blanked, at the same places."""
    token = re.compile(r'//[^\n]*|/\*.*?\*/|r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?\'(?:\\[^\n]{1,9}?|[^\\\n])\'', re.DOTALL)
    return token.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)


def closing(code, opening):
    """The place after the brace that closes the one at `opening`."""
    depth = 0
    for found in re.compile(r"[{}]").finditer(code, opening):
        depth += 1 if found.group() == "{" else -1
        if depth == 0:
            return found.end()
    return len(code)


class Source:
    """A file: its text, and its code with comments, strings and test code blanked."""

    def __init__(self, path):
        self.path = path
        self.text = path.read_text(encoding="utf-8")
        code = without_comments(self.text)
        self.test_lines = 0
        for found in reversed(list(re.finditer(r"#\[cfg\((?:all\()?test\b[^\n]*\]", code))):
            end = re.compile(r"[;{]").search(code, found.end())
            if not end:
                continue
            stop = end.end() if end.group() == ";" else closing(code, end.start())
            part = code[found.start():stop]
            self.test_lines += part.count("\n") + 1
            code = code[:found.start()] + re.sub(r"[^\n]", " ", part) + code[stop:]
        self.code = code

    def lines(self):
        """Lines outside test code, comments and blank lines included."""
        return self.text.count("\n") - self.test_lines

    def line(self, place):
        return self.code.count("\n", 0, place) + 1

    def comment_before(self, place):
        """The comment lines right above `place`."""
        above = self.text[:self.text.rfind("\n", 0, place) + 1].splitlines()
        comment = []
        while above and above[-1].lstrip().startswith(("//", "#[")):
            comment.append(above.pop())
        return "\n".join(comment)


def is_test(path):
    return path.name == "tests.rs" or "tests" in path.parts


def test_modules(root):
    """Files and folders of modules that are declared under `#[cfg(test)]`."""
    declared = re.compile(r"#\[cfg\(test\)\]\s+(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+);")
    for path in root.rglob("*.rs"):
        folder = path.parent if path.name in ("lib.rs", "main.rs", "mod.rs") else path.with_suffix("")
        for name in declared.findall(path.read_text(encoding="utf-8")):
            yield folder / f"{name}.rs"
            yield folder / name


def sources(root):
    test_code = set(test_modules(root))
    return [
        Source(path)
        for path in sorted(root.rglob("*.rs"))
        if not is_test(path.relative_to(root)) and not test_code.intersection((path, *path.parents))
    ]


def constants(source, module):
    """Name, line, whether tuned, table entries, of each named constant of `source`."""
    item = re.compile(r"\b(?:const|static)\s+([A-Z][A-Z0-9_]*)\s*:\s*((?:[^=;\[\]]|\[(?:[^\[\]]|\[[^\]]*\])*\])+)="
                      r"\s*([^;]*(?:\{[^}]*\}[^;]*)*);")
    for found in item.finditer(source.code):
        name, kind, value = found.group(1), found.group(2).strip(), found.group(3).strip()
        entries = 0
        tuned = is_tuned(source, module, found.start(), name, kind, value)
        if tuned and kind.lstrip("&").startswith("["):
            entries = len(re.findall(r"(?<![\w.])\d[\d_]*(?:\.\d+)?", value))
        yield name, source.line(found.start()), tuned, entries


def is_tuned(source, module, place, name, kind, value):
    kind = re.sub(r"\b(?:core|std)::(?:time|ops)::|RangeInclusive|Range|'static|\bRate\b", "", kind)
    if re.sub(NUMBER, "", re.sub(r";[^\]]*\]", "]", kind)).strip("&<>[](), ") != "":
        return False
    if kind == "usize" or (re.fullmatch(r"[ui]\d+", kind) and re.search(r"^MAX_|_(?:LEN|BITS)$", name)):
        return False
    if not re.search(r"(?<![\w.])\d", value) or value == "0" or re.search(r"::(ZERO|MAX|BITS)$", value):
        return False
    if any(module == part or module.startswith(part + "/") for part in FORMATS):
        return False
    return "RFC" not in source.comment_before(place) and (module, name) not in EXCEPTIONS


def folder_has(folder, module):
    return module == folder or module.startswith(folder + "/")


def long_functions(source):
    head = re.compile(r"\bfn\s+(\w+)")
    for found in head.finditer(source.code):
        body = re.compile(r"[;{]").search(source.code, signature_end(source.code, found.end()))
        if not body or body.group() == ";":
            continue
        lines = source.code.count("\n", found.start(), closing(source.code, body.start())) + 1
        if lines > MOST_FUNCTION_LINES:
            yield lines, source, found


def signature_end(code, place):
    """The place after a function's arguments."""
    depth, opening = 0, code.find("(", place)
    for found in re.compile(r"[()]").finditer(code, opening):
        depth += 1 if found.group() == "(" else -1
        if depth == 0:
            return found.end()
    return len(code)


def wide_structs(source):
    for found in re.finditer(r"\bstruct\s+(\w+)[^;{(]*\{", source.code):
        body = source.code[found.end():closing(source.code, found.end() - 1) - 1]
        fields = len(re.findall(r"(?m)^\s*(?:pub(?:\([^)]*\))?\s+)?(?:r#)?[a-z_]\w*\s*:(?!:)", body))
        if fields > MOST_FIELDS:
            yield fields, source, found


def module_of(path, root):
    """The module's path as a tuple; the crate's root is empty."""
    parts = path.relative_to(root).with_suffix("").parts
    return () if parts in (("lib",), ("main",)) else parts


def paths_used(code):
    """Each path that a `use` of `code` brings in, as a tuple of names."""
    for found in re.finditer(r"\buse\s+([^;]+);", code):
        yield from expand(re.sub(r"\s+", " ", found.group(1)).strip())


def expand(tree, prefix=()):
    opening = tree.find("{")
    if opening < 0:
        yield prefix + tuple(part.strip().split(" as ")[0] for part in tree.split("::") if part.strip())
        return
    prefix += tuple(part.strip() for part in tree[:opening].split("::") if part.strip())
    depth, start = 0, opening + 1
    for place in range(opening, len(tree)):
        letter = tree[place]
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if (letter == "," and depth == 1) or (letter == "}" and depth == 0):
            if tree[start:place].strip():
                yield from expand(tree[start:place].strip(), prefix)
            start = place + 1


def imports(of_crate, root):
    modules = {module_of(source.path, root) for source in of_crate}
    arrows = {module: set() for module in modules}
    for source in of_crate:
        here = module_of(source.path, root)
        for used in paths_used(source.code):
            if used[0] in ("crate", "self", "super"):
                base = () if used[0] == "crate" else here
                rest = list(used)
                while rest and rest[0] in ("crate", "self", "super"):
                    base = base[:-1] if rest.pop(0) == "super" else base
                path = base + tuple(rest)
            elif here + used[:1] in modules:
                path = here + used
            else:
                continue
            while path not in modules:
                path = path[:-1]
            if path and here[:len(path)] != path:
                arrows[here].add(path)
    return arrows


def circles(arrows):
    """Sets of modules that reach each other (Tarjan), the largest first."""
    index, low, stack, found = {}, {}, [], []

    def visit(module):
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in sorted(arrows[module]):
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            circle = [stack.pop()]
            while circle[-1] != module:
                circle.append(stack.pop())
            if len(circle) > 1:
                found.append(sorted(circle))

    for module in sorted(arrows):
        if module not in index:
            visit(module)
    return sorted(found, key=len, reverse=True)


def report(root, verbose):
    core = root / "crates/core/src"
    crates = {path.parent.name: sources(path) for path in sorted(root.glob("crates/*/src"))}
    named, tuned, entries = defaultdict(int), defaultdict(int), defaultdict(int)
    listed = []
    for source in crates["core"]:
        module = source.path.relative_to(core).with_suffix("").as_posix()
        for name, line, is_one, numbers in constants(source, module):
            for folder in [folder for folder in FOLDERS if folder_has(folder, module)] + ["all of core"]:
                named[folder] += 1
                tuned[folder] += is_one
                entries[folder] += numbers
            if is_one:
                listed.append(f"  {module}.rs:{line} {name}")
    print(f"{'constants':24} {'named':>6} {'tuned':>6} {'table entries':>14}")
    for folder in FOLDERS + ("all of core",):
        print(f"{folder:24} {named[folder]:>6} {tuned[folder]:>6} {entries[folder]:>14}")
    if verbose:
        print("tuned:", *listed, sep="\n")

    print(f"\nlines of core without test code: {sum(source.lines() for source in crates['core'])}")
    every = [source for of_crate in crates.values() for source in of_crate]
    name = lambda source: source.path.relative_to(root / "crates").as_posix().replace("/src/", "/", 1)
    show("files over %d lines" % MOST_LINES,
         [(source.lines(), name(source)) for source in every if source.lines() > MOST_LINES])
    show("functions over %d lines" % MOST_FUNCTION_LINES,
         [(lines, f"{name(source)}:{source.line(found.start())} {found.group(1)}")
          for each in every for lines, source, found in long_functions(each)])
    show("structs over %d fields" % MOST_FIELDS,
         [(fields, f"{name(source)}:{source.line(found.start())} {found.group(1)}")
          for each in every for fields, source, found in wide_structs(each)])
    rings = []
    for crate, of_crate in crates.items():
        for circle in circles(imports(of_crate, root / "crates" / crate / "src")):
            rings.append((len(circle), f"{crate}: " + ", ".join("::".join(module) or "crate" for module in circle)))
    show("import circles (modules in each)", rings)


def show(title, rows):
    print(f"\n{title}: {len(rows)}")
    for count, what in sorted(rows, key=lambda row: (-row[0], row[1])):
        print(f"{count:>6}  {what}")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments not in ([], ["--tuned"]):
        sys.exit("usage: ./dev count [--tuned]    (--tuned lists the tuned constants)")
    report(Path(__file__).resolve().parent.parent, bool(arguments))
