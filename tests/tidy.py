"""Taste that runs: one pass over the repository's files, each rule a small function.

A rule takes one `Source` and yields a sentence for each thing that is not tidy. `problems` runs them all;
`test_tidy.py` runs it over the repository, and each rule over a file that breaks it.
"""

from __future__ import annotations

import ast
import functools
import gc
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.reserved import RESERVED
from tests.tidy_comments import hard_rooms_say_why
from tests.tidy_kernel import the_kernel_is_shared
from tests.tidy_names import constants_are_bound_once, names_say_what_they_hold
from tests.tidy_sources import HARNESS, Source, read_sources
from tests.tidy_waits import changes_are_waited_for

__all__ = ("Source", "problems", "read_sources")

FUNCTION_LINES_MAX = 60
MODULE_LINES_MAX = 500
PUBLIC_METHODS_MAX = 12
# class -> how many it and those that extend it may have, and why they honestly need more
LARGE_CLASSES = {
    **dict.fromkeys(("Map", "Events"), (14, "the verbs of the front door, and the name and kind that every map shows")),
    "Branch": (16, "the verbs of the front door of versions, and those of every reference"),
    "ObjectStore": (13, "one verb for each thing a store of objects does, reading and writing; its drivers have them"),
    "BucketSource": (17, "a bucket, and how it is walked under whatever names its objects have"),
    "BucketObjects": (14, "an object store, and the one that signs addresses"),
    "Pond": (19, "one way to each part"),
    **dict.fromkeys(("RedisStore", "EmbeddedStore"), (18, "the acts of a backend of streams, some for many at once")),
    "Repository": (18, "its branches, tags and settings; comparing two refs"),
    "Shard": (20, "one file, its tables and its change log; a writer for what needs an open change is to be cut out"),
    "Staging": (14, "the verbs of bulk and of maintenance, one for each"),
}
TWINS = ("Map", "Pond", "Branch", "Repository", "Staging")
LARGE_CLASSES |= {f"Remote{name}": (LARGE_CLASSES[name][0], "the same on nodes") for name in TWINS}

VAGUE_NAMES = frozenset(("utils", "util", "helpers", "helper", "common", "base", "manager", "misc"))

# this -> that
CLOCKS = {
    "time.time": "clock.now_ms()",
    "time.time_ns": "clock.now_ms()",
    "time.monotonic": "clock.monotonic()",
    "time.perf_counter": "clock.monotonic()",
    "time.sleep": "waiting for the event itself",
    "datetime.now": "clock.now_ms()",
    "datetime.utcnow": "clock.now_ms()",
    "datetime.today": "clock.now_ms()",
    "date.today": "clock.now_ms()",
    "uuid.uuid4": "clock.random_id()",
    "random.random": "a seeded generator as an argument",
}
_CLOCK_NAMES = frozenset(name.partition(".")[2] for name in CLOCKS)
# Tests of nodes that need the machine's own clock: children, and what draws tokens or times other processes.
SYSTEM_CLOCKS = ("clone_child.py", "uploading.py", "test_access.py", "test_stopping.py", "test_monitoring.py",
                 "test_readers.py")  # fmt: skip
CLOCK_DOORS = ("src/millpond/clock.py", "src/millpond/testing/", "tests/rings/", HARNESS, "bench/")

# this -> that: as any word of a name, `told_later` as well as `told`
NAME_WORDS = {
    "told": "row, payload or response",
    "asked": "request, keys or query",
    "each": "the noun itself: row, part, outcome",
    "aside": "quarantined",
    "care": "maintenance",
    "itself": "local peer",
    "kept": "retained",
    **dict.fromkeys(("landing", "landings"), "staging"),
    **dict.fromkeys(("narrowed", "narrowing"), "subset or bounds"),
    "puller": "follower",
    "refusals": "error responses",
    "at_hand": "cached",
    "catchup": "replication or follower",
    "catch_up": "replication or follower",
}
# this -> that: as a whole name alone, for `parts_waiting` is plain English
WHOLE_NAMES = {"waiting": "queue", "entering": "apply", "asking": "caller or query"}
# this -> that: in docstrings, comments and messages
PHRASES = {
    "at hand": "cached",
    "broken line": "lost connection",
    "put aside": "quarantined",
    "set aside": "quarantined",
    "unless told": "by default",
}
ANY_PHRASE = re.compile(rf"\b({'|'.join(PHRASES)})s?\b", re.IGNORECASE)
# door -> why it does not use the one codec (docs/decisions/0013-one-json-codec.md)
JSON_DOORS = {
    "src/millpond/json_forms.py": "the codec",
    "src/millpond/maps/inputs/": "data of users",
    "src/millpond/cli/enrich/event_files.py": "data of users",
    "src/millpond/cli/rows.py": "values of users, for files and the terminal",
    "src/millpond/cli/terminal/console.py": "whatever a command prints",
    "src/millpond/cli/main.py": "errors, which may name files that are no UTF-8",
    "src/millpond/stores/lmdb/probe.py": "a child process that imports nothing of ours",
    "src/millpond/testing/": "a second reading of the same bytes",
    HARNESS: "the same, and reports of campaigns",
}
# A prefix made anywhere else would be one that no registry knows; the contract of spaces makes rows of no pond.
PREFIX_DOORS = ("src/millpond/kernel/keys.py", "src/millpond/kernel/keyspace.py", "src/millpond/testing/contracts/")
QUESTIONS = frozenset(("who", "what", "whether", "where", "how", "when", "why", "which", "whose", "whom"))
WORDED = ("src/", "tests/", "bench/", "tools/")  # folders whose words are checked
NOT_WORDED = ("tests/tidy.py", "tests/test_tidy.py")

