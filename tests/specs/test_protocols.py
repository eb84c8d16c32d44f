"""Each protocol holds in every state that its specification reaches; with a flaw in it, TLC finds a trace to the fault.

The head of a specification says what code it stands for, the faults that it lets happen, and its flaws.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.usefixtures("process"), pytest.mark.full]

HERE = Path(__file__).parent
JARS = Path(sys.prefix) / "tla"
SECONDS_MAX = 600
INVARIANTS = {
    "Heads": ("NothingIsLost", "NothingComesBack", "AnAnswerIsTrue"),
    "Lease": ("AFormerHolderIsRefused", "OnlyTheHolderActs"),
    "Publishing": ("WhatIsNamedIsThere",),
    "Secured": ("WhatCountsIsThere", "PurgedRowsAreGone"),
    "DaySwitch": ("EachEventIsThereOnce", "AReaderMissesNothing"),
    "Partitions": ("EachIsAppliedOnce", "NothingIsForgotten", "AReplyIsTrue", "AStoreCanBeMade"),
    "Loads": ("NothingAcknowledgedIsLost", "OnePrimaryAppends"),
}
FLAWS = {
    ("Heads", "no comparison"): "NothingComesBack",
    ("Heads", "refuses at once"): "AnAnswerIsTrue",
    ("Lease", "no comparison"): "AFormerHolderIsRefused",
    ("Lease", "no second look"): "OnlyTheHolderActs",
    ("Lease", "no beats"): "OnlyTheHolderActs",
    ("Lease", "other clocks"): "OnlyTheHolderActs",
    ("Lease", "no renewal"): "OnlyTheHolderActs",
    ("Lease", "from the answer"): "OnlyTheHolderActs",
    ("Lease", "monotonic alone"): "OnlyTheHolderActs",
    ("Lease", "day alone"): "OnlyTheHolderActs",
    ("Lease", "set back asleep"): "OnlyTheHolderActs",
    ("Lease", "rates apart"): "OnlyTheHolderActs",
    ("Publishing", "no count"): "WhatIsNamedIsThere",
    ("Publishing", "no second look"): "WhatIsNamedIsThere",
    ("Publishing", "no look at the lease"): "WhatIsNamedIsThere",
    ("Publishing", "any end"): "WhatIsNamedIsThere",
    ("Publishing", "count anew"): "WhatIsNamedIsThere",
    ("Secured", "no marks"): "PurgedRowsAreGone",
    ("Secured", "marks first"): "PurgedRowsAreGone",
    ("Secured", "reads first"): "PurgedRowsAreGone",
    ("Secured", "no term"): "WhatCountsIsThere",
    ("Secured", "term anew"): "WhatCountsIsThere",
    ("Secured", "known for ever"): "WhatCountsIsThere",
    ("Secured", "no look at the lease"): "WhatCountsIsThere",
    ("DaySwitch", "no fence"): "EachEventIsThereOnce",
    ("DaySwitch", "no rest"): "EachEventIsThereOnce",
    ("DaySwitch", "no place"): "EachEventIsThereOnce",
    ("DaySwitch", "half a day"): "AReaderMissesNothing",
    ("Partitions", "no numbers"): "EachIsAppliedOnce",
    ("Partitions", "noted first"): "NothingIsForgotten",
    ("Partitions", "unowned replies"): "AReplyIsTrue",
    ("Partitions", "one checkpoint"): "AStoreCanBeMade",
    ("Loads", "promises are forgotten"): "NothingAcknowledgedIsLost",
    ("Loads", "any length"): "NothingAcknowledgedIsLost",
    ("Loads", "one promise"): "OnePrimaryAppends",
}


def checked(folder: Path, name: str, flaw: str) -> str:
    """The report of TLC on a specification; `flaw` is empty for the protocol as it is."""
    jars = list(JARS.glob("*.jar"))
    assert jars, "TLC is missing: run `make tla`"
    settings = [f'CONSTANT Flaw = "{flaw}"', "SPECIFICATION Spec", *(f"INVARIANT {rule}" for rule in INVARIANTS[name])]
    (folder / f"{name}.cfg").write_text("\n".join(settings) + "\n")
    (folder / f"{name}.tla").write_text((HERE / f"{name}.tla").read_text())
    # Little memory and one thread: other tests run beside it. A state that ends everything is none of our errors.
    command = ["java", "-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", str(jars[0]), "tlc2.TLC"]
    options = ["-workers", "1", "-deadlock", "-metadir", str(folder / "states"), f"{name}.tla"]
    done = subprocess.run(
        [*command, *options], cwd=folder, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    return done.stdout + done.stderr


def test_every_specification_is_checked_and_every_flaw_has_a_test() -> None:
    texts = {path.stem: path.read_text() for path in HERE.glob("*.tla")}
    assert texts.keys() == INVARIANTS.keys()
    for name, text in texts.items():
        head = text[: text.index("EXTENDS")]
        named = set(re.findall(r'^(?:Flaws:| {6}) +"([^"]+)": ', head, re.MULTILINE))
        assert named == {flaw for specification, flaw in FLAWS if specification == name}, name


@pytest.mark.parametrize("name", INVARIANTS)
def test_the_protocol_holds(name: str, tmp_path: Path) -> None:
    report = checked(tmp_path, name, "")
    assert "Model checking completed. No error has been found." in report, report


@pytest.mark.parametrize(("name", "flaw"), FLAWS, ids=[f"{name}: {flaw}" for name, flaw in FLAWS])
def test_a_flaw_is_found(name: str, flaw: str, tmp_path: Path) -> None:
    report = checked(tmp_path, name, flaw)
    assert f"Invariant {FLAWS[name, flaw]} is violated" in report, report
    assert "State 3:" in report, "there is a trace to it"
