"""The repository is tidy, and each rule of `tidy` finds what it is for."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

import millpond
from tests import tidy, tidy_comments

ROOT = Path(__file__).parents[1]
SHIPPED = "src/millpond/thing.py"


def problems_of(rule: tidy.Rule, text: str, path: str = SHIPPED) -> list[str]:
    return list(rule(tidy.Source(path, text)))


@pytest.mark.usefixtures("processor")
def test_the_repository_is_tidy() -> None:
    problems = tidy.problems(tidy.read_sources(ROOT))
    assert not problems, "\n" + "\n".join(problems)


def test_long_functions_are_found_and_docstrings_are_free() -> None:
    body = "    x = 1\n"
    assert problems_of(tidy.functions_are_short, "def f():\n" + body * 60)
    assert not problems_of(tidy.functions_are_short, "def f():\n" + body * 59)
    assert not problems_of(tidy.functions_are_short, 'def f():\n    """\n' + "    words\n" * 70 + '    """\n' + body)


def test_long_modules_are_found() -> None:
    assert problems_of(tidy.modules_are_short, "x = 1\n" * 501)
    assert not problems_of(tidy.modules_are_short, "x = 1\n" * 500)


def test_large_classes_are_found() -> None:
    methods = "".join(f"    def m{number}(self): ...\n" for number in range(13))
    properties = methods.replace("    def", "    @property\n    def")
    half, rest = methods[: len(methods) // 2], methods[len(methods) // 2 :]
    cut = half.rindex("    def")
    inherited = f"class B:\n{half[:cut]}class C(B):\n{half[cut:]}{rest}"
    for text in ("class C:\n" + methods, "class C:\n" + properties, inherited):
        assert list(tidy.classes_are_small([tidy.Source(SHIPPED, text)])), text
    for text in ("class C:\n" + methods.replace("m0", "_m0"), "class C(Protocol):\n" + methods):
        assert not list(tidy.classes_are_small([tidy.Source(SHIPPED, text)])), text


@pytest.mark.parametrize("name", ["utils.py", "helpers.py", "_common.py", "base.py", "manager.py"])
def test_vague_names_are_found(name: str) -> None:
    assert problems_of(tidy.names_say_something, "", f"src/millpond/{name}")


def test_names_that_do_not_say_what_they_hold_are_found() -> None:
    rule = tidy.names_say_what_they_hold
    for text in (
        "def f(found): ...\n", "def f():\n    wanted = 1\n", "def f(rows):\n    return [one for one in rows]\n",
        "class C:\n    found: int\n", "def f(self):\n    self._known = 1\n", "def _given(): ...\n",
        "class Wanted: ...\n", "_ONE = 1\n",
    ):  # fmt: skip
        assert problems_of(rule, text), text
    assert problems_of(rule, "", "src/millpond/pipelines/wanted.py")
    assert not problems_of(rule, "def f(rows):\n    raise Invalid(found=rows)\n")
    assert not problems_of(rule, "class Problem:\n    found: str\n", "src/millpond/kernel/verify.py")


def test_a_second_value_of_a_name_is_found() -> None:
    assert problems_of(tidy.constants_are_bound_once, "_PATH = 1\ndef f(): ...\n_PATH = 2\n")
    assert not problems_of(tidy.constants_are_bound_once, "_PATH = 1\ndef f():\n    _PATH = 2\n")


def test_missing_docstrings_are_found() -> None:
    assert problems_of(tidy.modules_are_introduced, "x = 1\n")
    assert problems_of(tidy.modules_are_introduced, '"""Here."""\ndef f(): ...\n')
    assert not problems_of(tidy.modules_are_introduced, '"""Here."""\ndef f():\n    """Do."""\n')


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('__all__ = ("f",)\ndef f(): ...\n', False),
        ('__all__ = ("f", "g")\ndef f(): ...\n', True),
        ('__all__ = ("f",)\ndef f(): ...\ndef g(): ...\n', True),
        ('__all__ = ("f", "f")\ndef f(): ...\n', True),
        ("def f(): ...\n", True),
        ("def _f(): ...\n", False),
        ('from a import f\n__all__ = ("f",)\n', False),
    ],
)
def test_doors_that_do_not_match_are_found(text: str, found: bool) -> None:
    assert bool(problems_of(tidy.doors_are_exact, text)) is found


def test_naive_clocks_are_found() -> None:
    assert problems_of(tidy.clocks_are_passed_in, "import time\ntime.time()\n")
    assert problems_of(tidy.clocks_are_passed_in, "import datetime\ndatetime.datetime.now()\n")
    assert not problems_of(tidy.clocks_are_passed_in, "import time\ntime.time()\n", "src/millpond/clock.py")


def test_nodes_on_the_machine_s_clock_are_found() -> None:
    rule = tidy.nodes_in_tests_have_manual_clocks
    assert problems_of(rule, "clone(pond, SystemClock())\n", "tests/nodes/test_thing.py")
    assert not problems_of(rule, "clone(pond, ManualClock())\n", "tests/nodes/test_thing.py")
    exempt = f"tests/nodes/{tidy.SYSTEM_CLOCKS[0]}"
    assert not problems_of(rule, "clone(pond, SystemClock())\n", exempt)
    assert problems_of(rule, "clone(pond, ManualClock())\n", exempt), "what is exempt for nothing"


def test_prefixes_that_no_registry_knows_are_found() -> None:
    assert problems_of(tidy.keyspaces_are_registered, 'LOG = Prefix("log")\n')
    assert problems_of(tidy.keyspaces_are_registered, 'LOG = keys.Prefix("log")[1]\n')
    assert not problems_of(tidy.keyspaces_are_registered, 'LOG = REGISTRY.register("maps", "log")\n')
    assert not problems_of(tidy.keyspaces_are_registered, 'LOG = Prefix("log")\n', "tests/unit/test_log.py")


@pytest.mark.parametrize("text", ["import json\n", "from json import dumps\n", "from dataclasses import asdict\n"])
def test_json_by_hand_is_found(text: str) -> None:
    assert problems_of(tidy.json_has_one_codec, text)
    assert not problems_of(tidy.json_has_one_codec, text, "src/millpond/maps/inputs/rejects.py")
    assert not problems_of(tidy.json_has_one_codec, "from millpond.json_forms import plain\n")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("told = 1\n", True),
        ("def f(asked): ...\n", True),
        ("rows = [each for each in range(3)]\n", True),
        ("def _put_aside(): ...\n", True),
        ("class LandingPlace: ...\n", True),
        ("self.at_hand = 1\n", True),
        ("waiting = 1\n", True),
        ("parts_waiting = 1\n", False),
        ("reach, breach, skeptic = 1, 2, 3\n", False),
        ("def test_two_do_not_disturb_each_other(): ...\n", False),
        ("row.told()\n", False),
    ],
)
def test_names_that_are_not_the_fields_are_found(text: str, found: bool) -> None:
    assert bool(problems_of(tidy.names_are_the_fields, text)) is found


def test_a_found_name_comes_with_its_replacement() -> None:
    assert problems_of(tidy.names_are_the_fields, "told = 1\n") == [
        "line 1: told; `told`: say row, payload or response"
    ]


def test_docstrings_that_begin_with_a_question_are_found() -> None:
    assert problems_of(tidy.docstrings_name_the_thing, '"""What lives here."""\n')
    assert problems_of(tidy.docstrings_name_the_thing, 'def f():\n    """Whether it is."""\n')
    assert not problems_of(tidy.docstrings_name_the_thing, 'def f():\n    """True when it is."""\n')
    assert problems_of(tidy.docstrings_name_the_thing, 'LIMIT = 1\n"""How many there are."""\n')
    assert not problems_of(tidy.docstrings_name_the_thing, '"""Whatever a caller wants."""\n')


def test_phrases_that_are_not_the_fields_are_found() -> None:
    assert problems_of(tidy.phrases_are_plain, "# it was put aside\n")
    assert not problems_of(tidy.phrases_are_plain, "# it was quarantined\n")


def test_paths_of_one_machine_are_found() -> None:
    assert problems_of(tidy.nothing_points_elsewhere, "cd /wo" + "rk/main\n", "README.md")
    assert not problems_of(tidy.nothing_points_elsewhere, "cd framework/main\n", "README.md")


def test_names_nobody_uses_are_found() -> None:
    unused = tidy.Source(SHIPPED, '__all__ = ("lonely",)\nasync def lonely(): ...\ndef _shy(): ...\n')
    assert len(list(tidy.dead_names([unused]))) == 2
    for text in ("from thing import lonely\n", '"""lonely(_shy)"""\n'):
        assert len(list(tidy.dead_names([unused, tidy.Source("src/millpond/other.py", text)]))) == 2
    test = tidy.Source("tests/test_thing.py", "lonely()\n")
    assert len(list(tidy.dead_names([unused, test]))) == 2, "what tests alone call is dead"
    user = tidy.Source("src/millpond/user.py", "lonely(_shy)\n")
    assert len(list(tidy.dead_names([unused, user]))) == 1, "a private name of another module is another"
    unused = tidy.Source(SHIPPED, f"{unused.text}x = _shy\n")
    assert not list(tidy.dead_names([unused, user]))


def test_a_reserved_name_that_is_used_is_reserved_no_more() -> None:
    reserved = tidy.Source("src/millpond/kernel/space.py", "class CountedSpace: ...\n")
    assert not list(tidy.dead_names([reserved]))
    assert list(tidy.dead_names([reserved, tidy.Source("src/millpond/user.py", "CountedSpace()\n")]))


def test_modules_of_the_kernel_that_one_part_uses_are_found() -> None:
    kernel = tidy.Source("src/millpond/kernel/head.py", "x = 1\n")
    line = "from millpond.kernel.head import x\n"
    maps, node, cli = (tidy.Source(f"src/millpond/{place}.py", line) for place in ("maps/a", "nodes/b", "cli/c"))
    test = tidy.Source("tests/unit/test_head.py", line)
    assert len(list(tidy.the_kernel_is_shared([kernel, maps, test]))) == 1
    assert len(list(tidy.the_kernel_is_shared([kernel, node, cli]))) == 1, "one part, above all others"
    assert not list(tidy.the_kernel_is_shared([kernel, maps, cli]))


@pytest.mark.parametrize("wait", ["never.wait(1)", "clock.wait(threading.Event(), due)", "gone.wait(LOOK_SECONDS)"])
def test_waits_for_a_fixed_time_in_a_loop_are_found(wait: str) -> None:
    def found(text: str) -> list[str]:
        return list(tidy.changes_are_waited_for([tidy.Source(SHIPPED, text)]))

    assert len(found(f"def look():\n    while not done():\n        {wait}\n")) == 1
    assert not found(f"def look():\n    {wait}\n"), "once"
    assert not found("def look():\n    while not done():\n        changed.wait(due)\n")


def test_hard_rooms_that_do_not_say_why_are_found() -> None:
    code, path = "x = 1\n" * 19, f"src/millpond/{tidy_comments.ROOMS[0]}/thing.py"
    for line in ("# because\n", "x = 1  # because\n"):
        assert not list(tidy.hard_rooms_say_why([tidy.Source(path, code + "\n" + line)])), line
    rest = ("x = 1\n", "x = 1  # noqa: E1\n", "# -- one ------\n", '"""# because"""\n', "# because\nx = 1\nx = 1\n")
    for line in rest:
        assert list(tidy.hard_rooms_say_why([tidy.Source(path, code + line)])), line
    assert not list(tidy.hard_rooms_say_why([tidy.Source(SHIPPED, code)])), "another room"


def test_the_front_door_is_the_checked_in_list() -> None:
    listed = (ROOT / "tests" / "front_door.txt").read_text().split()
    assert sorted(millpond.__all__) == listed
    assert len(listed) <= 25


@pytest.mark.usefixtures("process")
def test_importing_millpond_stays_light() -> None:
    """Nothing heavy is imported before it is needed; the check runs in a fresh interpreter."""
    import subprocess

    heavy = ("numba", "pyspark", "duckdb", "typer", "pandas")
    code = f"import sys, millpond; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.usefixtures("process")
def test_a_pond_on_nodes_is_opened_without_pandas() -> None:
    """`pyarrow` imports it with the first list that becomes an array; a module must not make one."""
    import subprocess

    code = "import sys, millpond.client.pond; print('pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", ["millpond.errors", "millpond.clock", "millpond.cli.main"])
def test_modules_can_be_found(name: str) -> None:
    assert importlib.util.find_spec(name) is not None