# Written in pieces, so that this file does not name them.
ELSEWHERE = tuple(
    re.compile(re.escape(piece.replace("~", "")))
    for piece in (
        "/wo~rk/", "/ro~ot/", "/home~/", "py~pi.org", "python~hosted", "npm~js", "maven~.org", "debian~.org",
        "--index~-url http", "crates~.io",
    )
)  # fmt: skip


Rule = Callable[[Source], Iterator[str]]


def functions_are_short(source: Source) -> Iterator[str]:
    """At most 60 lines, the docstring not counted."""
    for node in source.of(ast.FunctionDef, ast.AsyncFunctionDef):
        lines = _body_lines(node)
        if lines > FUNCTION_LINES_MAX:
            yield f"{node.name} has {lines} lines; cut it where it says 'and'"


def _body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    if ast.get_docstring(node) is not None:
        docstring = node.body[0]
        lines -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
    return lines


def modules_are_short(source: Source) -> Iterator[str]:
    """At most 500 lines: past that the noun is two nouns."""
    lines = source.text.count("\n")
    if lines > MODULE_LINES_MAX:
        yield f"{lines} lines; split it by noun"


def names_say_something(source: Source) -> Iterator[str]:
    """No module is called for being shared."""
    if source.python and Path(source.path).stem.lstrip("_") in VAGUE_NAMES:
        yield "name the module for the noun it holds"


def modules_are_introduced(source: Source) -> Iterator[str]:
    """Every module of what ships and of the harness opens with a docstring; so does every public function and class."""
    if not source.styled:
        return
    if ast.get_docstring(source.tree) is None:
        yield "open the module by saying what lives here"
    for node in source.tree.body:
        public = isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
        if public and not _is_overload(node) and ast.get_docstring(node) is None:
            yield f"say in one sentence what {node.name} is"


def _is_overload(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and any(
        isinstance(word, ast.Name) and word.id == "overload" for word in node.decorator_list
    )


def doors_are_exact(source: Source) -> Iterator[str]:
    """`__all__` is a tuple, and names what is there: every public function and class, and nothing that is not."""
    if not source.styled or source.path.endswith("__main__.py"):
        return
    defined, reachable = _public_names(source)
    listed = _listed_names(source.tree)
    if listed is None:
        if defined:
            yield "list the public names in a tuple __all__"
        return
    for name in sorted(set(listed) - reachable):
        yield f"__all__ names {name}, which is not there"
    for name in sorted(defined - set(listed)):
        yield f"{name} is public but not in __all__; list it or start it with _"
    if len(set(listed)) != len(listed):
        yield "__all__ names something twice"


def _public_names(source: Source) -> tuple[set[str], set[str]]:
    """Public functions and classes defined here, and every name that can be reached."""
    defined: set[str] = set()
    reachable: set[str] = set()
    for node in source.of(ast.Import, ast.ImportFrom):
        reachable |= {alias.asname or alias.name for alias in node.names}
    for node in source.tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            reachable.add(node.name)
            if not node.name.startswith("_"):
                defined.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            reachable |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return defined, reachable


def _listed_names(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets
        ):
            assert isinstance(node.value, ast.Tuple), "__all__ is a tuple"
            return [ast.literal_eval(element) for element in node.value.elts]
    return None


def clocks_are_passed_in(source: Source) -> Iterator[str]:
    """Nobody asks the machine for the time or sleeps, except through the clock."""
    if source.path.startswith(CLOCK_DOORS):
        return
    for node in source.of(ast.Attribute):
        if node.attr in _CLOCK_NAMES:
            called = ".".join(ast.unparse(node).split(".")[-2:])
            if called in CLOCKS:
                yield f"line {node.lineno}: {called}; use {CLOCKS[called]}"


def nodes_in_tests_have_manual_clocks(source: Source) -> Iterator[str]:
    """A node that a test runs in its own process lives on a clock that the test moves; exemptions are needed."""
    if source.path.startswith("tests/nodes/"):
        calls = map(_called, source.of(ast.Call))
        if ("SystemClock" in calls) is not source.path.endswith(SYSTEM_CLOCKS):
            yield "take the fixture `clock`, which millpond.testing.passing_time moves; see SYSTEM_CLOCKS"


def keyspaces_are_registered(source: Source) -> Iterator[str]:
    """Nothing that ships makes a prefix of keys by hand: it is a registered keyspace, or lies within one."""
    if not source.styled or source.path.startswith(PREFIX_DOORS):
        return
    for node in source.of(ast.Call):
        if _called(node) in ("Prefix", "Keyspace"):
            yield f"line {node.lineno}: register a keyspace: REGISTRY.register(part, name, …)"


def _called(node: ast.Call) -> str:
    """The last word of what is called; to write all of it out again would take seconds."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def json_has_one_codec(source: Source) -> Iterator[str]:
    """Nothing that ships reads or writes JSON but through the one codec, or for a reason that is listed."""
    if not source.styled or source.path.startswith(tuple(JSON_DOORS)):
        return
    for node in source.of(ast.Import, ast.ImportFrom):
        names = [alias.name for alias in node.names]
        module = node.module if isinstance(node, ast.ImportFrom) else None
        by_hand = {"json", "asdict"}.intersection(names) and module in (None, "dataclasses")
        if by_hand or module == "json":
            yield f"line {node.lineno}: JSON by hand; use millpond.json_forms"


def names_are_the_fields(source: Source) -> Iterator[str]:
    """Whatever a file names has the field's word: no pronoun, no participle where there is a noun."""
    if not _is_worded(source):
        return
    for line, name in sorted(set(_given_names(source))):
        for word, instead in _banned_words(name):
            yield f"line {line}: {name}; `{word}`: say {instead}"


def _is_worded(source: Source) -> bool:
    return source.python and source.path.startswith(WORDED) and not source.path.startswith(NOT_WORDED)


@functools.cache
def _banned_words(name: str) -> list[tuple[str, str]]:
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).strip("_").lower()
    whole = [(snake, WHOLE_NAMES[snake])] if snake in WHOLE_NAMES else []
    if snake.startswith("test_"):
        return whole  # a sentence
    return whole + [(word, instead) for word, instead in NAME_WORDS.items() if f"_{word}_" in f"_{snake}_"]


def _given_names(source: Source) -> Iterator[tuple[int, str]]:
    for definition in source.of(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef):
        yield definition.lineno, definition.name
    for argument in source.of(ast.arg):
        yield argument.lineno, argument.arg
    for name in source.of(ast.Name):
        if isinstance(name.ctx, ast.Store):
            yield name.lineno, name.id
    for attribute in source.of(ast.Attribute):
        if isinstance(attribute.ctx, ast.Store):
            yield attribute.lineno, attribute.attr


def docstrings_name_the_thing(source: Source) -> Iterator[str]:
    """A docstring begins with the noun or the verb of the thing, not with a question; so does one of a value."""
    if not _is_worded(source):
        return
    for line, text in _docstrings(source):
        first = re.match(r"\w*", text.strip())
        if first is not None and first[0].lower() in QUESTIONS:
            yield f"line {line}: a docstring begins with '{first[0]}'; begin with the thing, or with 'True when'"


def _docstrings(source: Source) -> Iterator[tuple[int, str]]:
    for node in source.of(ast.Expr):
        match node.value:
            case ast.Constant(value=str(text)):
                yield node.lineno, text


def phrases_are_plain(source: Source) -> Iterator[str]:
    """Prose says the field's word too."""
    if _is_worded(source):
        for found in ANY_PHRASE.finditer(source.text):
            number = source.text.count("\n", 0, found.start()) + 1
            yield f"line {number}: '{found[1]}'; say {PHRASES[found[1].lower()]}"


def nothing_points_elsewhere(source: Source) -> Iterator[str]:
    """No path of one machine and no package index is written into the repository."""
    for pattern in ELSEWHERE:
        for found in pattern.finditer(source.text):
            number = source.text.count("\n", 0, found.start()) + 1
            yield f"line {number}: {pattern.pattern} belongs to one machine"


PYTHON_RULES: tuple[Rule, ...] = (
    functions_are_short,
    modules_are_short,
    names_say_something,
    modules_are_introduced,
    doors_are_exact,
    clocks_are_passed_in,
    nodes_in_tests_have_manual_clocks,
    keyspaces_are_registered,
    json_has_one_codec,
    names_are_the_fields,
    names_say_what_they_hold,
    constants_are_bound_once,
    docstrings_name_the_thing,
    phrases_are_plain,
)
TEXT_RULES: tuple[Rule, ...] = (nothing_points_elsewhere,)


def classes_are_small(sources: list[Source]) -> Iterator[str]:
    """At most 12 public methods in what ships and in the harness, properties and what is inherited counted.

    Protocols and errors are exempt: they only say what others have. What is `opened_once` counts as an attribute.
    """
    classes = [
        (source.path, node)
        for source in sources if source.styled
        for node in source.of(ast.ClassDef)
    ]  # fmt: skip
    known = {node.name: node for _, node in classes}
    for path, node in classes:
        if {"Protocol", "Exception", "MillpondError"} & set(_ancestors(node, known)):
            continue
        named = (node.name, *_ancestors(node, known))
        allowed = max(LARGE_CLASSES.get(name, (PUBLIC_METHODS_MAX, ""))[0] for name in named)
        if (count := len(_public_methods(node, known))) > allowed:
            yield f"{path}: {node.name} has {count} public methods; it is two nouns"


_Classes = dict[str, ast.ClassDef]


def _ancestors(node: ast.ClassDef, known: _Classes) -> Iterator[str]:
    """The names of all classes above one, as far as they are known."""
    for base in node.bases:
        named = base.value if isinstance(base, ast.Subscript) else base
        name = named.attr if isinstance(named, ast.Attribute) else getattr(named, "id", "")
        yield name
        if name in known and known[name] is not node:
            yield from _ancestors(known[name], known)


def _public_methods(node: ast.ClassDef, known: _Classes) -> set[str]:
    classes = [node, *(known[name] for name in _ancestors(node, known) if name in known)]  # suites of tests, too
    return {
        inner.name
        for part in classes for inner in part.body
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and not inner.name.startswith(("_", "test_"))
        and not any(getattr(decorator, "id", "") == "opened_once" for decorator in inner.decorator_list)
    }  # fmt: skip


def dead_names(sources: list[Source]) -> Iterator[str]:
    """Every function and class at the top of a module that ships is used by what ships, not by its tests alone.

    What `millpond.testing` and the harness offer is for tests. `RESERVED` names the exceptions.
    """
    python = [source for source in sources if source.python]
    words = {
        source.path: [Counter(_used_words(node, inside)) for node, inside in source.statements] for source in python
    }
    ours, everywhere = Counter[str](), Counter[str]()
    for source in sources:
        for used in words.get(source.path, ()):
            everywhere.update(used)
            if source.styled and not _is_testing(source):
                ours.update(used)
    for source in (source for source in sources if source.styled):
        used = everywhere if _is_testing(source) else ours
        here = sum(words[source.path], Counter[str]())
        for node, own in zip(source.tree.body, words[source.path], strict=True):
            functions = ast.FunctionDef | ast.AsyncFunctionDef
            if not isinstance(node, functions | ast.ClassDef) or node.name.startswith("__"):
                continue
            if isinstance(node, functions) and node.decorator_list:
                continue  # its decorator hands it to somebody
            uses = here if node.name.startswith("_") else used
            # what calls itself is not called yet
            reserved = f"{source.path.removeprefix('src/millpond/')}:{node.name}" in RESERVED
            if reserved is (uses[node.name] > own[node.name]):
                wrong = "is used: take it from RESERVED" if reserved else "is used by nothing that ships"
                yield f"{source.path}: {node.name} {wrong}"


def _is_testing(source: Source) -> bool:
    return source.path.startswith(("src/millpond/testing/", HARNESS))


def _used_words(top: ast.stmt, nodes: list[ast.AST]) -> Iterator[str]:
    """The names a statement uses. To define one, to import it, to list it in `__all__` or in prose is no use of it."""
    if _is_door(top):
        return
    unused = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield node.name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in unused:
            yield from re.findall(r"\w+", node.value)


def _is_door(node: ast.AST) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else ()
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)


def problems(sources: list[Source]) -> list[str]:
    """Everything that is not tidy, as `path: sentence`."""
    found = list[str]()
    gc.disable()  # it would look through millions of nodes, none of which is garbage
    try:
        for source in sources:
            for rule in (*PYTHON_RULES, *TEXT_RULES) if source.python else TEXT_RULES:
                found += [f"{source.path}: {problem}" for problem in rule(source)]
        of_all = (classes_are_small, dead_names, the_kernel_is_shared, changes_are_waited_for, hard_rooms_say_why)
        for everywhere in of_all:
            found += everywhere(sources)
        return found
    finally:
        gc.enable()
